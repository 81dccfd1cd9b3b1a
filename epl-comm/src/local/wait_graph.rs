//! Which rank waits for which others, and whether some of them wait for each other in a circle.
//!
//! ```text
//!            in call 4 of group `a`
//! rank 0 ─────────────────────────────▶ rank 1
//!    ▲                                    │
//!    └────────────────────────────────────┘
//!            in call 2 of group `b`
//! ```
//!
//! Only a rank's own thread takes numbers of calls, and a call whose number every member has taken comes to its end
//! by itself: whoever has taken it is in it, or has queued it on a helper thread, which runs the calls in their order.
//! So a rank whose thread sleeps until call n of a group is over needs exactly those members that have not taken
//! number n, and they, if they sleep too, take none until they are woken. Whoever reaches itself along such steps
//! will never wake up. The last of a circle to fall asleep closes it, so one look before a thread sleeps is enough.
//! Where a call is made of stages, its whole is what is slept for: it takes the numbers of all stages at once. A rank may
//! then be done before all have come, at the end of a broadcast say. Who sleeps in one is taken to wait for all members,
//! as on one host.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::membership::CallId;
use crate::host::watchdog::{circle, sources};
use crate::rank::Rank;

/// What every rank's thread sleeps for; none when it is awake.
#[derive(Debug)]
pub(super) struct WaitGraph(Mutex<Box<[Option<CallId>]>>);

impl WaitGraph {
    pub(super) fn new(ranks: usize) -> Self {
        Self(Mutex::new((0..ranks).map(|_| None).collect()))
    }

    /// Records that the thread of `rank` is about to sleep. When that closes a circle, returns its ranks, from the
    /// lowest on, each waiting for the next, with the calls they wait in.
    pub(super) fn begin(&self, rank: Rank, call: CallId) -> Option<Vec<(Rank, String)>> {
        let mut waits = self.lock();
        waits[rank.0] = Some(call);
        let circle = circle(rank, |rank| waits[rank.0].iter().flat_map(CallId::missing))?;
        Some(circle.into_iter().filter_map(|rank| Some((rank, waits[rank.0].as_ref()?.to_string()))).collect())
    }

    /// Whether the thread of a rank sleeps.
    pub(super) fn sleeps(&self, rank: Rank) -> bool {
        self.lock()[rank.0].is_some()
    }

    /// The ranks that everybody waits for who waits for these: those on the way who are not themselves waiting for
    /// somebody.
    pub(super) fn sources(&self, ranks: Vec<Rank>) -> Vec<Rank> {
        let waits = self.lock();
        let ask = |rank: Rank| {
            let missing: Vec<Rank> = waits[rank.0].iter().flat_map(CallId::missing).collect();
            if missing.is_empty() { Err(()) } else { Ok(missing) }
        };
        sources(ranks, ask).into_keys().collect()
    }

    /// What the thread of a rank sleeps for, and those it needs.
    #[cfg(feature = "mpi")]
    pub(super) fn of(&self, rank: Rank) -> Option<(String, Vec<Rank>)> {
        self.lock()[rank.0].as_ref().map(|call| (call.to_string(), call.missing().collect()))
    }

    /// Records that it is awake again.
    pub(super) fn end(&self, rank: Rank) {
        self.lock()[rank.0] = None;
    }

    fn lock(&self) -> MutexGuard<'_, Box<[Option<CallId>]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::membership::Membership;
    use super::*;
    use crate::operation::Operation;

    fn wait(membership: &Arc<Membership>, sequence: u64) -> CallId {
        CallId { membership: membership.clone(), operation: Operation::Barrier, sequence }
    }

    #[test]
    fn a_circle_is_found_by_the_rank_that_closes_it_and_begins_with_the_lowest() {
        let group = |members: [usize; 2]| Arc::new(Membership::new("g", members.map(Rank).to_vec()));
        let (a, b, c) = (group([2, 0]), group([0, 1]), group([1, 2]));
        let waits = WaitGraph::new(3);
        for membership in [&a, &b, &c] {
            membership.reserve(0);
        }
        assert_eq!(waits.begin(Rank(2), wait(&a, 1)), None);
        assert_eq!(waits.begin(Rank(1), wait(&c, 1)), None, "rank 2 waits for rank 0, which is awake");
        let circle = waits.begin(Rank(0), wait(&b, 1)).unwrap_or_default();
        assert_eq!(circle.iter().map(|(rank, _)| rank.0).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(circle[0].1, "barrier, call 1 of group `g`");
        waits.end(Rank(1));
        assert_eq!(waits.begin(Rank(0), wait(&b, 1)), None, "rank 1 is awake");
    }

    #[test]
    fn the_source_of_a_chain_of_waits_is_who_is_awake() {
        let group = |members: [usize; 2]| Arc::new(Membership::new("g", members.map(Rank).to_vec()));
        let (a, b) = (group([0, 1]), group([1, 2]));
        let waits = WaitGraph::new(3);
        a.reserve(0);
        b.reserve(0);
        assert_eq!(waits.begin(Rank(0), wait(&a, 1)), None);
        assert_eq!(waits.sources(vec![Rank(1)]), [Rank(1)]);
        assert_eq!(waits.begin(Rank(1), wait(&b, 1)), None);
        assert_eq!(waits.sources(vec![Rank(1)]), [Rank(2)]);
        assert_eq!(waits.sources(vec![Rank(2), Rank(1)]), [Rank(2)]);
    }

    #[test]
    fn whoever_has_taken_the_number_is_not_waited_for() {
        let group = || Arc::new(Membership::new("g", vec![Rank(0), Rank(1)]));
        let (a, b) = (group(), group());
        let waits = WaitGraph::new(2);
        for (membership, member) in [(&a, 0), (&a, 1), (&b, 0), (&b, 1)] {
            membership.reserve(member);
        }
        assert_eq!(waits.begin(Rank(0), wait(&a, 1)), None);
        b.reserve(1);
        assert_eq!(waits.begin(Rank(1), wait(&b, 2)), None, "rank 0 is about to wake up");
    }
}
