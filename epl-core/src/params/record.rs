//! One record per parameter.

use std::ops::Range;

use burn::module::ParamId;
use burn::tensor::DType;

use crate::error::{Error, Result};
use crate::model::decay::MovingAverage;
use crate::schedule::Stages;
use crate::topology::cluster::{Axis, Coordinate};

/// A dim of a parameter that is divided over an axis of the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The axis over whose group the dim is divided.
    pub axis: Axis,
    /// The dim that is divided.
    pub dim: usize,
    /// Over how many ranks.
    pub parts: usize,
    /// What this rank holds of it.
    pub range: Range<usize>,
}

/// How a parameter is divided over the ranks that hold equal copies of it, as a member of a bucket that is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The elements of the flattened slice that each rank of the axis it is reduced over keeps, one after the other.
    pub sizes: Vec<usize>,
    /// Those that this rank keeps.
    pub range: Range<usize>,
}

/// Where the first values of a parameter come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamOrigin {
    /// From (seed, path), by the layer's own initializer.
    Drawn,
    /// It had values when the plan saw it; the first rank of its replicas sends them to the others.
    Broadcast,
}

/// What is known of one parameter.
#[derive(Clone, Debug)]
pub struct ParamRecord {
    /// The path in the module, such as `encoder.layers.0.attention.query.weight`.
    pub name: String,
    /// The identifier after initialisation: a hash of the path, the same on every rank.
    pub id: ParamId,
    /// The shape of the whole parameter.
    pub global_shape: Vec<usize>,
    /// The dims that are divided; none when every rank holds the whole.
    pub cuts: Vec<Cut>,
    /// The element type.
    pub dtype: DType,
    /// Whether it takes part in training.
    pub trainable: bool,
    /// Where its first values come from.
    pub origin: ParamOrigin,
    /// The segments that use it; several for a tied weight.
    pub segments: Vec<usize>,
    /// The pipeline stages that hold it: those of its segments.
    pub stages: Vec<usize>,
    /// Whether this rank's stage is one of them.
    pub held: bool,
    /// The number of its task graph, where scopes were opened.
    pub task_graph: Option<usize>,
    /// The number of its layer, where layers were numbered.
    pub layer_idx: Option<isize>,
    /// Whether it is a table that is looked up, an embedding.
    pub table: bool,
    /// Whether only some rows of its gradient are not zero, as those of an embedding: they may travel alone.
    pub sparse: bool,
    /// Whether its layer made it by [`Place`](crate::Place), as those of EPL do: it brings what it gets to the type of what it has.
    pub declared: bool,
    /// Whether it is computed with in 16 bits, under mixed precision.
    pub half: bool,
    /// What it is a moving average of, if it is one.
    pub average: Option<MovingAverage>,
    /// Whether this rank counts its elements, or those of its shard, in sums over all parameters, such as the norm.
    pub counted: bool,
    /// Whether it lies in shards between its uses, and is gathered for a segment that uses it.
    pub parked: bool,
    /// The elements whose state this rank keeps, and which it updates; none: it updates all, as every rank that holds it.
    pub shard: Option<Shard>,
}

impl ParamRecord {
    /// Whether it may lie elsewhere between its uses: small ones that have no gradient, such as running statistics, stay.
    pub(crate) fn may_park(&self) -> bool {
        self.trainable || self.global_shape.len() > 1
    }

    /// The shape that this rank holds.
    pub fn shape(&self) -> Vec<usize> {
        let mut shape = self.global_shape.clone();
        self.cuts.iter().for_each(|cut| shape[cut.dim] = cut.range.len());
        shape
    }

    /// The shape of what lies in this rank's model: nothing where another stage holds it, or it lies in shards.
    pub fn own_shape(&self) -> Vec<usize> {
        if self.held && !self.parked { self.shape() } else { vec![0; self.global_shape.len()] }
    }

    /// The elements of what this rank holds of it, flattened, whose state this rank keeps and which it updates.
    pub fn own_range(&self) -> Range<usize> {
        self.shard.as_ref().map_or(0..self.numel(), |shard| shard.range.clone())
    }

    /// Whether a tensor of the optimizer's state with this shape has an element for each that this rank updates.
    pub(crate) fn updates(&self, shape: &[usize]) -> bool {
        // Flat, where it is a shard or lies away from the device.
        let own = self.own_range().len();
        shape == [own] || (shape == self.shape() && own == self.numel())
    }

    /// The range of every dim that this rank holds.
    pub fn ranges(&self) -> Vec<Range<usize>> {
        let mut ranges: Vec<_> = self.global_shape.iter().map(|extent| 0..*extent).collect();
        self.cuts.iter().for_each(|cut| ranges[cut.dim] = cut.range.clone());
        ranges
    }

    /// The number of elements that this rank holds.
    pub fn numel(&self) -> usize {
        self.elements(|_, cut| cut.range.len())
    }

    /// The number of elements that the rank with the most holds: the same on every rank.
    pub fn largest_numel(&self) -> usize {
        self.elements(|extent, cut| extent.div_ceil(cut.parts))
    }

