//! EPL's own division into stages, as EPL answers.
//!
//! The three functions of EPL's `epl/parallel/partitioner.py`, followed so that a user of EPL can compare; their cases
//! are `partition_buckets`, `partition_balance` and `partition_stages` in `fixtures/epl_reference_cases.json`. They may
//! give fewer parts than asked, or empty ones: [`stages_of`](super::stages_of) never does. Parts are ranges of indices
//! into `weights`.

use std::ops::Range;

use super::PartitionError;

/// Weights that differ by more than this are brought into 0..=this, which bounds EPL's search.
const SPREAD: u64 = 100;

/// Fills buckets in order, none above `bucket_size` unless one weight alone is; `(first index, sum)` a bucket. None
/// where that takes more than `num_stages` buckets.
///
/// A bucket that holds 0 is not closed: a weight of any size joins it.
pub fn partition_buckets(weights: &[u64], bucket_size: u64, num_stages: usize) -> Option<Vec<(usize, u64)>> {
    let mut buckets = vec![];
    let mut last = (0, 0_u64);
    for (index, &weight) in weights.iter().enumerate() {
        if last.1.checked_add(weight).is_some_and(|sum| sum <= bucket_size) {
            last.1 += weight;
            continue;
        }
        match last.1 {
            0 => last.1 = weight,
            _ => buckets.push(std::mem::replace(&mut last, (index, weight))),
        }
        if buckets.len() >= num_stages {
            return None;
        }
    }
    buckets.push(last);
    Some(buckets)
}

/// At most `num_stages` parts whose largest weight is small: the least bucket size that does, below the total. All in
/// one part where none does.
///
/// # Errors
///
/// No stage, no weight (unless one stage is asked for), or weights too large to add.
pub fn partition_balance(weights: &[u64], num_stages: usize) -> Result<Vec<Range<usize>>, PartitionError> {
    let whole = || Ok(vec![0..weights.len()]);
    match num_stages {
        0 => return Err(PartitionError::Zero { what: "num_stages" }),
        1 => return whole(),
        _ if weights.is_empty() => return Err(PartitionError::Zero { what: "the number of weights" }),
        _ => {}
    }
    let weights = &normalised(weights);
    let total = sum(weights)?;
    // A larger bucket never needs more buckets, so the least size is found by halving; EPL tries all in turn.
    let fits = |size: u64| partition_buckets(weights, size, num_stages).is_some();
    let size = first(total / num_stages as u64..total, fits);
    match (size < total).then(|| partition_buckets(weights, size, num_stages)).flatten() {
        Some(buckets) => Ok(between(buckets.into_iter().map(|(start, _)| start), weights.len())),
        None => whole(),
    }
}

/// `num_stages` parts of about even weight, each closed as soon as it holds its share; the last takes the rest.
///
/// The share is the largest, up to the mean, that fills every stage. With fewer weights than stages the last parts are
/// empty.
///
/// ```
/// # use epl_core::schedule::partition::{PartitionError, epl::partition_stages};
/// assert_eq!(partition_stages(&[1, 1, 1, 1, 1, 1], 3)?, [0..2, 2..4, 4..6]);
/// assert_eq!(partition_stages(&[6, 1, 1, 1, 1], 2)?, [0..1, 1..5]);
/// # Ok::<_, PartitionError>(())
/// ```
///
/// # Errors
///
/// No stage, or weights too large to add.
pub fn partition_stages(weights: &[u64], num_stages: usize) -> Result<Vec<Range<usize>>, PartitionError> {
    let count = weights.len();
    match num_stages {
        0 => return Err(PartitionError::Zero { what: "num_stages" }),
        1 => return Ok(vec![0..count]),
        _ if count <= num_stages => return Ok((0..num_stages).map(|stage| one_or_none(stage, count)).collect()),
        _ => {}
    }
    let weights: Vec<u64> = normalised(weights).into_iter().map(|weight| weight.max(1)).collect();
    let mean = sum(&weights)? / num_stages as u64;
    // A smaller share never fills fewer stages, and a share of 1 fills all of them.
    let misses = |share: u64| starts(&weights, share, num_stages).len() < num_stages;
    let share = first(1..mean + 1, misses) - 1;
    Ok(between(starts(&weights, share, num_stages).into_iter(), count))
}

/// Where a part begins when each is closed at `share`, the last excepted.
fn starts(weights: &[u64], share: u64, num_stages: usize) -> Vec<usize> {
    let mut starts = vec![0];
    let mut held = 0;
    for (index, weight) in weights.iter().enumerate() {
        if held >= share && starts.len() < num_stages {
            starts.push(index);
            held = 0;
        }
        held += weight;
    }
    starts
}

/// Weights brought into 0..=100, rounded down, where they differ by more than that.
fn normalised(weights: &[u64]) -> Vec<u64> {
    let least = weights.iter().copied().min().unwrap_or(0);
    let spread = weights.iter().copied().max().unwrap_or(0) - least;
    if spread <= SPREAD {
        return weights.to_vec();
    }
    let share = |weight: u64| (weight - least) as f64 / spread as f64 * SPREAD as f64;
    weights.iter().map(|&weight| share(weight) as u64).collect()
}

fn sum(weights: &[u64]) -> Result<u64, PartitionError> {
    let total = weights.iter().try_fold(0_u64, |total, &weight| total.checked_add(weight));
    total.ok_or(PartitionError::WeightsTooLarge { weights: weights.len() })
}

/// The first number for which `holds`, which then holds for all that follow; the range's end where it never does.
fn first(numbers: Range<u64>, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (numbers.start, numbers.end);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

/// From each start to the next, and from the last to `end`.
fn between(starts: impl Iterator<Item = usize> + Clone, end: usize) -> Vec<Range<usize>> {
    starts.clone().zip(starts.skip(1).chain([end])).map(|(start, end)| start..end).collect()
}

/// The stage's own weight, or nothing behind the last one.
fn one_or_none(stage: usize, count: usize) -> Range<usize> {
    stage.min(count)..(stage + 1).min(count)
}
