//! To whom a stage's parcels go, and where stages have different widths, whose rows.
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

/// What one stage sends another: for the forward or the backward of a micro-batch in a part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ParcelLabel {
    pub backward: bool,
    pub micro_batch: usize,
    /// The part that it enters.
    pub part: usize,
}

/// The members of the stages, and the rows of each, for some micro-batches.
pub(crate) struct Routes {
    /// Which members run which stage.
    widths: Vec<Width>,
    /// By member.
    stages: Vec<usize>,
    is_single: bool,
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

/// The members of another stage from which a parcel comes, or to which it goes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Peers {
    /// The one that runs the same rows: all of the parcel.
    Counterpart(usize),
    /// Rows of the parcel.
    Rows(Vec<RowTransfer>),
}

/// Some rows of one member that another one gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RowTransfer {
    pub from: usize,
    pub to: usize,
    /// Their places with the one that gives.
    pub given: Vec<usize>,
    /// Their places with the one that gets.
    pub taken: Vec<usize>,
}

impl Routes {
    /// By micro-batch and member, from the micro-batch with the number `first` on.
    pub fn new(widths: &[Width], first: usize, micro_batches: Vec<Vec<MemberRows>>) -> Self {
        let stage = |(stage, width): (usize, &Width)| core::iter::repeat_n(stage, width.members.len());
        let stages = widths.iter().enumerate().flat_map(stage).collect();
        let is_single = widths.iter().all(|width| width.members.len() == 1);
        Self { widths: widths.to_vec(), stages, is_single, first, micro_batches }
    }

    /// Of stages whose rows are not told: enough where one member runs each of them.
    pub fn untold(widths: &[Width]) -> Self {
        Self::new(widths, 0, Vec::new())
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
        Self::new(widths, 0, (0..micro_batches).map(all).collect())
    }

    /// Which members run which stage.
    pub fn widths(&self) -> &[Width] {
        &self.widths
    }

    /// Whether one member runs each stage.
    pub fn is_single(&self) -> bool {
        self.is_single
    }

    /// The stage that a member runs.
    pub fn stage_of(&self, member: usize) -> usize {
        self.stages[member]
    }

    /// What the members run of each micro-batch, by its number.
    pub fn micro_batches(&self) -> impl Iterator<Item = (usize, &[MemberRows])> {
        (self.first..).zip(self.micro_batches.iter().map(Vec::as_slice))
    }

    /// How many rows a member runs, those of a stand-in included.
    pub fn rows(&self, micro_batch: usize, member: usize) -> usize {
        self.of(micro_batch)[member].rows
    }

    /// From whom in a stage a member gets a parcel.
    pub fn sources(&self, label: ParcelLabel, member: usize, stage: usize) -> Peers {
        self.counterpart(label.micro_batch, member, stage)
            .map_or_else(|| Peers::Rows(self.transfers_to(label, member, stage)), Peers::Counterpart)
    }

    /// To whom in a stage a member gives a parcel: those that get it from this member.
    pub fn targets(&self, label: ParcelLabel, member: usize, stage: usize) -> Peers {
        if let Some(counterpart) = self.counterpart(label.micro_batch, member, stage) {
            return Peers::Counterpart(counterpart);
        }
        let own = self.stage_of(member);
        let to = |other: usize| self.transfers_to(label, other, own).into_iter().find(|rows| rows.from == member);
        Peers::Rows(self.widths[stage].members.clone().filter_map(to).collect())
    }

    /// The one member of a stage that runs what this member runs, where every member of both has such a counterpart.
    fn counterpart(&self, micro_batch: usize, member: usize, stage: usize) -> Option<usize> {
        let (other, own) = (&self.widths[stage], &self.widths[self.stage_of(member)]);
        let is_alike = (other.members.len(), other.copies) == (own.members.len(), own.copies);
        let is_same = || {
            let held = self.of(micro_batch);
            let runs = |member: usize| (held[member].rows, &held[member].samples);
            other.members.clone().zip(own.members.clone()).all(|(theirs, mine)| runs(theirs) == runs(mine))
        };
        let has_counterparts = is_alike && (self.is_single || is_same());
        has_counterparts.then(|| other.members.start + member - own.members.start)
    }

    /// From whom in a stage a member gets which rows. Backward, a stand-in gets none from the one that it gets a row of forward.
    fn transfers_to(&self, label: ParcelLabel, to: usize, stage: usize) -> Vec<RowTransfer> {
        let (held, stage, own) = (self.of(label.micro_batch), &self.widths[stage], &self.widths[self.stage_of(to)]);
        let place = (to - own.members.start) % stage.copies;
        let others = || stage.members.clone().skip(place).step_by(stage.copies);
        let MemberRows { rows, samples, places } = &held[to];
        if samples.is_empty() {
            let from = others().find(|other| !held[*other].samples.is_empty()).unwrap_or(stage.members.start + place);
            let taken: Vec<usize> = if label.backward { Vec::new() } else { (0..*rows).collect() };
            return vec![RowTransfer { from, to, given: vec![0; taken.len()], taken }];
        }
        let transfer = |from: usize| {
            let place = |sample| places.get(sample).copied();
            let shared =
                held[from].samples.iter().enumerate().filter_map(|(given, sample)| Some((given, place(sample)?)));
            let (given, taken): (Vec<usize>, Vec<usize>) = shared.unzip();
            RowTransfer { from, to, given, taken }
        };
        others().map(transfer).filter(|rows| !rows.taken.is_empty()).collect()
    }

