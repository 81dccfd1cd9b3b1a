//! What all ranks of one launch share: who has ended, who waits for whom, and the first failure.

use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use super::event_count::EventCount;
use super::membership::CallId;
use super::order::Order;
use super::wait_graph::WaitGraph;
use crate::error::Error;
use crate::host::arena::Arena;
use crate::host::failure::Failure;
use crate::host::watchdog::{ControlPlane, Options, Watchdog};
use crate::operation::Operation;
use crate::process_group::RankState;
use crate::rank::Rank;

/// How the ranks of a launch are watched.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    pub(super) options: Options,
    /// Whether the order of calls is compared.
    pub(super) check_order: bool,
    /// Buffers of so many bytes stay on the board while their member goes on, and a reduction of them is computed by
    /// every member that wants it, instead of a part by each.
    pub(super) eager_limit: usize,
}

/// The ranks of one launch.
#[derive(Debug)]
pub(super) struct LocalWorld {
    ended: Box<[AtomicBool]>,
    rank_states: Box<[RankState]>,
    waits: WaitGraph,
    /// Where the order of calls is compared.
    order: Option<Order>,
    eager_limit: usize,
    arena: Arc<Arena>,
    watchdog: Watchdog,
    event_counts: Mutex<Vec<Weak<EventCount>>>,
    /// Cores that the ranks share.
    cores: usize,
}

impl ControlPlane for LocalWorld {
    fn watchdog(&self) -> &Watchdog {
        &self.watchdog
    }

    fn tell_end(&self, rank: Rank) {
        self.ended[rank.0].store(true, Ordering::Release);
        self.notify();
    }

    fn wake(&self, _failure: &Failure) {
        self.notify();
    }
}

impl LocalWorld {
    /// A world of one rank for each state.
    pub(super) fn new(rank_states: Box<[RankState]>, cores: usize, watch: Watch) -> Self {
        let ranks = rank_states.len();
        Self {
            ended: (0..ranks).map(|_| AtomicBool::new(false)).collect(),
            rank_states,
            waits: WaitGraph::new(ranks),
            watchdog: Watchdog::new(watch.options),
            order: watch.check_order.then(Order::default),
            eager_limit: watch.eager_limit,
            arena: Arc::default(),
            event_counts: Mutex::new(Vec::new()),
            cores,
        }
    }

    /// What the groups of a rank share.
    pub(super) fn rank_state(&self, rank: Rank) -> &RankState {
        &self.rank_states[rank.0]
    }

    /// Records that `rank` has taken the number of a call. When another one was due, the world fails.
    pub(super) fn issue(&self, rank: Rank, operation: Operation, call: impl FnOnce() -> CallId) {
        // The two ways of a pair of ranks are independent of each other.
        let is_collective = !matches!(operation, Operation::Send | Operation::Receive);
        if is_collective
            && let Some(order) = &self.order
            && let Err(error) = order.issue(rank, &call())
        {
            self.record(Failure::shared(error, rank));
        }
    }

    /// A rank's calls that can be in flight together without taking a core from another rank.
    pub(super) fn lanes(&self) -> usize {
        self.watchdog.options.lanes.unwrap_or((self.cores / self.ended.len()).max(1))
    }

    /// The largest buffer that is small.
    pub(super) fn eager_limit(&self) -> usize {
        self.eager_limit
    }

    /// Where results are made.
    pub(super) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// One that failures and ends notify too.
    pub(super) fn event_count(&self) -> Arc<EventCount> {
        let event_count = Arc::new(EventCount::new(self.ended.len() > self.cores));
        let mut event_counts = self.event_counts.lock().unwrap_or_else(PoisonError::into_inner);
        event_counts.retain(|event_count| event_count.strong_count() > 0);
        event_counts.push(Arc::downgrade(&event_count));
        event_count
    }

    /// Calls `sleep`, in which a thread of `rank` blocks until `call` is over. When that is the rank's own thread and closes a
    /// circle of ranks that wait for each other, the world fails first.
    pub(super) fn sleep(&self, rank: Rank, call: CallId, sleep: &mut dyn FnMut()) {
        if !self.rank_state(rank).owner.is_here() || self.waits.sleeps(rank) {
            // A helper thread, whose rank goes on; or a stage of the call that the rank sleeps for.
            return sleep();
        }
        if let Some(circle) = self.waits.begin(rank, call) {
            self.record(Failure::shared(Error::Deadlock { circle }, rank));
        }
        sleep();
        self.waits.end(rank);
    }

    /// Whether somebody who has waited since then has waited too long.
    pub(super) fn is_overdue(&self, begun: Instant) -> bool {
        self.watchdog.is_overdue(begun.elapsed())
    }

    /// Ends the world because some ranks, each with whether it has taken the number of the call, have not come to it
    /// in time. Blames those that all the others wait for.
    pub(super) fn fail_overdue(&self, call: String, waited: Duration, missing: Vec<(Rank, bool)>) {
        let away: Vec<Rank> = missing.iter().filter(|(_, has_taken)| !has_taken).map(|(rank, _)| *rank).collect();
        let sources = self.waits.sources(away);
        // Whoever has taken the number is about to come, or is stuck on the way.
        let all = || missing.iter().map(|(rank, _)| *rank).collect();
        let blamed: Vec<Rank> = if sources.is_empty() { all() } else { sources };
        let missing: Vec<_> = blamed.into_iter().map(|rank| (rank, self.rank_state(rank).log.last_words())).collect();
        if let Some((lowest, _)) = missing.first().cloned() {
            self.record(Failure::shared(Error::Timeout { call, waited, missing }, lowest));
        }
    }

    /// What a rank's own thread waits in, and those who have not come to it.
    #[cfg(feature = "mpi")]
    pub(super) fn wait_of(&self, rank: Rank) -> Option<(String, Vec<Rank>)> {
        self.waits.of(rank)
    }

    pub(super) fn has_ended(&self, rank: Rank) -> bool {
        self.ended[rank.0].load(Ordering::Acquire)
    }

    fn notify(&self) {
        let event_counts = self.event_counts.lock().unwrap_or_else(PoisonError::into_inner);
        event_counts.iter().filter_map(Weak::upgrade).for_each(|event_count| event_count.notify());
    }
}
