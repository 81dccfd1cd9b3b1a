//! Who needs whose rows, where stages have different widths.
//!
//! ```text
//!            replicate(2)      split(2)
//! member 0   rows 0 1 2 ──▶    2: rows 0 1 2 3 4        2 and 3 hold slices of the layers, and run the same rows
//! member 1   rows 3 4   ──▶    3: rows 0 1 2 3 4
//! ```
//!
//! Both ways by one rule: a member gets each row from one member of the other stage that runs it; of those that run the
//! same rows, from one that depends on its own place, so that they share the work. Forward it gets the carry's rows, and
//! backward the gradients of the rows that it sent.
//!
//! Two stages that are alike among others pass whole carries on, each member to its counterpart.
//!
//! A member without a sample runs a stand-in. It enters the next part with a row of somebody else's, and gets of its own
//! no gradient back but the word which tensors have one: so its backward makes the collectives that the others' make.

use std::collections::{BTreeSet, HashMap};

use epl_comm::ProcessGroup;

use super::micro_batch::MicroBatch;
use crate::error::{Error, Result};
use crate::topology::cluster::Width;

/// The rows of every member, for some micro-batches.
pub(crate) struct Routes {
    /// The number of the first of these micro-batches.
    first: usize,
    /// By micro-batch, by member.
    micro_batches: Vec<Vec<MemberRows>>,
}

/// The micro-batch of a member.
struct MemberRows {
    rows: usize,
    /// Of every row its sample; none of a stand-in.
    samples: Vec<u64>,
    /// The row of each sample.
    places: HashMap<u64, usize>,
}

impl MemberRows {
    fn new(rows: usize, samples: Vec<u64>) -> Self {
        let places = samples.iter().enumerate().map(|(row, sample)| (*sample, row)).collect();
        Self { rows, samples, places }
    }
}

/// Some rows of one member that another one gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowTransfer {
    pub from: usize,
    /// Their places with the one that gives.
    pub theirs: Vec<usize>,
    /// Their places with the one that gets.
    pub mine: Vec<usize>,
}

impl Routes {
    /// Learns which rows the stages have, and compares them. Collective over `group`.
    ///
    /// # Errors
    ///
    /// When stages have different micro-batches, or different samples in one of them, or the same sample twice.
    pub fn exchange<B>(
        first: usize,
        micro_batches: &[MicroBatch<B>],
        widths: &[Width],
        group: &ProcessGroup,
    ) -> Result<Self> {
        let mut mine = Vec::new();
        for micro_batch in micro_batches {
            let samples = if micro_batch.empty { &[] } else { &*micro_batch.samples };
            mine.extend([micro_batch.samples.len() as i64, samples.len() as i64]);
            mine.extend(samples.iter().map(|sample| sample.cast_signed()));
        }
        let sizes = group.all_gather_counts(&[micro_batches.len() as i64, mine.len() as i64])?;
        check_counts(&sizes, widths)?;
        mine.resize(sizes.iter().map(|size| size[1] as usize).max().unwrap_or(0), 0);
        let mut told: Vec<_> = group.all_gather_counts(&mine)?.into_iter().map(Vec::into_iter).collect();
        let mut next = |member: usize| told[member].next().unwrap_or(0);
        let mut held = |member: usize| {
            let (rows, samples) = (next(member) as usize, next(member));
            MemberRows::new(rows, (0..samples).map(|_| next(member).cast_unsigned()).collect())
        };
        let members = 0..group.size();
        let micro_batches = micro_batches.iter().map(|_| members.clone().map(&mut held).collect()).collect();
        let routes = Self { first, micro_batches };
        routes.check(widths)?;
        Ok(routes)
    }

    /// How many rows a member runs, those of a stand-in included.
    pub fn rows(&self, micro_batch: usize, member: usize) -> usize {
        self.of(micro_batch)[member].rows
    }

    /// The one member of a stage that runs what this member runs, where every member of both has such a counterpart.
    pub fn counterpart(&self, micro_batch: usize, member: usize, stage: &Width, own: &Width) -> Option<usize> {
        let (held, pairs) = (self.of(micro_batch), stage.members.clone().zip(own.members.clone()));
        let is_alike = (stage.members.len(), stage.copies) == (own.members.len(), own.copies);
        let runs = |member: usize| (held[member].rows, &held[member].samples);
        let is_same = is_alike && pairs.into_iter().all(|(theirs, mine)| runs(theirs) == runs(mine));
        is_same.then(|| stage.members.start + member - own.members.start)
    }

    /// From whom a member gets which rows of a stage. Backward, a stand-in gets none from the one that it gets a row of
    /// forward.
    pub fn sources(
        &self,
        micro_batch: usize,
        member: usize,
        stage: &Width,
        own: &Width,
        backward: bool,
    ) -> Vec<RowTransfer> {
        let held = self.of(micro_batch);
        let place = (member - own.members.start) % stage.copies;
        let others = || stage.members.clone().skip(place).step_by(stage.copies);
        let MemberRows { rows, samples, places } = &held[member];
        if samples.is_empty() {
            let from = others().find(|other| !held[*other].samples.is_empty()).unwrap_or(stage.members.start + place);
            let mine: Vec<usize> = if backward { Vec::new() } else { (0..*rows).collect() };
            return vec![RowTransfer { from, theirs: vec![0; mine.len()], mine }];
        }
        let piece = |from: usize| {
            let place = |sample| places.get(sample).copied();
            let shared =
                held[from].samples.iter().enumerate().filter_map(|(theirs, sample)| Some((theirs, place(sample)?)));
            let (theirs, mine): (Vec<usize>, Vec<usize>) = shared.unzip();
            RowTransfer { from, theirs, mine }
        };
        others().map(piece).filter(|piece| !piece.mine.is_empty()).collect()
    }

