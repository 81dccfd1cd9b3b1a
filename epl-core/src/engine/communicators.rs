//! The groups over which stages send, gradients are reduced and parameters are gathered.

use std::collections::{BTreeMap, BTreeSet};

use epl_comm::{Pool, ProcessGroup};

use crate::error::Result;
use crate::model::context::Context;
use crate::plan::{Compression, Plan};
use crate::topology::cluster::{Axis, Width};

/// The communicators over which stages send, and gradients are reduced, and how.
pub(crate) struct Communicators {
    /// Those of this rank's replica.
    stages: ProcessGroup,
    /// Which of its members run which stage.
    widths: Vec<Width>,
    /// For the axes over which there are buckets.
    pools: BTreeMap<Axis, Pool>,
    /// One for the axes over which parameters are gathered, beside those: a gather does not wait for a reduction.
    gathers: BTreeMap<Axis, ProcessGroup>,
    /// The stages that share parameters with this one, by which they are; with their replicas, where they have different
    /// widths.
    tied: BTreeMap<Vec<usize>, ProcessGroup>,
    pub compression: Option<Compression>,
    /// Whether gradients are reduced in every micro-batch, and not once in a step: one bucket travels at a time then.
    pub each: bool,
}

impl Communicators {
    /// Makes the communicators. Collective.
    pub fn new(plan: &Plan, context: &Context) -> Result<Self> {
        let axes: BTreeSet<Axis> = plan.params.trained().map(|bucket| bucket.axis).collect();
        let each = plan.reduces_each();
        let communicators = if each { 1 } else { plan.settings.num_communicators };
        let pool = |axis| Ok((axis, Pool::new(context.axis(axis), communicators)?));
        let pools = axes.into_iter().map(pool).collect::<Result<_>>()?;
        let gather = |axis: Axis| {
            let group = context.axis(axis);
            Ok((axis, group.split_by(&format!("gather over {axis}"), |member| (0, member))?))
        };
        let gathers = plan.params.divided_axes().into_iter().map(gather).collect::<Result<_>>()?;
        let pipeline = context.axis(Axis::Pipeline);
        let stages = pipeline.split_by("stages", |member| (0, member))?;
        let tied = plan.params.records.iter().filter(|record| record.trainable && record.is_tied_over_stages());
        let tied: BTreeSet<Vec<usize>> = tied.map(|record| record.stages.clone()).collect();
        let mesh = context.mesh();
        let share = |tied: Vec<usize>| {
            let name = format!("tied over stages {tied:?}");
            let wish = |stage: usize, member: usize| (usize::from(!tied.contains(&stage)), member);
            let group = match mesh.is_bridged() {
                true => context.world().split_by(&name, |rank| wish(mesh.coordinate(rank).pipeline, rank))?,
                false => pipeline.split_by(&name, |member| wish(member, member))?,
            };
            Ok((tied, group))
        };
        let tied = tied.into_iter().map(share).collect::<Result<_>>()?;
        Ok(Self { stages, widths: mesh.widths(), pools, gathers, tied, compression: plan.settings.compression, each })
    }

    /// The stages of this rank's replica.
    pub fn stages(&self) -> &ProcessGroup {
        &self.stages
    }

    /// Which members of [`stages`](Self::stages) run which stage.
    pub fn widths(&self) -> &[Width] {
        &self.widths
    }

    /// The groups of stages that hold the same trained parameters.
    pub fn tied(&self) -> &BTreeMap<Vec<usize>, ProcessGroup> {
        &self.tied
    }

    /// The ranks over which what is sharded over an axis is gathered.
    pub fn gathers(&self, axis: Axis) -> &ProcessGroup {
        &self.gathers[&axis]
    }

    pub fn pool(&self, axis: Axis) -> &Pool {
        &self.pools[&axis]
    }
}
