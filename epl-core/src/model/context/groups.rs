//! The groups along the axes of the mesh.

use epl_comm::ProcessGroup;

use crate::error::Result;
use crate::topology::cluster::{Axis, Mesh};

/// One group for every axis of the mesh, as this rank sees it.
#[derive(Clone, Debug)]
pub struct Groups {
    pub(super) world: ProcessGroup,
    data: ProcessGroup,
    pipeline: ProcessGroup,
    tensor: ProcessGroup,
    expert: ProcessGroup,
    expert_data: ProcessGroup,
}

impl Groups {
    /// Splits the world along every axis of the mesh. Collective.
    pub fn new(world: ProcessGroup, mesh: &Mesh) -> Result<Self> {
        let wish = |axis: Axis, rank: usize| (mesh.color(axis, rank), mesh.member(axis, rank));
        let split = |axis: Axis| world.split_by(axis.name(), |rank| wish(axis, rank));
        Ok(Self {
            data: split(Axis::Data)?,
            pipeline: split(Axis::Pipeline)?,
            tensor: split(Axis::Tensor)?,
            expert: split(Axis::Expert)?,
            expert_data: split(Axis::ExpertData)?,
            world,
        })
    }

    /// The group along one axis.
    pub fn axis(&self, axis: Axis) -> &ProcessGroup {
        match axis {
            Axis::Data => &self.data,
            Axis::Pipeline => &self.pipeline,
            Axis::Tensor => &self.tensor,
            Axis::Expert => &self.expert,
            Axis::ExpertData => &self.expert_data,
        }
    }
}
