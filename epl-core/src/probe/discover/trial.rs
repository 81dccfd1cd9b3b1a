//! A segment that is run whole, or as a rank would run it in slices.

use core::convert::Infallible;
use std::collections::HashSet;

use burn::module::Param;
use burn::tensor::{Device, Gradients, Tensor};
use epl_comm::{catch, shard_range};

use super::numbers::{entrance, leaf, tensor, with_numbers};
use crate::model::carry::{Carry, CarryMapper};
use crate::model::context::{Context, without_context};
use crate::model::generator::{Seeds, watched};
use crate::model::segment::Model;
use crate::params::walk::{self, At, Visit};
use crate::params::{Cut, ParamRecord};
use crate::plan::split::{SliceOf, terms, without_cut};
use crate::plan::{ExitSplit, SegmentSplit};
use crate::stable_hash::stable_hash;
use crate::topology::cluster::Axis;

/// A segment that is looked at.
pub(super) struct Subject<'a, M: Model> {
    /// Without values.
    pub model: &'a M,
    /// In which nothing of the segment is cut.
    pub records: &'a [ParamRecord],
    pub segment: usize,
    pub context: &'a Context,
    pub device: &'a Device,
    /// Its floats are f64.
    pub batch: &'a M::Batch,
    /// What enters in a model of numbers.
    pub enters: Option<M::Carry>,
}

/// With which numbers a segment is run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draw {
    pub number: u64,
    /// Their magnitude.
    pub scale: f64,
    /// Whether what enters is what a model of numbers has there, and not numbers, too.
    pub own_carry: bool,
}

/// A tensor in host memory.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Values {
    pub dims: Vec<usize>,
    pub data: Vec<f64>,
}

/// What leaves a segment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Exit {
    /// The numbers of parts, where they may vary.
    pub counts: Vec<usize>,
    pub tensors: Vec<Values>,
}

/// Why a layer is refused that would do something else the second time.
const ASKS: &str = "a layer of it draws random numbers for the samples, or tells or keeps something; make the layer a segment of its \
                    own";

/// How often at most it is run to see whether it draws.
const RUNS: usize = 4;

/// What a forward and backward gave.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub exit: Exit,
    /// Of what enters, and then of the segment's parameters in the order of their records; none where there is none.
    pub gradients: Vec<Option<Values>>,
}

/// Why a trial gave nothing.
pub(super) type Failed = String;

