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
/// Gradients that are zero but for roundings are compared in proportion to this part of the largest of all.
const FLOOR: f64 = 1e-4;
/// A bend, such as a clamp's, shows where numbers are large enough; one at zero, where there are many.
const SCALES: [f64; 4] = [1.0, 0.1, 10.0, 100.0];
/// How many numbers leave at least, in all runs of one magnitude: of few, the signs may be alike by chance.
const ENOUGH: usize = 64;

/// So many of the runs are also made in other numbers of slices than there are ranks.
const OTHERS: usize = 2;

/// What was run whole.
type Whole = (Draw, Outcome);

/// How a segment is run in so many slices.
///
/// # Errors
///
/// Why it is not.
pub(super) fn judged<M: Model>(subject: &Subject<'_, M>, ranks: usize) -> Result<SegmentSplit, Failed> {
    let extents = extents(subject.own(), ranks)?;
    let whole = whole(subject)?;
    let mut reasons = Vec::new();
    for extent in extents {
        match looked_at(subject, extent, ranks, &whole) {
            Ok(split) => return Ok(split),
            Err(why) => reasons.push((why.starts_with(PANICKED), format!("cut by extent {extent}, {why}"))),
        }
    }
    // Layers that do not take slices say less than results that are other ones.
    reasons.sort_by_key(|(is_panic, _)| *is_panic);
    Err(format!(
        "{}; cut the segment before what mixes the slices, such as a norm or a softmax, or use the layers of `epl::nn`",
        reasons.swap_remove(0).1
    ))
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
            "no extent of its matrices can be cut in {ranks}: each is too small, twice in one of them, or that of a parameter of \
             several segments"
        )),
        false => Ok(left.into_iter().map(|(_, extent)| extent).collect()),
    }
}

/// Runs a segment whole, with numbers of all magnitudes.
fn whole<M: Model>(subject: &Subject<'_, M>) -> Result<Vec<Whole>, Failed> {
    let own = Draw { number: 0, scale: 1.0, own_carry: true };
    let first = subject.first(own).map_err(|why| format!("it does not run by itself in f64: {why}"))?;
    let finite =
        |outcome: &Outcome| outcome.exit.is_finite() && outcome.gradients.iter().flatten().all(Values::is_finite);
    if !finite(&first) {
        return Err("some of what it returns, or its gradients, are no numbers".to_string());
    }
    let least = first.exit.tensors.iter().map(|tensor| tensor.data.len()).min().unwrap_or(0);
    if least == 0 {
        return Err("it returns nothing".to_string());
    }
    let mut all = vec![(own, first)];
    let each = ENOUGH.div_ceil(least) as u64;
    for (at, scale) in SCALES.into_iter().enumerate() {
        for number in 0..each {
            let draw = Draw { number: 1 + at as u64 * each + number, scale, own_carry: false };
            match subject.whole(draw) {
                Ok(outcome) if finite(&outcome) => all.push((draw, outcome)),
                // What overflows is not compared.
                Ok(_) if scale != 1.0 => {}
                Ok(_) => return Err("of some numbers it makes what is none".to_string()),
                Err(why) => return Err(format!("it does not run on other numbers: {why}")),
            }
        }
    }
    Ok(all)
}

/// How a segment is run whose dims of an extent are cut.
fn looked_at<M: Model>(
    subject: &Subject<'_, M>,
    extent: usize,
    ranks: usize,
    whole: &[Whole],
) -> Result<SegmentSplit, Failed> {
    let (draw, outcome) = &whole[0];
    let split = SegmentSplit { extent, exits: kinds(subject, *draw, extent, ranks, &outcome.exit)? };
    if split.exits.iter().all(|exit| *exit == ExitSplit::Same) {
        return Err("nothing that it returns depends on it".to_string());
    }
    for (at, (draw, outcome)) in whole.iter().enumerate() {
        let others = [2, 3].into_iter().filter(|count| *count != ranks && *count <= extent && at < OTHERS);
        for ranks in [ranks].into_iter().chain(others) {
            let slice = |rank: usize| subject.slice(*draw, &split, SliceOf { rank, ranks });
            let slices = (0..ranks).map(slice).collect::<Result<Vec<_>, _>>()?;
            agree(subject, &split, outcome, &slices).map_err(|what| format!("{what} in {ranks} slices differs"))?;
        }
    }
    Ok(split)
}

/// What each tensor that leaves is the whole of.
fn kinds<M: Model>(
    subject: &Subject<'_, M>,
    draw: Draw,
    extent: usize,
    ranks: usize,
    whole: &Exit,
) -> Result<Vec<ExitSplit>, Failed> {
    let returned = |rank: usize| subject.returned(draw, extent, SliceOf { rank, ranks });
    let (slices, base): (Vec<Exit>, Vec<Option<Exit>>) =
        (0..ranks).map(returned).collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    let base = base.into_iter().next().flatten();
    let is_alike = |exit: &Exit| exit.counts == whole.counts && exit.tensors.len() == whole.tensors.len();
    if !slices.iter().chain(&base).all(is_alike) {
        return Err("it returns other tensors".to_string());
    }
    let kind = |(at, whole): (usize, &Values)| {
        let of: Vec<&Values> = slices.iter().map(|exit| &exit.tensors[at]).collect();
        let base = base.as_ref().map(|exit| &exit.tensors[at]);
        kind_of(whole, &of, base, extent).ok_or_else(|| {
            "what it returns is neither the sum of what the slices return, nor these one after the other".to_string()
        })
    };
    whole.tensors.iter().enumerate().map(kind).collect()
}

