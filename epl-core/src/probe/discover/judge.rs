//! What a segment's runs say of an extent.

use std::collections::BTreeMap;

use epl_comm::shard_range;

use super::trial::{Draw, Exit, Failed, Outcome, PANICKED, Subject, Values};
use crate::model::segment::Model;
use crate::params::ParamRecord;
use crate::plan::split::SliceOf;
use crate::plan::{ExitSplit, SegmentSplit};

/// Up to which all that leaves must agree, in proportion to the largest of its tensor.
const BOUND: f64 = 1e-10;
/// Up to which gradients must. Some layers round to f32 inside, as `RmsNorm`: forward all slices round the same numbers, and
/// backward each its own. What is not the gradient of the same function is off by more.
const GRADIENT_BOUND: f64 = 1e-5;
/// What leaves and is off by no more may be right, and rounded to f32.
const ROUNDED: f64 = 1e-5;
/// Gradients that are zero but for roundings are compared in proportion to this part of the largest of all; a parameter whose
/// gradient is never more than that was not seen to count.
const FLOOR: f64 = 1e-4;
/// A bend, such as a clamp's, shows where numbers are large enough; one at zero, where there are many.
const SCALES: [f64; 4] = [1.0, 0.1, 10.0, 100.0];
/// How many different numbers leave at least, in all runs of one magnitude: of few, the signs may be alike by chance.
const ENOUGH: usize = 64;
/// So many runs of one magnitude are made at least, however large the segment is.
const LEAST_RUNS: usize = 4;
/// More are made as long as they have no more elements of parameters, together.
const WORK: usize = 1 << 26;

/// So many of the runs are also made in other numbers of slices than there are ranks.
const OTHERS: usize = 2;

/// With what a segment is run first.
const FIRST: Draw = Draw { number: 0, scale: 1.0, own_carry: true };

/// What to do about a segment whose slices are not its parts.
const REMEDY: &str =
    "cut the segment before what mixes the slices, such as a norm or a softmax, or use the layers of `epl::nn`";

/// How a segment is run in so many slices.
///
/// # Errors
///
/// Why it is not.
pub(super) fn judged<M: Model>(subject: &Subject<'_, M>, ranks: usize) -> Result<SegmentSplit, Failed> {
    let extents = extents(subject.own(), ranks)?;
    let draw = FIRST;
    let first = subject.first(draw)?;
    if !first.is_finite() {
        return Err("some of what it returns, or its gradients, are no numbers".to_string());
    }
    if first.exit.tensors.iter().map(|tensor| tensor.data.len()).min().unwrap_or(0) == 0 {
        return Err("it returns nothing".to_string());
    }
    let mut reasons = Vec::new();
    for extent in extents {
        match looked_at(subject, extent, ranks, (draw, &first)) {
            Ok(split) => return Ok(split),
            Err(why) => reasons.push((why.starts_with(PANICKED), format!("cut by extent {extent}, {why}"))),
        }
    }
    // Layers that do not take slices say less than results that are other ones.
    reasons.sort_by_key(|(is_panic, _)| *is_panic);
    Err(reasons.swap_remove(0).1)
}

/// Whether a segment still runs in slices as it was found to, with its own numbers and once with numbers of each magnitude: which
/// they are depends on names alone, so that another function of the same parameters gives something else, and one that bends, such as
/// a clamp, does so where they are large.
pub(super) fn is_confirmed<M: Model>(subject: &Subject<'_, M>, split: &SegmentSplit, ranks: usize) -> bool {
    let draw = FIRST;
    let confirmed = || {
        let first = subject.first(draw)?;
        let exits = kinds(subject, draw, split.extent, ranks, &first.exit)?;
        if exits != split.exits || first.exit.counts != split.counts {
            return Ok(false);
        }
        compared(subject, split, (draw, &first), of_scales(1), |_| vec![ranks])?;
        Ok::<_, Failed>(true)
    };
    extents(subject.own(), ranks).is_ok_and(|extents| extents.contains(&split.extent)) && confirmed() == Ok(true)
}

