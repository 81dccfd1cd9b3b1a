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

use std::collections::HashMap;
use std::ops::Range;

use super::mesh::Width;
use super::part::device_rows;

/// The rows of every member, for some micro-batches.
pub(crate) struct Routes {
    /// The number of the first of these micro-batches.
    first: usize,
    /// By micro-batch, by member.
    micro_batches: Vec<Vec<MemberRows>>,
}

/// The micro-batch of a member.
pub(crate) struct MemberRows {
    /// How many rows it runs, those of a stand-in included.
    pub rows: usize,
    /// Of every row its sample; none of a stand-in.
    pub samples: Vec<u64>,
    /// The row of each sample.
    places: HashMap<u64, usize>,
}

impl MemberRows {
    pub fn new(rows: usize, samples: Vec<u64>) -> Self {
        let places = samples.iter().enumerate().map(|(row, sample)| (*sample, row)).collect();
        Self { rows, samples, places }
    }

    /// What a member tells the others: how many rows and samples it has, and which these are.
    pub fn numbers(rows: usize, samples: &[u64]) -> impl Iterator<Item = i64> {
        let counts = [rows as i64, samples.len() as i64];
        counts.into_iter().chain(samples.iter().map(|sample| sample.cast_signed()))
    }

    /// Of what a member tells.
    pub fn read(numbers: &mut impl Iterator<Item = i64>) -> Self {
        let mut next = || numbers.next().unwrap_or(0);
        let (rows, samples) = (next() as usize, next());
        Self::new(rows, (0..samples).map(|_| next().cast_unsigned()).collect())
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
    /// By micro-batch and member, from the micro-batch with the number `first` on.
    pub fn new(first: usize, micro_batches: Vec<Vec<MemberRows>>) -> Self {
        Self { first, micro_batches }
    }

    /// Of a replica that has these rows of a batch, in so many micro-batches, where the devices of each stage divide them evenly.
    pub fn of_rows(rows: &Range<usize>, micro_batches: usize, widths: &[Width]) -> Self {
        let held = |width: &Width, micro_batch: usize| {
            let devices = width.members.len() / width.copies;
            let of_member = |member: usize| {
                let own = device_rows(rows, (micro_batches, micro_batch), (devices, member / width.copies));
                MemberRows::new(own.len().max(1), own.map(|row| row as u64).collect())
            };
            (0..width.members.len()).map(of_member).collect::<Vec<_>>()
        };
        let all = |micro_batch: usize| widths.iter().flat_map(|width| held(width, micro_batch)).collect();
        Self::new(0, (0..micro_batches).map(all).collect())
    }

    /// What the members run of each micro-batch, by its number.
    pub fn micro_batches(&self) -> impl Iterator<Item = (usize, &[MemberRows])> {
        (self.first..).zip(self.micro_batches.iter().map(Vec::as_slice))
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
        Routes::new(3, vec![held.into()])
    }

    fn piece(from: usize, theirs: &[usize], mine: &[usize]) -> RowTransfer {
        RowTransfer { from, theirs: theirs.to_vec(), mine: mine.to_vec() }
    }

    #[test]
    fn rows_are_gathered_and_their_gradients_come_back_once() {
        let (routes, [halves, whole]) = (routes([&[5, 6], &[7], &[5, 6, 7], &[5, 6, 7]]), widths());
        for member in [2, 3] {
            let pieces = routes.sources(3, member, &halves, &whole, false);
            assert_eq!(pieces, [piece(0, &[0, 1], &[0, 1]), piece(1, &[0], &[2])]);
        }
        assert_eq!(routes.targets(3, 0, &whole, &halves, false), [(2, vec![0, 1]), (3, vec![0, 1])]);
        // Each from one of the two that have the gradients of all rows.
        assert_eq!(routes.sources(3, 0, &whole, &halves, true), [piece(2, &[0, 1], &[0, 1])]);
        assert_eq!(routes.sources(3, 1, &whole, &halves, true), [piece(3, &[2], &[0])]);
        assert_eq!(routes.targets(3, 3, &halves, &whole, true), [(1, vec![2])]);
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
}