    /// The number of elements, where each cut makes of a dim's extent what `of` says.
    fn elements(&self, of: impl Fn(usize, &Cut) -> usize) -> usize {
        let extent = |(dim, whole): (usize, &usize)| self.cuts.iter().filter(|cut| cut.dim == dim).fold(*whole, &of);
        self.global_shape.iter().enumerate().map(extent).product()
    }

    /// The number of elements of the whole.
    pub fn global_numel(&self) -> usize {
        self.global_shape.iter().product()
    }

    /// Whether a dim is divided over `axis`.
    pub fn is_cut_over(&self, axis: Axis) -> bool {
        self.cuts.iter().any(|cut| cut.axis == axis)
    }

    /// Whether it is cut though its layer knows nothing of it, as [discovery](crate::LazyModel::discover) found it may be.
    pub(crate) fn is_cut_unknown(&self) -> bool {
        !self.declared && !self.cuts.is_empty()
    }

    /// The axis over which its gradient is summed: an expert is held by one rank of each expert group.
    pub fn reduced_over(&self) -> Axis {
        if self.is_cut_over(Axis::Expert) { Axis::ExpertData } else { Axis::Data }
    }

    /// The axes over which equal copies of what this rank holds exist.
    pub fn replicated_over(&self) -> Vec<Axis> {
        let mut axes = vec![self.reduced_over()];
        if !self.is_cut_over(Axis::Tensor) {
            axes.push(Axis::Tensor);
        }
        axes
    }

    /// Whether several stages hold it, so that its gradient is summed over them, too.
    pub fn is_tied_over_stages(&self) -> bool {
        self.stages.len() > 1
    }

    /// Reads from its segments which stages hold it, and whether `own` does; and which rank counts it.
    pub(crate) fn place(&mut self, stages: &Stages, coordinate: &Coordinate) {
        self.stages = stages.of_segments(&self.segments);
        self.held = self.stages.contains(&coordinate.pipeline);
        self.divide(None, coordinate);
    }

    /// Divides it over the ranks that it is reduced over, or not.
    pub(crate) fn divide(&mut self, shard: Option<Shard>, coordinate: &Coordinate) {
        let is_first = self.stages.first() == Some(&coordinate.pipeline);
        // A shard is on one rank only.
        let copied = |axis: &Axis| shard.is_none() || *axis != self.reduced_over();
        let axes: Vec<Axis> = self.replicated_over().into_iter().filter(copied).collect();
        self.counted = is_first && is_counted(&axes, coordinate);
        self.shard = shard;
    }

    /// The first segment that uses it: after this one's backward its gradient is final.
    pub fn first_segment(&self) -> usize {
        self.segments.iter().copied().min().unwrap_or(0)
    }
}

/// Refuses a parameter that stages of different widths hold in different slices: their gradients could not be summed.
pub(crate) fn check_bridged(records: &[ParamRecord]) -> Result<()> {
    let tied = |record: &&ParamRecord| record.held && record.is_tied_over_stages() && !record.cuts.is_empty();
    match records.iter().find(tied) {
        None => Ok(()),
        Some(record) => Err(Error::Parameter {
            name: record.name.clone(),
            reason: format!(
                "is used on the stages {:?}, whose scopes are of different widths, and one of them divides it over {} \
                 ranks: give these scopes as many devices, or each stage a parameter of its own",
                record.stages, record.cuts[0].parts
            ),
        }),
    }
}

/// Each element is counted by one rank alone: the first of every axis over which it is replicated.
fn is_counted(axes: &[Axis], coordinate: &Coordinate) -> bool {
    axes.iter().all(|axis| coordinate.along(*axis) == 0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// That of a parameter of one dim that a segment uses.
    pub(crate) fn record(segment: usize, numel: usize, expert: bool) -> ParamRecord {
        let cut = Cut { axis: Axis::Expert, dim: 0, parts: 1, range: 0..numel };
        ParamRecord {
            name: format!("segment{segment}"),
            id: ParamId::from(segment as u64),
            global_shape: vec![numel],
            cuts: if expert { vec![cut] } else { Vec::new() },
            dtype: DType::F32,
            trainable: true,
            origin: ParamOrigin::Drawn,
            segments: vec![segment],
            stages: vec![0],
            held: true,
            task_graph: None,
            layer_idx: None,
            table: false,
            sparse: false,
            declared: false,
            half: false,
            average: None,
            counted: true,
            parked: false,
            shard: None,
        }
    }

    #[test]
    fn elements_are_counted_as_the_shape_has_them() {
        let cut = |axis, dim, parts, range| Cut { axis, dim, parts, range };
        let of = |cuts| ParamRecord { global_shape: vec![7, 5, 3], cuts, ..record(0, 1, false) };
        let whole = of(Vec::new());
        assert_eq!((whole.numel(), whole.largest_numel()), (105, 105));
        // A dim may be cut twice: the last range is what lies there.
        let twice =
            of(vec![cut(Axis::Expert, 0, 2, 4..7), cut(Axis::Tensor, 0, 2, 6..7), cut(Axis::Tensor, 1, 2, 0..3)]);
        assert_eq!((twice.numel(), twice.shape()), (9, vec![1, 3, 3]));
        assert_eq!(twice.largest_numel(), 2 * 3 * 3);
    }
}
