//! Which rows the members of stages of different widths have, as they tell each other: [`Routes`] follow from it.

use std::collections::BTreeSet;

use epl_comm::ProcessGroup;

use super::micro_batch::MicroBatch;
use crate::error::{Error, Result};
use crate::topology::cluster::{MemberRows, Routes, Width};

/// Learns which rows the stages have, and compares them. Collective over `group`.
///
/// # Errors
///
/// When stages have different micro-batches, or different samples in one of them, or the same sample twice.
pub(crate) fn exchange<B>(
    first: usize,
    micro_batches: &[MicroBatch<B>],
    widths: &[Width],
    group: &ProcessGroup,
) -> Result<Routes> {
    let mut mine = Vec::new();
    for micro_batch in micro_batches {
        let samples = if micro_batch.empty { &[] } else { &*micro_batch.samples };
        mine.extend(MemberRows::numbers(micro_batch.samples.len(), samples));
    }
    let sizes = group.all_gather_counts(&[micro_batches.len() as i64, mine.len() as i64])?;
    check_counts(&sizes, widths)?;
    mine.resize(sizes.iter().map(|size| size[1] as usize).max().unwrap_or(0), 0);
    let mut told: Vec<_> = group.all_gather_counts(&mine)?.into_iter().map(Vec::into_iter).collect();
    let mut held = |member: usize| MemberRows::read(&mut told[member]);
    let members = 0..group.size();
    let micro_batches = micro_batches.iter().map(|_| members.clone().map(&mut held).collect()).collect();
    let routes = Routes::new(widths, first, micro_batches);
    check(&routes)?;
    Ok(routes)
}

/// Compares the samples of the stages.
fn check(routes: &Routes) -> Result<()> {
    for (number, held) in routes.micro_batches() {
        let mut first: Option<BTreeSet<u64>> = None;
        for (stage, width) in routes.widths().iter().enumerate() {
            let samples = samples_of(held, width, number, stage)?;
            let first = first.get_or_insert_with(|| samples.clone());
            if let Some(sample) = first.symmetric_difference(&samples).next() {
                return Err(Error::invalid(format!(
                    "micro-batch {number} has {} samples on the devices of stage 0 and {} on those of stage {stage}; \
                     sample {sample} is in one of them only: {REMEDY}",
                    first.len(),
                    samples.len()
                )));
            }
        }
    }
    Ok(())
}

/// What makes the micro-batches of all stages fit together.
const REMEDY: &str = "give all stages of a replica the same micro-batches: divide the samples by `BatchShard::of`, not by the \
                      rank in the world";

fn check_counts(sizes: &[Vec<i64>], widths: &[Width]) -> Result<()> {
    let Some(other) = sizes.iter().position(|size| size[0] != sizes[0][0]) else { return Ok(()) };
    let stage = widths.iter().position(|width| width.members.contains(&other)).unwrap_or(0);
    Err(Error::invalid(format!(
        "a rank of stage 0 has {} micro-batches, and one of stage {stage} {}: {REMEDY}",
        sizes[0][0], sizes[other][0]
    )))
}

/// The samples of a stage, each on one device, or on all that run the same rows.
fn samples_of(held: &[MemberRows], width: &Width, number: usize, stage: usize) -> Result<BTreeSet<u64>> {
    let mut all = BTreeSet::new();
    for first in width.members.clone().step_by(width.copies) {
        let samples = &held[first].samples;
        if let Some(other) = (first..first + width.copies).find(|other| held[*other].samples != *samples) {
            return Err(Error::invalid(format!(
                "micro-batch {number} has {} samples on one rank of a split in stage {stage}, and {} or others on \
                 another: {REMEDY}",
                samples.len(),
                held[other].samples.len()
            )));
        }
        if let Some(sample) = samples.iter().find(|sample| !all.insert(**sample)) {
            return Err(Error::invalid(format!(
                "micro-batch {number} has sample {sample} twice in stage {stage}; rows that go to a stage of another width \
                 are told apart by the numbers of their samples: give each sample its own, and each device rows of its own \
                 (`BatchShard::of`)"
            )));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_that_do_not_fit_are_told() {
        // Two devices that divide the rows, and two that run the same.
        let widths = [Width { members: 0..2, copies: 1 }, Width { members: 2..4, copies: 2 }];
        let checked = |samples: [&[u64]; 4]| {
            let held = samples.map(|samples| MemberRows::new(samples.len().max(1), samples.to_vec()));
            check(&Routes::new(&widths, 3, vec![held.into()]))
        };
        checked([&[5, 6], &[7], &[5, 6, 7], &[5, 6, 7]]).unwrap();
        let said = |samples| checked(samples).unwrap_err().to_string();
        let lost = said([&[5], &[7], &[5], &[5]]);
        assert!(lost.contains("has 2 samples on the devices of stage 0 and 1 on those of stage 1; sample 7"), "{lost}");
        assert!(said([&[5], &[5], &[5], &[5]]).contains("micro-batch 3 has sample 5 twice in stage 0"));
        assert!(said([&[5], &[], &[5], &[]]).contains("has 1 samples on one rank of a split in stage 1, and 0"));
    }
}
