//! The mesh: every rank's coordinate, and the ranks of every group.

use std::collections::BTreeSet;
use std::ops::Range;

use epl_comm::shard_range;

use super::axis::{Axis, Coordinate};
use super::block::Block;
use super::error::{ClusterError, Result};
use super::part::BatchPart;
use super::sizes::{MeshRequest, MeshSizes};
use super::workers::Cluster;
use crate::config::{Config, RankOrder};

/// The ranks, numbered along the axes.
///
/// ```
/// use epl_core::topology::cluster::{Axis, Mesh, MeshSizes, RankOrder};
///
/// # fn main() -> Result<(), epl_core::topology::cluster::ClusterError> {
/// // Two replicas of two stages with two slices each, in LiBai's order.
/// let mesh = Mesh::new(MeshSizes::new(2, 2, 2, 1)?, RankOrder::PipelineDataTensor);
/// assert_eq!(mesh.group(Axis::Data, 0), [0, 2]);
/// assert_eq!(mesh.group(Axis::Tensor, 0), [0, 1]);
/// assert_eq!(mesh.group(Axis::Pipeline, 0), [0, 4]);
/// # Ok(())
/// # }
/// ```
///
/// Where scopes give the stages different widths, the data and tensor groups of a rank are those of its own stage, and
/// its group along the pipeline axis is its whole replica, stage by stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// One block of all stages, or one a stage where they have different widths.
    blocks: Vec<Block>,
    /// The block of every rank, and its position there.
    positions: Vec<(usize, usize)>,
    /// In how many parts the batch is cut before devices of a stage divide them.
    replicas: usize,
    /// In which proportion, where they are not even.
    row_weights: Option<Vec<usize>>,
}

/// A stage, as the members of a group along the pipeline axis see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Width {
    /// Those of the members that run it.
    pub members: Range<usize>,
    /// How many of them, side by side, run the same rows.
    pub copies: usize,
}

impl Mesh {
    /// A mesh whose positions are the ranks' own numbers.
    pub fn new(sizes: MeshSizes, order: RankOrder) -> Self {
        Self::of_blocks(vec![Block::new(sizes, order, (0..sizes.world()).collect())], sizes.along(Axis::Data))
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
        Ok(Self::of_blocks(vec![Block::new(sizes, order, ranks)], sizes.along(Axis::Data)))
    }

    /// A mesh of stages, each with the sizes of its own axes and its ranks, replica by replica, of which there are
    /// `replicas`.
    ///
    /// # Errors
    ///
    /// More ranks than a mesh can have.
    pub(crate) fn of_stages(stages: Vec<(MeshSizes, Vec<usize>)>, replicas: usize, order: RankOrder) -> Result<Self> {
        let sizes = stages[0].0;
        if stages.iter().any(|(other, _)| *other != sizes) {
            let block = |(sizes, ranks)| Block::new(sizes, order, ranks);
            return Ok(Self::of_blocks(stages.into_iter().map(block).collect(), replicas));
        }
        let (data, tensor) = (sizes.along(Axis::Data), sizes.along(Axis::Tensor));
        let sizes = MeshSizes::new(data, stages.len(), tensor, 1)?;
        // Where each of a stage's ranks stands among those of all stages.
        let places = Mesh::new(sizes, order);
        let rank = |place| {
            let at = places.coordinate(place);
            stages[at.pipeline].1[at.data * tensor + at.tensor]
        };
        Ok(Self::of_blocks(vec![Block::new(sizes, order, (0..sizes.world()).map(rank).collect())], data))
    }

    fn of_blocks(blocks: Vec<Block>, replicas: usize) -> Self {
        let mut positions = vec![(0, 0); blocks.iter().map(|block| block.ranks().len()).sum()];
        for (number, block) in blocks.iter().enumerate() {
            block.ranks().iter().enumerate().for_each(|(position, rank)| positions[*rank] = (number, position));
        }
        Self { blocks, positions, replicas, row_weights: None }
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
        let mesh = Self::over(cluster, sizes, config.dist.order, config.cluster.device_place_prefer_intra_node)?;
        Ok(mesh.with_row_weights(config.io.row_weights.clone()))
    }

    /// The same, where the rows of a batch are divided over the replicas in this proportion.
    pub(crate) fn with_row_weights(self, row_weights: Option<Vec<usize>>) -> Self {
        Self { row_weights, ..self }
    }