    fn of(&self, micro_batch: usize) -> &[MemberRows] {
        &self.micro_batches[micro_batch - self.first]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two devices that divide the rows, and two that run the same: stages 0 and 1.
    fn routes(samples: [&[u64]; 4]) -> Routes {
        let held = samples.map(|samples| MemberRows::new(samples.len().max(1), samples.to_vec()));
        let widths = [Width { members: 0..2, copies: 1 }, Width { members: 2..4, copies: 2 }];
        Routes::new(&widths, 3, vec![held.into()])
    }

    fn label(backward: bool) -> ParcelLabel {
        ParcelLabel { backward, micro_batch: 3, part: 1 }
    }

    /// From whom to whom, which rows of the one become which of the other.
    fn rows<const N: usize>(transfers: [(usize, usize, &[usize], &[usize]); N]) -> Peers {
        let transfer = |(from, to, given, taken): (_, _, &[_], &[_])| RowTransfer {
            from,
            to,
            given: given.into(),
            taken: taken.into(),
        };
        Peers::Rows(transfers.map(transfer).into())
    }

    #[test]
    fn rows_are_gathered_and_their_gradients_come_back_once() {
        let routes = routes([&[5, 6], &[7], &[5, 6, 7], &[5, 6, 7]]);
        for member in [2, 3] {
            let got = routes.sources(label(false), member, 0);
            assert_eq!(got, rows([(0, member, &[0, 1], &[0, 1]), (1, member, &[0], &[2])]));
        }
        let given = routes.targets(label(false), 0, 1);
        assert_eq!(given, rows([(0, 2, &[0, 1], &[0, 1]), (0, 3, &[0, 1], &[0, 1])]));
        // Each from one of the two that have the gradients of all rows.
        assert_eq!(routes.sources(label(true), 0, 1), rows([(2, 0, &[0, 1], &[0, 1])]));
        assert_eq!(routes.sources(label(true), 1, 1), rows([(3, 1, &[2], &[0])]));
        assert_eq!(routes.targets(label(true), 3, 0), rows([(3, 1, &[2], &[0])]));
    }

    #[test]
    fn members_of_stages_that_are_alike_have_counterparts() {
        let mut routes = routes([&[5, 6], &[7], &[5, 6], &[7]]);
        assert!(matches!(routes.targets(label(false), 1, 1), Peers::Rows(_)));
        routes.widths[1].copies = 1;
        assert_eq!(routes.targets(label(false), 1, 1), Peers::Counterpart(3));
        assert_eq!(routes.sources(label(true), 1, 1), Peers::Counterpart(3));
        assert_eq!(routes.sources(label(false), 2, 0), Peers::Counterpart(0));
        // They may divide the rows in another way.
        routes.micro_batches[0].swap(2, 3);
        assert_eq!(routes.targets(label(false), 1, 1), rows([(1, 2, &[0], &[0])]));
    }

    #[test]
    fn stages_of_one_member_each_need_not_tell_their_rows() {
        let routes = Routes::untold(&[Width { members: 0..1, copies: 1 }, Width { members: 1..2, copies: 1 }]);
        assert!(routes.is_single());
        assert_eq!(routes.targets(label(false), 0, 1), Peers::Counterpart(1));
        assert_eq!(routes.sources(label(false), 1, 0), Peers::Counterpart(0));
        // Beside a wider one they do: they may have the same samples in another order.
        let held = [[5, 6], [6, 5], [5, 6], [5, 6]].map(|samples| MemberRows::new(2, samples.to_vec()));
        let widths = [(0..1, 1), (1..2, 1), (2..4, 2)].map(|(members, copies)| Width { members, copies });
        let routes = Routes::new(&widths, 3, vec![held.into()]);
        assert_eq!(routes.targets(label(false), 0, 1), rows([(0, 1, &[0, 1], &[1, 0])]));
    }

    #[test]
    fn a_stand_in_gets_a_row_and_no_gradient() {
        let routes = routes([&[], &[7], &[7], &[7]]);
        // Its own row goes nowhere; it hears which tensors have a gradient.
        assert_eq!(routes.targets(label(false), 0, 1), rows([]));
        assert_eq!(routes.sources(label(true), 0, 1), rows([(2, 0, &[], &[])]));
        assert_eq!(routes.targets(label(true), 2, 0), rows([(2, 0, &[], &[])]));
        // And the other way round: what enters it is a row of another.
        assert_eq!(routes.sources(label(false), 0, 1), rows([(2, 0, &[0], &[0])]));
    }
}