/// The extents by which the parameters of a segment may be cut, the one that cuts most first.
fn extents<'a>(own: impl Iterator<Item = &'a ParamRecord>, ranks: usize) -> Result<Vec<usize>, Failed> {
    /// What would be cut.
    #[derive(Default)]
    struct Cut {
        elements: usize,
        /// Whether it is more than vectors.
        is_matrix: bool,
        /// Whether one of them may not be.
        is_refused: bool,
    }
    let mut cuts = BTreeMap::<usize, Cut>::new();
    for record in own {
        let shape = &record.global_shape;
        for (dim, extent) in shape.iter().copied().enumerate().filter(|(_, extent)| *extent >= ranks) {
            let cut = cuts.entry(extent).or_default();
            cut.elements += record.global_numel();
            cut.is_matrix |= shape.len() > 1;
            // Blocks beside the diagonal would be nobody's; and a slice is read by this segment alone.
            cut.is_refused |= shape[..dim].contains(&extent) || record.segments.len() > 1;
            // Not every device checks whether a row that is looked up is one of the slice.
            cut.is_refused |= record.table && dim == 0;
        }
    }
    let mut left: Vec<(usize, usize)> = cuts
        .into_iter()
        .filter(|(_, cut)| cut.is_matrix && !cut.is_refused)
        .map(|(extent, cut)| (cut.elements, extent))
        .collect();
    left.sort_unstable_by(|one, other| other.cmp(one));
    match left.is_empty() {
        true => Err(format!(
            "no extent of its matrices can be cut in {ranks}: each is too small, twice in one of them, the number of rows of a \
             table, or that of a parameter of several segments"
        )),
        false => Ok(left.into_iter().map(|(_, extent)| extent).collect()),
    }
}

/// How a segment is run whose dims of an extent are cut.
fn looked_at<M: Model>(
    subject: &Subject<'_, M>,
    extent: usize,
    ranks: usize,
    (draw, first): (Draw, &Outcome),
) -> Result<SegmentSplit, Failed> {
    let mixed = |why: Failed| format!("{why}; {REMEDY}");
    let exits = kinds(subject, draw, extent, ranks, &first.exit).map_err(mixed)?;
    let split = SegmentSplit { extent, exits, counts: first.exit.counts.clone() };
    if split.exits.iter().all(|exit| *exit == ExitSplit::Same) {
        return Err(match first.exit.tensors.iter().all(|tensor| tensor.distinct() == 1) {
            true => format!(
                "what it returns is {} everywhere, of which it is not known on what it depends; give a sample in which it varies",
                first.exit.tensors[0].data[0]
            ),
            false => mixed("nothing that it returns depends on it".to_string()),
        });
    }
    let others = |at: usize| [2, 3].into_iter().filter(move |count| *count != ranks && *count <= extent && at < OTHERS);
    let counts = |at: usize| [ranks].into_iter().chain(others(at)).collect();
    compared(subject, &split, (draw, first), draws(subject, &split, &first.exit), counts)?;
    Ok(split)
}

/// Compares slices and the whole, of a first run and of others, in as many slices as `counts` says of each run.
fn compared<M: Model>(
    subject: &Subject<'_, M>,
    split: &SegmentSplit,
    (draw, first): (Draw, &Outcome),
    more: impl Iterator<Item = Draw>,
    counts: impl Fn(usize) -> Vec<usize>,
) -> Result<(), Failed> {
    let mut shown = Shown::of(first);
    for (at, draw) in [draw].into_iter().chain(more).enumerate() {
        let again = (at > 0).then(|| subject.whole(draw)).transpose();
        let again = again.map_err(|why| format!("it does not run on other numbers: {why}"))?;
        let whole = again.as_ref().unwrap_or(first);
        match whole.is_finite() {
            true => shown.add(whole),
            // What overflows is not compared.
            false if draw.scale != 1.0 => continue,
            false => return Err("of some numbers it makes what is none".to_string()),
        }
        for ranks in counts(at) {
            agree(subject, split, draw, (whole, ranks)).map_err(|why| format!("{why}; {REMEDY}"))?;
        }
    }
    shown.check(subject, split)
}

