//! The mesh: every rank's coordinate, and the ranks of every group.

use super::axis::{Axis, Coordinate, Digit};
use super::error::{ClusterError, Result};
use super::sizes::{MeshRequest, MeshSizes};
use super::workers::Cluster;
use crate::config::{Config, RankOrder};

/// The ranks, numbered along the axes.
///
/// ```
/// use epl_core::cluster::{Axis, Mesh, MeshSizes, RankOrder};
///
/// # fn main() -> Result<(), epl_core::cluster::ClusterError> {
/// // Two replicas of two stages with two slices each, in LiBai's order.
/// let mesh = Mesh::new(MeshSizes::new(2, 2, 2, 1)?, RankOrder::PipelineDataTensor);
/// assert_eq!(mesh.group(Axis::Data, 0), [0, 2]);
/// assert_eq!(mesh.group(Axis::Tensor, 0), [0, 1]);
/// assert_eq!(mesh.group(Axis::Pipeline, 0), [0, 4]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    sizes: MeshSizes,
    order: RankOrder,
    /// The rank at every position, and the position of every rank.
    ranks: Vec<usize>,
    positions: Vec<usize>,
}

impl Mesh {
    /// A mesh whose positions are the ranks' own numbers.
    pub fn new(sizes: MeshSizes, order: RankOrder) -> Self {
        let ranks: Vec<usize> = (0..sizes.world()).collect();
        Self { sizes, order, positions: ranks.clone(), ranks }
    }

    /// A mesh over a cluster, its ranks taken worker by worker or, with `prefer_intra_node` false,
    /// across workers first.
    ///
    /// # Errors
    ///
    /// The cluster has more or fewer ranks than the sizes need.
    pub fn over(cluster: &Cluster, sizes: MeshSizes, order: RankOrder, prefer_intra_node: bool) -> Result<Self> {
        let ranks = cluster.ranks_in_order(prefer_intra_node);
        if ranks.len() != sizes.world() {
            return Err(ClusterError::RanksDisagree {
                data: sizes.along(Axis::Data),
                pipeline: sizes.along(Axis::Pipeline),
                tensor: sizes.along(Axis::Tensor),
                product: sizes.world(),
                ranks: ranks.len(),
            });
        }
        let mut positions = vec![0; ranks.len()];
        ranks.iter().enumerate().for_each(|(position, rank)| positions[*rank] = position);
        Ok(Self { sizes, order, ranks, positions })
    }

    /// The mesh that the options `dist.*` ask for, on `cluster.ranks` ranks of one worker; left out, there are as many
    /// as the sizes need.
    ///
    /// # Errors
    ///
    /// See [`MeshRequest::resolve`].
    pub fn from_config(config: &Config) -> Result<Self> {
        let sizes = MeshRequest::from_config(config).resolve()?;
        Self::over_config(&Cluster::local(sizes.world())?, sizes, config)
    }

    /// The mesh that the options `dist.*` and `cluster.*` ask for, on the ranks of a cluster. Where
    /// the data size is left out, it is what the ranks make of it.
    ///
    /// # Errors
    ///
    /// See [`MeshRequest::resolve`].
    pub fn on_cluster(cluster: &Cluster, config: &Config) -> Result<Self> {
        let ranks = Some(cluster.world_size());
        let sizes = MeshRequest { ranks, ..MeshRequest::from_config(config) }.resolve()?;
        Self::over_config(cluster, sizes, config)
    }

    fn over_config(cluster: &Cluster, sizes: MeshSizes, config: &Config) -> Result<Self> {
        Self::over(cluster, sizes, config.dist.order, config.cluster.device_place_prefer_intra_node)
    }

    /// Ranks.
    pub fn world_size(&self) -> usize {
        self.sizes.world()
    }

    /// The size of an axis: the number of ranks in each of its groups.
    pub fn size(&self, axis: Axis) -> usize {
        self.sizes.along(axis)
    }

