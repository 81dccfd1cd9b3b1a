//! Whether every two ranks make the calls in which both take part in one order, whatever their groups.
//!
//! Calls that are started may come to a good end in any order of their groups, as each group has a thread of its own:
//! here, and by luck. Elsewhere, or when they are not started, the same program hangs. So this is looked for, on
//! request, where calls take their numbers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use super::membership::CallId;
use crate::error::Error;
use crate::rank::Rank;

/// The calls in which every two ranks take part.
#[derive(Debug, Default)]
pub(super) struct Order(Mutex<HashMap<[Rank; 2], Pair>>);

/// Two ranks.
#[derive(Debug, Default)]
struct Pair {
    /// The one that has made more calls.
    ahead: Rank,
    /// What it has made and the other has not.
    calls: VecDeque<CallId>,
    /// How many calls both have made.
    common: u64,
}

impl Order {
    /// Records that `rank` makes a call. An error when another rank made another one in its place.
    pub(super) fn issue(&self, rank: Rank, call: &CallId) -> Result<(), Error> {
        let mut pairs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for other in call.membership.members.iter().filter(|other| **other != rank) {
            pairs.entry([rank.min(*other), rank.max(*other)]).or_default().issue(rank, *other, call)?;
        }
        Ok(())
    }
}

impl Pair {
    fn issue(&mut self, rank: Rank, other: Rank, call: &CallId) -> Result<(), Error> {
        if self.calls.is_empty() {
            self.ahead = rank;
        }
        if self.ahead == rank {
            self.calls.push_back(call.clone());
            return Ok(());
        }
        let Some(expected) = self.calls.pop_front() else { return Ok(()) };
        self.common += 1;
        match expected.is(call) {
            true => Ok(()),
            false => Err(Error::Order {
                first: other,
                first_call: expected.to_string(),
                second: rank,
                second_call: call.to_string(),
                count: self.common,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::membership::Membership;
    use super::*;
    use crate::operation::Operation;

    #[test]
    fn two_ranks_may_be_apart_but_not_in_another_order() {
        let group = |members: &[usize]| Arc::new(Membership::new("g", members.iter().copied().map(Rank).collect()));
        let (all, pair, others) = (group(&[0, 1, 2]), group(&[0, 1]), group(&[1, 2]));
        let call = |membership: &Arc<Membership>, sequence| CallId {
            membership: membership.clone(),
            operation: Operation::Barrier,
            sequence,
        };
        let order = Order::default();
        let issue =
            |rank: usize, membership: &Arc<Membership>, sequence| order.issue(Rank(rank), &call(membership, sequence));
        for (rank, membership, sequence) in [(0, &all, 1), (0, &pair, 1), (2, &all, 1), (2, &others, 1), (1, &all, 1)] {
            assert_eq!(issue(rank, membership, sequence), Ok(()));
        }
        assert_eq!(issue(1, &others, 1), Ok(()), "not a call of rank 0");
        assert_eq!(issue(1, &pair, 1), Ok(()));
        assert_eq!(issue(0, &all, 2), Ok(()));
        let error = issue(1, &pair, 2);
        assert!(matches!(error, Err(Error::Order { first: Rank(0), second: Rank(1), count: 3, .. })), "{error:?}");
    }
}