    /// In which proportion the rows of a batch are divided over the replicas; none: evenly.
    ///
    /// # Errors
    ///
    /// When the proportion is of another number of replicas, or gives none of them a row.
    pub fn row_weights(&self) -> Result<Option<&[usize]>> {
        match &self.row_weights {
            Some(weights) if weights.len() != self.replicas || weights.iter().all(|weight| *weight == 0) => {
                Err(ClusterError::RowWeights { weights: weights.clone(), replicas: self.replicas })
            }
            weights => Ok(weights.as_deref()),
        }
    }

    /// The part of a batch that is a replica's, where they do not divide it evenly.
    ///
    /// # Errors
    ///
    /// As [`row_weights`](Self::row_weights).
    ///
    /// # Panics
    ///
    /// When there is no such replica.
    pub(crate) fn batch_part(&self, replica: usize) -> Result<Option<BatchPart>> {
        Ok(self.row_weights()?.map(|weights| BatchPart::new(weights, replica)))
    }

    /// Ranks.
    pub fn world_size(&self) -> usize {
        self.positions.len()
    }

    /// The size of an axis: the number of ranks in each of its groups; of the largest, where stages have different
    /// widths.
    pub fn size(&self, axis: Axis) -> usize {
        match axis {
            Axis::Pipeline if self.is_bridged() => self.world_size() / self.replicas,
            axis => self.blocks.iter().map(|block| block.sizes().along(axis)).max().unwrap_or(1),
        }
    }

    /// The sizes of all axes; where stages have different widths, of the first stage alone.
    pub fn sizes(&self) -> MeshSizes {
        self.blocks[0].sizes()
    }

    /// The sizes of the data, tensor and expert axes in a stage.
    pub(crate) fn sizes_in(&self, stage: usize) -> MeshSizes {
        self.blocks.get(stage).unwrap_or(&self.blocks[0]).sizes()
    }

    /// The order in which ranks are numbered.
    pub fn order(&self) -> RankOrder {
        self.blocks[0].order()
    }

    /// How many pipeline stages there are.
    pub fn stages(&self) -> usize {
        self.blocks.len() * self.sizes().along(Axis::Pipeline)
    }

    /// Whether stages have different widths, so that rows are gathered and divided anew between them.
    pub fn is_bridged(&self) -> bool {
        self.blocks.len() > 1
    }

    /// In how many parts a batch is cut, each of which goes through all stages. The devices of a stage may divide such
    /// a part among them: see [`device`](Self::device).
    pub fn replicas(&self) -> usize {
        self.replicas
    }

    /// How often the whole model exists: once on the ranks that divide its experts, or what is colocated with a split.
    pub(crate) fn model_replicas(&self) -> usize {
        if self.is_bridged() { self.replicas } else { self.sizes().along(Axis::ExpertData) }
    }

    /// Which of these parts a rank runs rows of.
    ///
    /// # Panics
    ///
    /// When there is no such rank.
    pub fn replica(&self, rank: usize) -> usize {
        self.replica_at(&self.coordinate(rank))
    }

    /// Which of the devices of its stage that divide a replica's rows a rank is, and how many there are.
    ///
    /// # Panics
    ///
    /// When there is no such rank.
    pub fn device(&self, rank: usize) -> (usize, usize) {
        let at = self.coordinate(rank);
        let devices = self.devices(at.pipeline);
        (at.data % devices, devices)
    }

    /// The rank at the first position.
    pub(crate) fn first(&self) -> usize {
        self.blocks[0].ranks()[0]
    }

    /// Where a rank stands.
    ///
    /// # Panics
    ///
    /// When there is no such rank.
    pub fn coordinate(&self, rank: usize) -> Coordinate {
        let (block, position) = self.position(rank);
        let at = self.blocks[block].coordinate(position);
        Coordinate { pipeline: at.pipeline + block, ..at }
    }

    /// The ranks of the group along `axis` that `rank` is in, in the order of their coordinates.
    ///
    /// # Panics
    ///
    /// When there is no such rank.
    pub fn group(&self, axis: Axis, rank: usize) -> Vec<usize> {
        match axis {
            Axis::Pipeline if self.is_bridged() => {
                let replica = self.replica(rank);
                self.blocks.iter().flat_map(|block| self.in_replica(block, replica)).copied().collect()
            }
            axis => {
                let (block, position) = self.position(rank);
                self.blocks[block].group(axis, position)
            }
        }
    }