    /// To whom a member gives which of its rows: what the members of a stage get from it.
    pub fn targets(
        &self,
        micro_batch: usize,
        member: usize,
        stage: &Width,
        own: &Width,
        backward: bool,
    ) -> Vec<(usize, Vec<usize>)> {
        let gets = |other: usize| {
            let pieces = self.sources(micro_batch, other, own, stage, backward);
            Some((other, pieces.into_iter().find(|piece| piece.from == member)?.theirs))
        };
        stage.members.clone().filter_map(gets).collect()
    }

    fn of(&self, micro_batch: usize) -> &[MemberRows] {
        &self.micro_batches[micro_batch - self.first]
    }

    /// Compares the samples of the stages.
    fn check(&self, widths: &[Width]) -> Result<()> {
        for (number, held) in (self.first..).zip(&self.micro_batches) {
            let mut first: Option<BTreeSet<u64>> = None;
            for (stage, width) in widths.iter().enumerate() {
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

    /// Two devices that divide the rows, and two that run the same.
    fn widths() -> [Width; 2] {
        [Width { members: 0..2, copies: 1 }, Width { members: 2..4, copies: 2 }]
    }

    fn routes(samples: [&[u64]; 4]) -> Routes {
        let held = samples.map(|samples| MemberRows::new(samples.len().max(1), samples.to_vec()));
        Routes { first: 3, micro_batches: vec![held.into()] }
    }

    fn piece(from: usize, theirs: &[usize], mine: &[usize]) -> RowTransfer {
        RowTransfer { from, theirs: theirs.to_vec(), mine: mine.to_vec() }
    }

    #[test]
    fn rows_are_gathered_and_their_gradients_come_back_once() -> Result<()> {
        let (routes, [halves, whole]) = (routes([&[5, 6], &[7], &[5, 6, 7], &[5, 6, 7]]), widths());
        routes.check(&widths())?;
        for member in [2, 3] {
            let pieces = routes.sources(3, member, &halves, &whole, false);
            assert_eq!(pieces, [piece(0, &[0, 1], &[0, 1]), piece(1, &[0], &[2])]);
        }
        assert_eq!(routes.targets(3, 0, &whole, &halves, false), [(2, vec![0, 1]), (3, vec![0, 1])]);
        // Each from one of the two that have the gradients of all rows.
        assert_eq!(routes.sources(3, 0, &whole, &halves, true), [piece(2, &[0, 1], &[0, 1])]);
        assert_eq!(routes.sources(3, 1, &whole, &halves, true), [piece(3, &[2], &[0])]);
        assert_eq!(routes.targets(3, 3, &halves, &whole, true), [(1, vec![2])]);
        Ok(())
    }

    #[test]
    fn members_of_stages_that_are_alike_have_counterparts() {
        let (mut routes, [halves, whole]) = (routes([&[5, 6], &[7], &[5, 6], &[7]]), widths());
        let alike = Width { copies: 1, ..whole.clone() };
        assert_eq!(routes.counterpart(3, 1, &alike, &halves), Some(3));
        assert_eq!(routes.counterpart(3, 2, &halves, &alike), Some(0));
        assert_eq!(routes.counterpart(3, 1, &whole, &halves), None);
        // They may divide the rows in another way.
        routes.micro_batches[0].swap(2, 3);
        assert_eq!(routes.counterpart(3, 1, &alike, &halves), None);
    }

    #[test]
    fn a_stand_in_gets_a_row_and_no_gradient() {
        let (routes, [halves, whole]) = (routes([&[], &[7], &[7], &[7]]), widths());
        // Its own row goes nowhere; it hears which tensors have a gradient.
        assert!(routes.targets(3, 0, &whole, &halves, false).is_empty());
        assert_eq!(routes.sources(3, 0, &whole, &halves, true), [piece(2, &[], &[])]);
        assert_eq!(routes.targets(3, 2, &halves, &whole, true), [(0, vec![])]);
        // And the other way round: what enters it is a row of another.
        assert_eq!(routes.sources(3, 0, &whole, &halves, false), [piece(2, &[0], &[0])]);
    }

    #[test]
    fn samples_that_do_not_fit_are_told() {
        let said = |samples| routes(samples).check(&widths()).unwrap_err().to_string();
        let lost = said([&[5], &[7], &[5], &[5]]);
        assert!(lost.contains("has 2 samples on the devices of stage 0 and 1 on those of stage 1; sample 7"), "{lost}");
        assert!(said([&[5], &[5], &[5], &[5]]).contains("micro-batch 3 has sample 5 twice in stage 0"));
        assert!(said([&[5], &[], &[5], &[]]).contains("has 1 samples on one rank of a split in stage 1, and 0"));
    }
}
