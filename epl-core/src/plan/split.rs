//! Segments that run in slices, though nothing in them knows of the tensor axis: found by
//! [`LazyModel::discover`](crate::LazyModel::discover), and run here.
//!
//! ```text
//!                ┌▶ [ segment, this rank's slices of some parameters ] ──▶ y_r ─┐
//! what enters ───┤                                                             ├▶ y_r − y₀·(t−1)/t ── all-reduce ──▶ y
//!                └▶ [ segment, zeros in the place of these ] ────────────▶ y₀ ─┘
//!
//! backward: of what enters, and of the parameters that are not cut, each of the t ranks has a term of the gradient,
//! which are summed in one all-reduce; that of a slice is this rank's alone
//! ```
//!
//! y₀ is what every rank has in full, such as a residual or a bias. Segments without it run once, and those whose results are
//! slices end with an all-gather. One all-reduce for all gradients, and not one for each tensor: they are needed at the same time,
//! and most of them are small.

use core::convert::Infallible;
use core::fmt;

use burn::backend::DispatchTensor;
use burn::module::{Module, Param};
use burn::tensor::{DType, Gradients, Shape, Tensor};
use epl_comm::{Partial, ProcessGroup, ReduceOp, Split, custom_vjp};

use super::finding::{ExitSplit, SegmentSplit, SplitFinding};
use super::resolved::Plan;
use crate::error::Result;
use crate::model::carry::{Carry, CarryMapper};
use crate::model::context::Context;
use crate::model::precision::{in_wide, wide, widen};
use crate::model::segment::Model;
use crate::params::walk::{self, At, Change, Visit};
use crate::params::{ParamRecord, with};
use crate::topology::cluster::Axis;

/// A rank among those that have the slices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SliceOf {
    pub rank: usize,
    pub ranks: usize,
}

impl Plan {
    /// What was found of each segment, in their order; nothing where nobody looked.
    pub fn findings(&self) -> &[SplitFinding] {
        &self.findings
    }

    /// How a segment is run in slices, if it was found to.
    pub(crate) fn split_of(&self, segment: usize) -> Option<&SegmentSplit> {
        match self.findings.get(segment)? {
            SplitFinding::Split(split) => Some(split),
            SplitFinding::Whole(_) => None,
        }
    }

    /// Runs a segment's forward: its own where it is whole or its layers divide themselves. Collective where it was found to run
    /// in slices.
    pub(crate) fn forward<M: Model>(
        &self,
        context: &Context,
        model: &M,
        segment: usize,
        carry: Option<M::Carry>,
        batch: &M::Batch,
    ) -> M::Carry {
        let Some(split) = self.split_of(segment) else { return model.forward_segment(segment, carry, batch) };
        let group = context.axis(Axis::Tensor);
        let of = SliceOf { rank: group.rank(), ranks: group.size() };
        let terms = terms((split, of), self.records(), segment, model, carry, batch);
        terms.map(&mut Join { exits: split.exits.iter(), extent: split.extent, group })
    }

    /// Sums what the ranks have of the gradients of a segment that runs in slices: of what entered, and of the parameters that
    /// are not cut. Collective where it does.
    pub(crate) fn sum_gradients<M: Model>(
        &self,
        context: &Context,
        segment: usize,
        (model, entrance): (&M, Option<&M::Carry>),
        gradients: &mut Gradients,
    ) -> Result<()> {
        if self.split_of(segment).is_none() {
            return Ok(());
        }
        let mut terms = Terms { gradients, segment, flat: Vec::new(), sums: None };
        terms.over(self.records(), (model, entrance));
        terms.sums = Some(summed(core::mem::take(&mut terms.flat), context.axis(Axis::Tensor))?.into_iter());
        terms.over(self.records(), (model, entrance));
        Ok(())
    }

    /// The model that ran the last segment as what is behind it sees it, the loss or who measures: where the segment was run in
    /// slices, without its parameters, so that nobody takes a slice for the whole.
    pub(crate) fn behind_last<M: Model>(&self, model: &M) -> Option<M> {
        let last = self.segments.len() - 1;
        self.split_of(last).map(|_| emptied(model.clone(), self.records(), last))
    }

    /// The lines of what was found.
    pub(super) fn fmt_findings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (segment, finding) in self.segments.iter().zip(self.findings()) {
            match finding {
                SplitFinding::Split(split) => writeln!(f, "  {segment} runs in slices: {split}")?,
                SplitFinding::Whole(why) => writeln!(f, "  {segment} is whole on each rank: {why}")?,
            }
        }
        Ok(())
    }
}