impl<M: Model> Subject<'_, M> {
    /// The records of its parameters.
    pub fn own(&self) -> impl Iterator<Item = &ParamRecord> {
        self.records.iter().filter(|record| record.segments.contains(&self.segment))
    }

    /// Runs all of it, and refuses what would do something else when it is run again.
    pub fn first(&self, draw: Draw) -> Result<Outcome, Failed> {
        let seeds = Seeds { own: 0, after: 0 };
        let run = || self.context.world().record(|| self.whole(draw));
        // Of a process's generator another thread may have drawn: what draws itself does so each time.
        let mut ran = watched(self.device, seeds, run);
        for _ in 1..RUNS {
            if !ran.1 {
                break;
            }
            ran = watched(self.device, seeds, run);
        }
        let ((outcome, results), draws) = ran;
        match outcome {
            Ok(_) if draws => Err("it draws random numbers; make what draws a segment of its own".to_string()),
            Ok(_) if results.bytes() > 0 => Err("it calls other ranks".to_string()),
            Err(why) if why.contains(ASKS) => Err(why),
            Err(why) => {
                // A constant of the layers' own, or one that Burn makes.
                let is_type = ["F32", "f32", "dtype", "DType"].iter().any(|word| why.contains(word));
                let of_type = if is_type { "; give its constants the type of what enters" } else { "" };
                Err(format!("it does not run by itself in f64: {why}{of_type}"))
            }
            outcome => outcome,
        }
    }

    /// Runs all of it.
    pub fn whole(&self, draw: Draw) -> Result<Outcome, Failed> {
        let model = self.with_numbers(draw, self.records);
        let enters = self.entrance(draw);
        self.outcome(draw, (&model, enters), None, |model, carry| {
            model.forward_segment(self.segment, carry, self.batch)
        })
    }

    /// Runs what a rank would: what it adds to what leaves.
    pub fn slice(&self, draw: Draw, split: &SegmentSplit, of: SliceOf) -> Result<Outcome, Failed> {
        let records = cut_records(self.records, (self.segment, split.extent), of);
        let model = self.with_numbers(draw, &records);
        let enters = self.entrance(draw);
        self.outcome(draw, (&model, enters), Some((split, of)), |model, carry| {
            terms((split, of), &records, self.segment, model, carry, self.batch)
        })
    }

    /// What a rank's slices return.
    pub fn returned(&self, draw: Draw, extent: usize, of: SliceOf) -> Result<Exit, Failed> {
        self.exit(draw, (extent, of), |model, _| model)
    }

    /// What zeros in the place of any rank's slices return, if they can be run.
    pub fn base(&self, draw: Draw, extent: usize, ranks: usize) -> Result<Exit, Failed> {
        let without = |model, records: &[ParamRecord]| without_cut(model, records, self.segment);
        self.exit(draw, (extent, SliceOf { rank: 0, ranks }), without)
    }

    fn exit(
        &self,
        draw: Draw,
        (extent, of): (usize, SliceOf),
        change: impl FnOnce(M, &[ParamRecord]) -> M,
    ) -> Result<Exit, Failed> {
        let records = cut_records(self.records, (self.segment, extent), of);
        let model = change(self.with_numbers(draw, &records), &records);
        let exit = || model.forward_segment(self.segment, self.entrance(draw), self.batch);
        caught(|| Exit::of(&without_context(ASKS, exit)))
    }

    fn with_numbers(&self, draw: Draw, records: &[ParamRecord]) -> M {
        with_numbers(self.model.clone(), records, self.segment, (draw.number, draw.scale))
    }

    fn entrance(&self, draw: Draw) -> Option<M::Carry> {
        let scale = (!draw.own_carry).then_some(draw.scale);
        self.enters.clone().map(|carry| entrance(carry, draw.number, scale))
    }

    /// Runs it forward and backward, from what weighs each number that leaves by another number.
    fn outcome(
        &self,
        draw: Draw,
        (model, enters): (&M, Option<M::Carry>),
        split: Option<(&SegmentSplit, SliceOf)>,
        forward: impl FnOnce(&M, Option<M::Carry>) -> M::Carry,
    ) -> Result<Outcome, Failed> {
        caught(|| {
            let left = without_context(ASKS, || forward(model, enters.clone()));
            let exit = Exit::of(&left);
            let mut weighed = Weighed { number: draw.number, split, at: 0, root: None };
            let _ = left.map(&mut weighed);
            let mut taken =
                Taken { gradients: weighed.root.map(|root| root.backward()), own: self.segment, found: Vec::new() };
            let _ = enters.map(|carry| carry.map(&mut taken));
            let Ok(()) = walk::visit(model, self.records, &mut taken);
            Outcome { exit, gradients: taken.found }
        })
    }
}

/// The records, of which those of a segment are cut in all dims of an extent.
pub(super) fn cut_records(
    records: &[ParamRecord],
    (segment, extent): (usize, usize),
    SliceOf { rank, ranks }: SliceOf,
) -> Vec<ParamRecord> {
    let mut records = records.to_vec();
    for record in records.iter_mut().filter(|record| record.segments.contains(&segment)) {
        let dims = record.global_shape.iter().enumerate().filter(|(_, size)| **size == extent);
        let range = shard_range(extent, ranks, rank);
        record.cuts =
            dims.map(|(dim, _)| Cut { axis: Axis::Tensor, dim, parts: ranks, range: range.clone() }).collect();
    }
    records
}

/// How what was said of a panic begins.
pub(super) const PANICKED: &str = "a layer panicked: ";
/// So many letters of it.
const SAID: usize = 160;

/// Runs `f`; where it unwinds, what it says, on one line.
fn caught<T>(f: impl FnOnce() -> T) -> Result<T, Failed> {
    let shown = |error: epl_comm::Error| {
        let (begin, text) = match error {
            epl_comm::Error::Panic { message } => (PANICKED, message),
            other => ("", other.to_string()),
        };
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        format!("{begin}{}", words.chars().take(SAID).collect::<String>())
    };
    catch(f).map_err(shown)
}