/// The runs behind the first one: numbers of all magnitudes.
fn draws<M: Model>(subject: &Subject<'_, M>, split: &SegmentSplit, exit: &Exit) -> impl Iterator<Item = Draw> {
    let compared = split.exits.iter().zip(&exit.tensors).filter(|(kind, _)| **kind != ExitSplit::Same);
    let least = compared.map(|(_, tensor)| tensor.distinct()).min().unwrap_or(1).max(1);
    let elements: usize = subject.own().map(ParamRecord::global_numel).sum();
    let most = (WORK / elements.max(1)).clamp(LEAST_RUNS, ENOUGH);
    of_scales(ENOUGH.div_ceil(least).min(most) as u64)
}

/// So many draws of each magnitude.
fn of_scales(each: u64) -> impl Iterator<Item = Draw> {
    let of_scale = move |(at, scale): (usize, f64)| {
        (0..each).map(move |number| Draw { number: 1 + at as u64 * each + number, scale, own_carry: false })
    };
    SCALES.into_iter().enumerate().flat_map(of_scale)
}

/// What the runs have shown to count: what does not, such as queries of one key, or a branch behind a mask of zeros, may be mixed
/// or not.
struct Shown {
    /// By parameter and what enters, in the order of [`Outcome::gradients`]: whether it has a gradient, and whether that was ever more
    /// than a rounding.
    gradients: Vec<[bool; 2]>,
    /// By tensor that leaves: a number of it, and whether there was another one.
    exits: Vec<(f64, bool)>,
}

impl Shown {
    fn of(first: &Outcome) -> Self {
        let begin = |tensor: &Values| (tensor.data[0], false);
        Self {
            gradients: vec![[false; 2]; first.gradients.len()],
            exits: first.exit.tensors.iter().map(begin).collect(),
        }
    }

    fn add(&mut self, whole: &Outcome) {
        let floor = FLOOR * whole.largest_gradient();
        for ([has, shown], gradient) in self.gradients.iter_mut().zip(&whole.gradients) {
            *has |= gradient.is_some();
            *shown |= gradient.as_ref().is_some_and(|gradient| gradient.largest() > floor);
        }
        for ((one, varies), tensor) in self.exits.iter_mut().zip(&whole.exit.tensors) {
            *varies |= tensor.data.iter().any(|number| number != one);
        }
    }

    fn check<M: Model>(&self, subject: &Subject<'_, M>, split: &SegmentSplit) -> Result<(), Failed> {
        let entered = self.gradients.len() - subject.own().count();
        if let Some((record, [has, _])) = subject.own().zip(&self.gradients[entered..]).find(|(_, [_, shown])| !shown) {
            return Err(match has {
                true => format!(
                    "the sample does not exercise `{}`, whose gradient is zero in all runs; give one in which it counts (several \
                     positions, which differ, and masks that let some through), or leave out what never counts, as a bias that a \
                     softmax or a norm cancels (`with_bias(false)`)",
                    record.name
                ),
                false => format!(
                    "the sample does not exercise `{}`, which has no gradient: it is not used, or behind a `detach`; make a segment \
                     of its own of what uses it",
                    record.name
                ),
            });
        }
        let is_unknown = |(kind, (_, varies)): &(&ExitSplit, &(f64, bool))| **kind == ExitSplit::Same && !varies;
        match split.exits.iter().zip(&self.exits).position(|exit| is_unknown(&exit)) {
            Some(number) => Err(format!(
                "tensor {number} that it returns is {} everywhere, of which it is not known on what it depends; give a sample in \
                 which it varies, or make it in the segment that uses it",
                self.exits[number].0
            )),
            None => Ok(()),
        }
    }
}