    /// The position of `rank` in its group along `axis`.
    ///
    /// # Panics
    ///
    /// When there is no such rank.
    pub(crate) fn member(&self, axis: Axis, rank: usize) -> usize {
        let at = self.coordinate(rank);
        match axis {
            Axis::Pipeline => self.stage_member_at(&at),
            axis => at.along(axis),
        }
    }

    /// The number of the group along `axis` that `rank` is in, counted from 0: ranks of one group
    /// have the same, ranks of different groups different ones.
    ///
    /// # Panics
    ///
    /// When there is no such rank.
    pub fn color(&self, axis: Axis, rank: usize) -> usize {
        let (block, position) = self.position(rank);
        match axis {
            Axis::Pipeline if self.is_bridged() => self.replica(rank),
            axis => {
                let before: usize = self.blocks[..block].iter().map(|block| block.colors(axis)).sum();
                before + self.blocks[block].color(axis, position)
            }
        }
    }

    /// Whether all groups along each axis lie on as many of these hosts, in the same way: hosts have equally many ranks, behind each other,
    /// and a group lies inside one host, has one rank on each of its hosts, or has all ranks of an axis that these hosts have.
    pub(crate) fn lies_evenly(&self, host_of: &[usize]) -> bool {
        let ranks = || self.blocks.iter().flat_map(Block::ranks);
        let hosts: Vec<usize> = ranks().map(|rank| host_of[*rank]).collect();
        let runs: Vec<&[usize]> = hosts.chunk_by(PartialEq::eq).collect();
        if runs.len() == 1 {
            return true;
        }
        let [block] = &self.blocks[..] else { return false };
        let on_host = runs[0].len();
        let are_equal = runs.iter().all(|run| run.len() == on_host);
        let is_once = runs.iter().map(|run| run[0]).collect::<BTreeSet<_>>().len() == runs.len();
        let is_even = |axis: Axis| {
            let (apart, span) = block.extent(axis);
            span == apart
                || on_host.is_multiple_of(span)
                || apart.is_multiple_of(on_host)
                || on_host.is_multiple_of(apart) && span.is_multiple_of(on_host)
        };
        are_equal && is_once && Axis::ALL.into_iter().all(is_even)
    }

    /// All groups along `axis`, in the order of their [`color`](Self::color)s.
    pub fn groups(&self, axis: Axis) -> Vec<Vec<usize>> {
        let count = match axis {
            Axis::Pipeline if self.is_bridged() => self.replicas,
            axis => self.blocks.iter().map(|block| block.colors(axis)).sum(),
        };
        let mut groups = vec![Vec::new(); count];
        for rank in self.blocks.iter().flat_map(Block::ranks) {
            let group = &mut groups[self.color(axis, *rank)];
            if group.is_empty() {
                *group = self.group(axis, *rank);
            }
        }
        groups
    }

    /// Which members of a group along the pipeline axis run which stage.
    pub(crate) fn widths(&self) -> Vec<Width> {
        if !self.is_bridged() {
            return (0..self.stages()).map(|stage| Width { members: stage..stage + 1, copies: 1 }).collect();
        }
        let mut start = 0;
        let width = |block: &Block| {
            let members = start..start + block.ranks().len() / self.replicas;
            start = members.end;
            Width { members, copies: block.sizes().along(Axis::Tensor) }
        };
        self.blocks.iter().map(width).collect()
    }

    /// The replica of the rank at a coordinate.
    pub(crate) fn replica_at(&self, at: &Coordinate) -> usize {
        at.data / self.devices(at.pipeline)
    }

    /// The position of the rank at a coordinate in its group along the pipeline axis.
    pub(crate) fn stage_member_at(&self, at: &Coordinate) -> usize {
        if !self.is_bridged() {
            return at.pipeline;
        }
        let Width { members, copies } = &self.widths()[at.pipeline];
        members.start + at.data % self.devices(at.pipeline) * copies + at.tensor
    }

    /// The devices of a stage that divide a replica's rows.
    fn devices(&self, stage: usize) -> usize {
        self.sizes_in(stage).along(Axis::Data) / self.replicas
    }

