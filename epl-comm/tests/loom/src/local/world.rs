//! Failures and ends, of which the board hears as in the real world.

use core::time::Duration;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use loom::sync::atomic::{AtomicBool, Ordering};

use super::event_count::EventCount;
use super::membership::CallId;
use crate::error::Error;
use crate::host::arena::Arena;
use crate::host::watchdog::ControlPlane;
use crate::rank::Rank;

pub(super) struct LocalWorld {
    ended: Vec<AtomicBool>,
    /// Whether there is a failure: loom does not see into the cell beside it.
    has_failed: AtomicBool,
    failure: OnceLock<Failure>,
    event_count: Arc<EventCount>,
    arena: Arc<Arena>,
}

pub(super) struct Failure {
    rank: Rank,
    cause: String,
}

impl Failure {
    pub(super) fn to_error(&self, operation: String) -> Error {
        Error::Peer { rank: self.rank, operation, cause: self.cause.clone() }
    }
}

impl LocalWorld {
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            ended: (0..ranks).map(|_| AtomicBool::new(false)).collect(),
            has_failed: AtomicBool::new(false),
            failure: OnceLock::new(),
            event_count: Arc::new(EventCount::new(true)),
            arena: Arc::default(),
        }
    }

    pub(super) fn event_count(&self) -> Arc<EventCount> {
        self.event_count.clone()
    }

    pub(super) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    pub(super) fn failure(&self) -> Option<&Failure> {
        self.has_failed.load(Ordering::Acquire).then(|| self.failure.get()).flatten()
    }

    pub(super) fn has_ended(&self, rank: Rank) -> bool {
        self.ended[rank.0].load(Ordering::Acquire)
    }

    /// Records that a rank begins no further call.
    pub(super) fn end(&self, rank: Rank) {
        self.ended[rank.0].store(true, Ordering::Release);
        self.event_count.notify();
    }

    pub(super) fn sleep(&self, _rank: Rank, _call: CallId, sleep: &mut dyn FnMut()) {
        sleep();
    }

    /// There is no time.
    pub(super) fn is_overdue(&self, _begun: Instant) -> bool {
        false
    }

    pub(super) fn fail_overdue(&self, call: String, _waited: Duration, _missing: Vec<(Rank, bool)>) {
        panic!("woken without a reason in {call}");
    }
}

impl ControlPlane for LocalWorld {
    fn fail(&self, rank: Rank, cause: String) {
        let _ = self.failure.set(Failure { rank, cause });
        self.has_failed.store(true, Ordering::Release);
        self.event_count.notify();
    }
}