/// What a tensor is the whole of, if of anything.
fn kind_of(whole: &Values, slices: &[&Values], base: Option<&Values>, extent: usize) -> Option<ExitSplit> {
    if slices.iter().all(|slice| *slice == whole) {
        return Some(ExitSplit::Same);
    }
    if slices.iter().any(|slice| slice.dims != whole.dims) {
        let is_slices = whole.dims.last() == Some(&extent);
        return (is_slices && is_joined(whole, slices)).then_some(ExitSplit::Slices);
    }
    let sum = sum(slices)?;
    if error(&sum, whole, whole.largest()) <= BOUND {
        return Some(ExitSplit::Sum);
    }
    let base = base.filter(|base| base.dims == whole.dims)?;
    let more = (slices.len() - 1) as f64;
    let beside: Vec<f64> = sum.iter().zip(&base.data).map(|(sum, base)| sum - more * base).collect();
    (error(&beside, whole, whole.largest()) <= BOUND).then_some(ExitSplit::SumBesideBase)
}

/// Whether what ranks make, joined as the engine joins it, is the whole; else what is not.
fn agree<M: Model>(
    subject: &Subject<'_, M>,
    split: &SegmentSplit,
    whole: &Outcome,
    slices: &[Outcome],
) -> Result<(), Failed> {
    let returned = || "what it returns".to_string();
    for (at, (kind, expected)) in split.exits.iter().zip(&whole.exit.tensors).enumerate() {
        let of = slices.iter().map(|slice| slice.exit.tensors.get(at)).collect::<Option<Vec<_>>>();
        let of = of.ok_or_else(returned)?;
        let is_equal = match kind {
            ExitSplit::Same => of.iter().all(|slice| *slice == expected),
            ExitSplit::Slices => is_joined(expected, &of),
            ExitSplit::Sum | ExitSplit::SumBesideBase => {
                sum(&of).is_some_and(|sum| error(&sum, expected, expected.largest()) <= BOUND)
            }
        };
        if !is_equal || slices.iter().any(|slice| slice.exit.counts != whole.exit.counts) {
            return Err(returned());
        }
    }
    let largest = whole.gradients.iter().flatten().map(Values::largest).fold(0.0, f64::max);
    let entered = whole.gradients.len() - subject.own().count();
    let names = (0..entered).map(|_| None).chain(subject.own().map(Some));
    for (at, (expected, record)) in whole.gradients.iter().zip(names).enumerate() {
        let of: Vec<Option<&Values>> =
            slices.iter().map(|slice| slice.gradients.get(at).and_then(Option::as_ref)).collect();
        let error = gradient_error(expected.as_ref(), &of, record, split.extent, largest);
        if error.is_nan() || error > GRADIENT_BOUND {
            let of = record.map_or("what enters".to_string(), |record| format!("`{}`", record.name));
            return Err(format!("the gradient of {of}, off by {error:.0e},"));
        }
    }
    Ok(())
}

/// How far the ranks' gradients of a parameter, or without one, of what enters, are from those of the whole.
fn gradient_error(
    whole: Option<&Values>,
    slices: &[Option<&Values>],
    record: Option<&ParamRecord>,
    extent: usize,
    largest: f64,
) -> f64 {
    let Some(whole) = whole else { return if slices.iter().all(Option::is_none) { 0.0 } else { f64::INFINITY } };
    let Some(slices) = slices.iter().copied().collect::<Option<Vec<&Values>>>() else { return f64::INFINITY };
    let scale = whole.largest().max(FLOOR * largest);
    let dim = record.and_then(|record| record.global_shape.iter().position(|size| *size == extent));
    match dim {
        None => sum(&slices).map_or(f64::INFINITY, |sum| error(&sum, whole, scale)),
        Some(dim) => joined_error(whole, dim, &slices, scale),
    }
}

/// The sum of tensors of the same dims; none where they have different ones.
fn sum(tensors: &[&Values]) -> Option<Vec<f64>> {
    let (first, rest) = tensors.split_first()?;
    rest.iter().try_fold(first.data.clone(), |mut sum, tensor| {
        sum.iter_mut().zip(&tensor.data).for_each(|(sum, number)| *sum += number);
        (tensor.dims == first.dims).then_some(sum)
    })
}

/// Whether tensors, one after the other in the last dim, are another one.
fn is_joined(whole: &Values, slices: &[&Values]) -> bool {
    let last = whole.dims.len().checked_sub(1);
    last.is_some_and(|last| joined_error(whole, last, slices, whole.largest()) <= BOUND)
}

/// How far tensors, one after the other in a dim, are from another one.
fn joined_error(whole: &Values, dim: usize, slices: &[&Values], scale: f64) -> f64 {
    let of_rank = |(rank, slice): (usize, &&Values)| {
        let own = whole.part(dim, shard_range(whole.dims[dim], slices.len(), rank));
        if own.dims == slice.dims { error(&slice.data, &own, scale) } else { f64::INFINITY }
    };
    slices.iter().enumerate().map(of_rank).fold(0.0, worse)
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