    /// The rows of a replica, of a batch of so many: in the proportion that is given, or evenly.
    ///
    /// # Errors
    ///
    /// As [`row_weights`](Self::row_weights).
    pub(crate) fn rows_of_replica(&self, replica: usize, batch: usize) -> Result<Range<usize>> {
        let even = || shard_range(batch, self.replicas, replica);
        Ok(self.batch_part(replica)?.map_or_else(even, |part| part.rows(batch)))
    }

    /// The ranks of a stage in a replica: in a block of one stage the data digits are the slowest.
    fn in_replica<'a>(&self, block: &'a Block, replica: usize) -> &'a [usize] {
        let width = block.ranks().len() / self.replicas;
        &block.ranks()[replica * width..][..width]
    }

    fn position(&self, rank: usize) -> (usize, usize) {
        assert!(rank < self.world_size(), "rank {rank} is not in a mesh of {} ranks", self.world_size());
        self.positions[rank]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hosts along a group, in the order in which they come.
    fn pattern(group: &[usize], host_of: &[usize]) -> Vec<usize> {
        let mut known = Vec::new();
        let number = |rank: &usize| {
            let host = host_of[*rank];
            known.iter().position(|other| *other == host).unwrap_or_else(|| {
                known.push(host);
                known.len() - 1
            })
        };
        group.iter().map(number).collect()
    }

    #[test]
    fn members_of_stages_have_their_places_in_the_replica() {
        let stages = |widths: &[(usize, usize)], order: RankOrder| {
            let mut first = 0;
            let stage = |(data, tensor): &(usize, usize)| {
                let ranks: Vec<usize> = (first..first + data * tensor).collect();
                first += ranks.len();
                (MeshSizes::new(*data, 1, *tensor, 1).unwrap(), ranks)
            };
            Mesh::of_stages(widths.iter().map(stage).collect(), 2, order).unwrap()
        };
        for order in [RankOrder::PipelineDataTensor, RankOrder::DataPipelineTensor] {
            // Each of two replicas: two devices that divide its rows, two slices, three devices; or two slices in all stages.
            let [unlike, alike] = [stages(&[(4, 1), (2, 2), (6, 1)], order), stages(&[(2, 2); 3], order)];
            assert_eq!([unlike.is_bridged(), alike.is_bridged()], [true, false]);
            for mesh in [unlike, alike] {
                for rank in 0..mesh.world_size() {
                    let place = mesh.group(Axis::Pipeline, rank).iter().position(|other| *other == rank);
                    assert_eq!(Some(mesh.member(Axis::Pipeline, rank)), place, "rank {rank} of {mesh:?}");
                }
            }
        }
    }

    #[test]
    fn where_groups_lie_evenly_all_have_one_pattern() {
        let mut even = [0; 2];
        for hosts in [vec![8], vec![4, 4], vec![6, 6], vec![4, 4, 4], vec![2, 6], vec![2; 6], vec![1, 1, 3, 3]] {
            let of = |(host, ranks): (usize, &usize)| std::iter::repeat_n(host, *ranks);
            let host_of: Vec<usize> = hosts.iter().enumerate().flat_map(of).collect();
            let world = host_of.len();
            let sizes = (1..=world).flat_map(|tensor| (1..=world).map(move |stages| (tensor, stages)));
            for (tensor, stages) in sizes.filter(|(tensor, stages)| world.is_multiple_of(tensor * stages)) {
                let data = world / tensor / stages;
                for expert in (1..=data).filter(|expert| data.is_multiple_of(*expert)) {
                    for order in [RankOrder::DataPipelineTensor, RankOrder::PipelineDataTensor] {
                        let mesh = Mesh::new(MeshSizes::new(data, stages, tensor, expert).unwrap(), order);
                        let patterns = |axis| mesh.groups(axis).into_iter().map(|group| pattern(&group, &host_of));
                        let is_one = |axis| patterns(axis).collect::<BTreeSet<_>>().len() == 1;
                        let lies = mesh.lies_evenly(&host_of);
                        even[usize::from(lies)] += 1;
                        assert!(!lies || Axis::ALL.into_iter().all(is_one), "{hosts:?} {mesh:?}");
                        // Where sizes are powers of two, groups always do.
                        assert!(lies || ![vec![8], vec![4, 4]].contains(&hosts), "{hosts:?} {mesh:?}");
                    }
                }
            }
        }
        assert!(even.iter().all(|count| *count > 20), "{even:?}");
    }
}