/// What each tensor that leaves is the whole of.
fn kinds<M: Model>(
    subject: &Subject<'_, M>,
    draw: Draw,
    extent: usize,
    ranks: usize,
    whole: &Exit,
) -> Result<Vec<ExitSplit>, Failed> {
    let is_alike = |exit: &Exit| exit.counts == whole.counts && exit.tensors.len() == whole.tensors.len();
    let together = |whole| Together::new(whole, ranks, columns(whole, extent), Values::largest(whole));
    let mut all: Vec<Together<'_>> = whole.tensors.iter().map(together).collect();
    for rank in 0..ranks {
        let slice = subject.returned(draw, extent, SliceOf { rank, ranks })?;
        if !is_alike(&slice) {
            return Err("it returns other tensors".to_string());
        }
        all.iter_mut().zip(&slice.tensors).for_each(|(all, slice)| all.add(rank, slice));
    }
    // Without what is cut, all ranks return the same.
    let base = subject.base(draw, extent, ranks).ok().filter(is_alike);
    let kind = |(at, all): (usize, &Together<'_>)| {
        all.kind(base.as_ref().map(|base| &base.tensors[at])).map_err(|error| {
            let what = "what it returns is neither the sum of what the slices return, nor these one after the other";
            format!("{what}{}", of_rounding(error))
        })
    };
    all.iter().enumerate().map(kind).collect()
}

/// The last dim of what leaves, if it has this extent, so that slices may lie there one after the other.
fn columns(whole: &Values, extent: usize) -> Option<usize> {
    whole.dims.last().filter(|last| **last == extent).map(|_| whole.dims.len() - 1)
}

/// What is said of a difference that is as small as what rounding makes.
fn of_rounding(error: f64) -> String {
    match error <= ROUNDED {
        true => format!(
            ", but is off by {error:.0e} alone: something in it computes in f32; give its constants, casts and sums the type of \
             what enters"
        ),
        false => String::new(),
    }
}

/// Whether what ranks make, joined as the engine joins it, is the whole; else what is not.
fn agree<M: Model>(
    subject: &Subject<'_, M>,
    split: &SegmentSplit,
    draw: Draw,
    (whole, ranks): (&Outcome, usize),
) -> Result<(), Failed> {
    let largest = whole.largest_gradient();
    let entered = whole.gradients.len() - subject.own().count();
    let names: Vec<_> = (0..entered).map(|_| None).chain(subject.own().map(Some)).collect();
    let exit = |whole| Together::new(whole, ranks, columns(whole, split.extent), Values::largest(whole));
    let mut exits: Vec<Together<'_>> = whole.exit.tensors.iter().map(exit).collect();
    // With whether each rank has one where the whole has.
    let mut gradients: Vec<(Option<Together<'_>>, bool)> = Vec::new();
    for (whole, record) in whole.gradients.iter().zip(&names) {
        let dim = record.and_then(|record| record.global_shape.iter().position(|size| *size == split.extent));
        let all = |whole| Together::new(whole, ranks, dim, Values::largest(whole).max(FLOOR * largest));
        gradients.push((whole.as_ref().map(all), true));
    }
    for rank in 0..ranks {
        let slice = subject.slice(draw, split, SliceOf { rank, ranks })?;
        exits.iter_mut().zip(&slice.exit.tensors).for_each(|(all, slice)| all.add(rank, slice));
        for ((all, is_alike), slice) in gradients.iter_mut().zip(&slice.gradients) {
            match (all, slice) {
                (Some(all), Some(slice)) => all.add(rank, slice),
                (None, None) => {}
                _ => *is_alike = false,
            }
        }
    }
    for (kind, all) in split.exits.iter().zip(&exits) {
        let error = all.error_as(*kind);
        if error > BOUND {
            return Err(format!("what it returns in {ranks} slices differs{}", of_rounding(error)));
        }
    }
    for ((all, is_alike), record) in gradients.iter().zip(names) {
        let error = match all {
            _ if !is_alike => f64::INFINITY,
            None => 0.0,
            Some(all) if all.dim.is_some() => all.joined,
            Some(all) => all.sum_error(),
        };
        if error > GRADIENT_BOUND {
            let of = record.map_or("what enters".to_string(), |record| format!("`{}`", record.name));
            return Err(format!("the gradient of {of}, off by {error:.0e}, in {ranks} slices differs"));
        }
    }
    Ok(())
}

/// A tensor, and what ranks have of it, of which each is dropped when it was added.
struct Together<'a> {
    whole: &'a Values,
    ranks: usize,
    /// The dim in which they may lie one after the other.
    dim: Option<usize>,
    /// To which a difference is in proportion.
    scale: f64,
    /// Whether each was the whole.
    is_same: bool,
    /// How far they were from the slices of the whole.
    joined: f64,
    /// Their sum; none where one has other dims.
    sum: Option<Vec<f64>>,
}