    /// The sizes of all axes.
    pub fn sizes(&self) -> MeshSizes {
        self.sizes
    }

    /// The order in which ranks are numbered.
    pub fn order(&self) -> RankOrder {
        self.order
    }

    /// The rank at the first position.
    pub(crate) fn first(&self) -> usize {
        self.ranks[0]
    }

    /// Where a rank stands.
    ///
    /// # Panics
    ///
    /// When there is no such rank.
    pub fn coordinate(&self, rank: usize) -> Coordinate {
        let position = self.position(rank);
        let at = |axis| self.number(position, axis);
        Coordinate {
            data: at(Axis::Data),
            pipeline: at(Axis::Pipeline),
            tensor: at(Axis::Tensor),
            expert: at(Axis::Expert),
            expert_data: at(Axis::ExpertData),
        }
    }

    /// The ranks of the group along `axis` that `rank` is in, in the order of their coordinates.
    ///
    /// # Panics
    ///
    /// When there is no such rank.
    pub fn group(&self, axis: Axis, rank: usize) -> Vec<usize> {
        let mut position = self.position(rank);
        // Back to the group's first member, then through all values of the axis' digits.
        for digit in axis.digits() {
            position -= self.value(position, *digit) * self.stride(*digit);
        }
        (0..self.size(axis)).map(|number| self.ranks[position + self.offset(axis, number)]).collect()
    }

    /// The number of the group along `axis` that `rank` is in, counted from 0: ranks of one group
    /// have the same, ranks of different groups different ones.
    ///
    /// # Panics
    ///
    /// When there is no such rank.
    pub fn color(&self, axis: Axis, rank: usize) -> usize {
        let position = self.position(rank);
        let others = self.digits().into_iter().filter(|digit| !axis.digits().contains(digit));
        others.fold(0, |color, digit| color * self.sizes.digit(digit) + self.value(position, digit))
    }

    /// All groups along `axis`, in the order of their [`color`](Self::color)s.
    pub fn groups(&self, axis: Axis) -> Vec<Vec<usize>> {
        let mut groups = vec![Vec::new(); self.world_size() / self.size(axis)];
        for rank in &self.ranks {
            let group = &mut groups[self.color(axis, *rank)];
            if group.is_empty() {
                *group = self.group(axis, *rank);
            }
        }
        groups
    }

    fn position(&self, rank: usize) -> usize {
        assert!(rank < self.world_size(), "rank {rank} is not in a mesh of {} ranks", self.world_size());
        self.positions[rank]
    }

    /// The digits of a position, slowest first.
    fn digits(&self) -> [Digit; 4] {
        match self.order {
            RankOrder::DataPipelineTensor => [Digit::ExpertData, Digit::Expert, Digit::Pipeline, Digit::Tensor],
            RankOrder::PipelineDataTensor => [Digit::Pipeline, Digit::ExpertData, Digit::Expert, Digit::Tensor],
        }
    }

    /// How far apart two positions are that differ by one in this digit.
    fn stride(&self, digit: Digit) -> usize {
        let faster = self.digits().into_iter().rev().take_while(|other| *other != digit);
        faster.map(|other| self.sizes.digit(other)).product()
    }

    fn value(&self, position: usize, digit: Digit) -> usize {
        position / self.stride(digit) % self.sizes.digit(digit)
    }

    /// The coordinate on an axis: its digits as one number.
    fn number(&self, position: usize, axis: Axis) -> usize {
        let digits = axis.digits().iter();
        digits.fold(0, |number, digit| number * self.sizes.digit(*digit) + self.value(position, *digit))
    }

    /// How far the member with this coordinate stands from the group's first: the way back from
    /// [`number`](Self::number).
    fn offset(&self, axis: Axis, mut number: usize) -> usize {
        let mut offset = 0;
        for digit in axis.digits().iter().rev() {
            offset += number % self.sizes.digit(*digit) * self.stride(*digit);
            number /= self.sizes.digit(*digit);
        }
        offset
    }
}