impl Exit {
    fn of<C: Carry>(carry: &C) -> Self {
        let mut exit = Self::default();
        let _ = carry.clone().map(&mut exit);
        exit
    }
}

impl Outcome {
    /// Whether all of it are numbers.
    pub fn is_finite(&self) -> bool {
        self.exit.tensors.iter().chain(self.gradients.iter().flatten()).all(Values::is_finite)
    }

    /// The largest magnitude of all gradients.
    pub fn largest_gradient(&self) -> f64 {
        self.gradients.iter().flatten().map(Values::largest).fold(0.0, f64::max)
    }
}

impl CarryMapper for Exit {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.tensors.push(Values::of(tensor.clone()));
        tensor
    }

    fn count(&mut self, parts: usize) {
        self.counts.push(parts);
    }
}

impl Values {
    fn of<const D: usize>(tensor: Tensor<D>) -> Self {
        let dims = tensor.dims().to_vec();
        let plain = if tensor.is_autodiff() { tensor.inner() } else { tensor };
        Self { dims, data: plain.into_data().iter::<f64>().collect() }
    }

    fn is_finite(&self) -> bool {
        self.data.iter().all(|number| number.is_finite())
    }

    /// How many different numbers there are.
    pub fn distinct(&self) -> usize {
        self.data.iter().map(|number| number.to_bits()).collect::<HashSet<_>>().len()
    }

    /// The largest magnitude.
    pub fn largest(&self) -> f64 {
        self.data.iter().fold(0.0, |largest: f64, number| largest.max(number.abs()))
    }

    /// A range of a dim.
    pub fn part(&self, dim: usize, range: core::ops::Range<usize>) -> Self {
        let inner: usize = self.dims[dim + 1..].iter().product();
        let rows = self.data.chunks(self.dims[dim] * inner);
        let data = rows.flat_map(|rows| rows[range.start * inner..range.end * inner].to_vec()).collect();
        let mut dims = self.dims.clone();
        dims[dim] = range.len();
        Self { dims, data }
    }
}

/// A sum of what leaves, in which each number weighs what another number says.
struct Weighed<'a> {
    number: u64,
    split: Option<(&'a SegmentSplit, SliceOf)>,
    at: usize,
    root: Option<Tensor<1>>,
}

impl CarryMapper for Weighed<'_> {
    fn float<const D: usize>(&mut self, left: Tensor<D>) -> Tensor<D> {
        let at = self.at;
        self.at += 1;
        if !left.is_tracked() {
            return left;
        }
        let mut dims = left.dims().to_vec();
        let sliced = self.split.filter(|(split, _)| split.exits.get(at) == Some(&ExitSplit::Slices));
        if let Some((split, _)) = sliced {
            dims[D - 1] = split.extent;
        }
        let seed = stable_hash(&("weights", self.number, at as u64));
        let mut weights = tensor::<D>(("weights", seed), 1.0, &dims, &left.device());
        if let Some((split, of)) = sliced {
            weights = weights.slice_dim(D - 1, shard_range(split.extent, of.ranks, of.rank));
        }
        let sum = (left.clone() * leaf(weights, &left.device(), false)).sum();
        self.root = Some(match self.root.take() {
            Some(root) => root + sum,
            None => sum,
        });
        left
    }
}

/// Takes the gradients of leaves.
struct Taken {
    gradients: Option<Gradients>,
    /// The segment whose parameters count.
    own: usize,
    found: Vec<Option<Values>>,
}

impl Taken {
    fn take<const D: usize>(&mut self, leaf: &Tensor<D>) {
        let gradients = self.gradients.as_ref().filter(|_| leaf.is_autodiff());
        self.found.push(gradients.and_then(|gradients| leaf.grad(gradients)).map(Values::of));
    }
}

impl CarryMapper for Taken {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.take(&tensor);
        tensor
    }
}

impl Visit for Taken {
    type Error = Infallible;

    fn float<const D: usize>(&mut self, At { record, .. }: At<'_>, param: &Param<Tensor<D>>) -> Result<(), Infallible> {
        if record.segments.contains(&self.own) {
            self.take(&param.base());
        }
        Ok(())
    }
}