/// Runs a segment with this rank's slices, cut as the records say: what it adds to what leaves.
pub(crate) fn terms<M: Model>(
    (split, of): (&SegmentSplit, SliceOf),
    records: &[ParamRecord],
    segment: usize,
    model: &M,
    carry: Option<M::Carry>,
    batch: &M::Batch,
) -> M::Carry {
    // Before any rank is asked: who waits for a sum of other tensors would wait for another one.
    let returned = |model: &M, carry: Option<M::Carry>| {
        let carry = model.forward_segment(segment, carry, batch);
        let parts = Parts::of(&carry);
        parts.check(split);
        (carry, parts.tensors)
    };
    let base = match split.has_base() {
        true => returned(&without_cut(model.clone(), records, segment), carry.clone()).1,
        false => Vec::new(),
    };
    let (own, _) = returned(model, carry);
    own.map(&mut OwnTerm { exits: split.exits.iter(), of, base: base.into_iter() })
}

/// What a carry is made of.
#[derive(Default)]
struct Parts {
    tensors: Vec<DispatchTensor>,
    /// The numbers of parts, where they may vary.
    counts: Vec<usize>,
}

impl Parts {
    fn of<C: Carry>(carry: &C) -> Self {
        let mut parts = Self::default();
        let _ = carry.clone().map(&mut parts);
        parts
    }

    /// Unwinds where these are not the tensors that were looked at: each is summed, joined or left by its place among them.
    fn check(&self, split: &SegmentSplit) {
        if (self.tensors.len(), &self.counts) != (split.exits.len(), &split.counts) {
            epl_comm::unwind(epl_comm::Error::invalid(format!(
                "a segment that runs in slices returns other tensors than when `discover` looked at it: {} in parts {:?}, and then \
                 {} in parts {:?}; let it return the same ones for every batch, give `discover` a sample for which it returns \
                 these, or leave `discover` out",
                self.tensors.len(),
                self.counts,
                split.exits.len(),
                split.counts
            )));
        }
    }
}

impl CarryMapper for Parts {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.tensors.push(tensor.clone().into_dispatch());
        tensor
    }

    fn count(&mut self, parts: usize) {
        self.counts.push(parts);
    }
}

/// Makes of what a rank's forward returned what it adds to the whole.
struct OwnTerm<'a> {
    exits: core::slice::Iter<'a, ExitSplit>,
    of: SliceOf,
    base: std::vec::IntoIter<DispatchTensor>,
}

impl CarryMapper for OwnTerm<'_> {
    fn float<const D: usize>(&mut self, own: Tensor<D>) -> Tensor<D> {
        let base = self.base.next();
        match (next(&mut self.exits), base) {
            (ExitSplit::Same, _) => counted_once(own, self.of.rank == 0),
            (ExitSplit::Sum | ExitSplit::Slices, _) => own,
            (ExitSplit::SumBesideBase, base) => {
                let base = Tensor::<D>::from_dispatch(base.expect("a base has the tensors that were looked at"));
                let most = (self.of.ranks - 1) as f64 / self.of.ranks as f64;
                match own.dtype() == wide(own.dtype()) {
                    true => own - base * most,
                    // Of 16 bits the difference is rounded once.
                    false => in_wide(own, |own| own - widen(base) * most),
                }
            }
        }
    }
}

/// Makes of the ranks' terms the whole.
struct Join<'a> {
    exits: core::slice::Iter<'a, ExitSplit>,
    extent: usize,
    group: &'a ProcessGroup,
}

impl CarryMapper for Join<'_> {
    fn float<const D: usize>(&mut self, term: Tensor<D>) -> Tensor<D> {
        match next(&mut self.exits) {
            ExitSplit::Same => term,
            ExitSplit::Sum | ExitSplit::SumBesideBase => Partial::from_local(term, self.group).all_reduce(),
            ExitSplit::Slices => Split::from_local(term, D - 1, self.extent, self.group).all_gather(),
        }
    }
}

/// What the next tensor is the whole of; their number was checked.
fn next(exits: &mut core::slice::Iter<'_, ExitSplit>) -> ExitSplit {
    *exits.next().expect("a carry hands out the same tensors each time it is mapped")
}

/// The tensor, whose gradient one rank alone hands on: all of them have the whole of it.
fn counted_once<const D: usize>(tensor: Tensor<D>, counts: bool) -> Tensor<D> {
    match counts {
        true => tensor,
        false => custom_vjp((tensor,), |(tensor,)| (tensor, ()), |(), gradient| (Some(gradient.zeros_like()),)),
    }
}