impl<'a> Together<'a> {
    fn new(whole: &'a Values, ranks: usize, dim: Option<usize>, scale: f64) -> Self {
        let joined = if dim.is_some() { 0.0 } else { f64::INFINITY };
        Self { whole, ranks, dim, scale, is_same: true, joined, sum: Some(vec![0.0; whole.data.len()]) }
    }

    fn add(&mut self, rank: usize, slice: &Values) {
        self.is_same &= slice == self.whole;
        if let Some(dim) = self.dim {
            let own = self.whole.part(dim, shard_range(self.whole.dims[dim], self.ranks, rank));
            let is_slice = own.dims == slice.dims;
            self.joined =
                worse(self.joined, if is_slice { error(&slice.data, &own, self.scale) } else { f64::INFINITY });
        }
        match &mut self.sum {
            Some(sum) if slice.dims == self.whole.dims => {
                sum.iter_mut().zip(&slice.data).for_each(|(sum, number)| *sum += number);
            }
            sum => *sum = None,
        }
    }

    /// How far the sum is from the whole.
    fn sum_error(&self) -> f64 {
        self.sum.as_ref().map_or(f64::INFINITY, |sum| error(sum, self.whole, self.scale))
    }

    /// How far the whole is from what is made of terms of this kind.
    fn error_as(&self, kind: ExitSplit) -> f64 {
        match kind {
            ExitSplit::Same if self.is_same => 0.0,
            ExitSplit::Same => f64::INFINITY,
            ExitSplit::Slices => self.joined,
            ExitSplit::Sum | ExitSplit::SumBesideBase => self.sum_error(),
        }
    }

    /// What it is the whole of, where ranks without what is cut return `base`; else by how much it is not.
    fn kind(&self, base: Option<&Values>) -> Result<ExitSplit, f64> {
        if self.is_same {
            return Ok(ExitSplit::Same);
        }
        let Some(sum) = &self.sum else {
            return if self.joined <= BOUND { Ok(ExitSplit::Slices) } else { Err(self.joined) };
        };
        let alone = self.sum_error();
        if alone <= BOUND {
            return Ok(ExitSplit::Sum);
        }
        let Some(base) = base.filter(|base| base.dims == self.whole.dims) else { return Err(alone) };
        let more = (self.ranks - 1) as f64;
        let beside: Vec<f64> = sum.iter().zip(&base.data).map(|(sum, base)| sum - more * base).collect();
        let beside = error(&beside, self.whole, self.scale);
        if beside <= BOUND { Ok(ExitSplit::SumBesideBase) } else { Err(alone.min(beside)) }
    }
}

/// The largest difference, in proportion to a scale.
fn error(found: &[f64], expected: &Values, scale: f64) -> f64 {
    if found.len() != expected.data.len() {
        return f64::INFINITY;
    }
    let largest = found.iter().zip(&expected.data).map(|(one, other)| (one - other).abs()).fold(0.0, worse);
    if largest == 0.0 { 0.0 } else { largest / scale }
}

/// The larger one; what is no number is worse than any.
fn worse(one: f64, other: f64) -> f64 {
    if one.is_nan() || other.is_nan() { f64::INFINITY } else { one.max(other) }
}