/// The gradients of a segment of which each rank has a term, in the order of the carry and then of the parameters.
struct Terms<'a> {
    gradients: &'a mut Gradients,
    segment: usize,
    /// What was taken.
    flat: Vec<Option<Tensor<1>>>,
    /// What is to be put back, once it is there.
    sums: Option<std::vec::IntoIter<Option<Tensor<1>>>>,
}

impl Terms<'_> {
    fn over<M: Model>(&mut self, records: &[ParamRecord], (model, entrance): (&M, Option<&M::Carry>)) {
        if let Some(entrance) = entrance {
            let _ = entrance.clone().map(self);
        }
        let Ok(()) = walk::visit(model, records, self);
    }

    fn one<const D: usize>(&mut self, leaf: &Tensor<D>) {
        match &mut self.sums {
            None => {
                let found = if leaf.is_autodiff() { leaf.grad_remove(self.gradients) } else { None };
                self.flat.push(found.map(|gradient| gradient.reshape([-1])));
            }
            Some(sums) => {
                if let Some(sum) = sums.next().flatten() {
                    leaf.grad_replace(self.gradients, sum.reshape(leaf.shape()));
                }
            }
        }
    }
}

impl CarryMapper for Terms<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.one(&tensor);
        tensor
    }
}

impl Visit for Terms<'_> {
    type Error = Infallible;

    fn float<const D: usize>(&mut self, At { record, .. }: At<'_>, param: &Param<Tensor<D>>) -> Result<(), Infallible> {
        if record.segments.contains(&self.segment) && !record.is_cut_over(Axis::Tensor) {
            self.one(&param.base());
        }
        Ok(())
    }
}

/// The sums over the ranks, by one all-reduce for each element type.
fn summed(terms: Vec<Option<Tensor<1>>>, group: &ProcessGroup) -> Result<Vec<Option<Tensor<1>>>> {
    let mut types: Vec<DType> = Vec::new();
    for dtype in terms.iter().flatten().map(Tensor::dtype) {
        if !types.contains(&dtype) {
            types.push(dtype);
        }
    }
    let mut sums: Vec<Option<Tensor<1>>> = vec![None; terms.len()];
    for dtype in types {
        let of_type = || terms.iter().enumerate().filter_map(|(at, term)| Some((at, term.as_ref()?)));
        let own: Vec<(usize, &Tensor<1>)> = of_type().filter(|(_, term)| term.dtype() == dtype).collect();
        let flat = Tensor::cat(own.iter().map(|(_, term)| (*term).clone()).collect(), 0);
        let mut sum = group.all_reduce(flat, ReduceOp::Sum)?;
        for (at, term) in own {
            let len = term.dims()[0];
            sums[at] = Some(sum.clone().slice([0..len]));
            let left = sum.dims()[0] - len;
            if left > 0 {
                sum = sum.slice([len..len + left]);
            }
        }
    }
    Ok(sums)
}

/// What stands in the place of some parameters of a segment.
struct Replace {
    segment: usize,
    /// Whether all of them are replaced, or those that are cut.
    all: bool,
}

/// The model, in which the parameters of a segment that are cut are zeros, in the cut dims of one alone: the segment then returns
/// what every rank has in full.
pub(crate) fn without_cut<M: Module>(model: M, records: &[ParamRecord], segment: usize) -> M {
    let Ok(model) = walk::change(model, records, &mut Replace { segment, all: false });
    model
}

/// The model, in which no parameter of a segment has an element.
pub(crate) fn emptied<M: Module>(model: M, records: &[ParamRecord], segment: usize) -> M {
    let Ok(model) = walk::change(model, records, &mut Replace { segment, all: true });
    model
}

impl Change for Replace {
    type Error = Infallible;

    fn float<const D: usize>(
        &mut self,
        At { record, .. }: At<'_>,
        param: Param<Tensor<D>>,
    ) -> Result<Param<Tensor<D>>, Infallible> {
        let cuts = record.cuts.iter().filter(|cut| cut.axis == Axis::Tensor);
        if !record.segments.contains(&self.segment) || (!self.all && cuts.clone().count() == 0) {
            return Ok(param);
        }
        let mut shape = if self.all { vec![0; D] } else { record.shape() };
        cuts.filter(|_| !self.all).for_each(|cut| shape[cut.dim] = 1);
        let base = param.base();
        let options = (base.device().without_autodiff(), base.dtype());
        Ok(with(param, Tensor::zeros(Shape::from(shape), (&options.0, options.1)), false))
    }
}
