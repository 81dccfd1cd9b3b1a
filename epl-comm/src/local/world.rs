//! What all ranks of one launch share: who has ended, who waits for whom, and the first failure.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::bell::Bell;
use super::waits::{Wait, Waits};
use crate::error::Error;
use crate::process_group::Driver;
use crate::rank::Rank;

/// The ranks of one launch.
#[derive(Debug)]
pub(super) struct World {
    ended: Box<[AtomicBool]>,
    drivers: Box<[Driver]>,
    waits: Waits,
    failure: OnceLock<Failure>,
    bells: Mutex<Vec<Weak<Bell>>>,
    /// Whether ranks outnumber cores.
    crowded: bool,
}

/// The first failure. It stays.
#[derive(Debug)]
pub(super) struct Failure {
    /// Who caused it; of several who share it, the lowest.
    pub(super) rank: Rank,
    cause: Cause,
}

#[derive(Debug)]
enum Cause {
    /// The rank's own; others learn that a peer failed.
    Own(String),
    /// Nobody's in particular; all get the same error.
    Shared(Error),
}

impl Failure {
    /// What a rank gets that was released from `operation`.
    pub(super) fn to_error(&self, operation: String) -> Error {
        match &self.cause {
            Cause::Own(cause) => Error::Peer { rank: self.rank, operation, cause: cause.clone() },
            Cause::Shared(error) => error.clone(),
        }
    }
}

impl World {
    pub(super) fn new(ranks: usize, cores: usize) -> Self {
        Self {
            ended: (0..ranks).map(|_| AtomicBool::new(false)).collect(),
            drivers: (0..ranks).map(|_| Driver::default()).collect(),
            waits: Waits::new(ranks),
            failure: OnceLock::new(),
            bells: Mutex::new(Vec::new()),
            crowded: ranks > cores,
        }
    }

    /// The thread that uses a rank's groups.
    pub(super) fn driver(&self, rank: Rank) -> &Driver {
        &self.drivers[rank.0]
    }

    /// A bell that failures and ends ring too.
    pub(super) fn bell(&self) -> Arc<Bell> {
        let bell = Arc::new(Bell::new(self.crowded));
        let mut bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.retain(|bell| bell.strong_count() > 0);
        bells.push(Arc::downgrade(&bell));
        bell
    }

    /// Calls `sleep`, in which a thread of `rank` blocks for `wait`. When that is the rank's own thread and closes a
    /// circle of ranks that wait for each other, the world fails first.
    pub(super) fn sleep(&self, rank: Rank, wait: Wait, sleep: &mut dyn FnMut()) {
        if !self.driver(rank).is_here() {
            // A helper thread: its rank goes on.
            return sleep();
        }
        if let Some(circle) = self.waits.begin(rank, wait) {
            self.fail_together(circle[0].0, Error::Deadlock { circle });
        }
        sleep();
        self.waits.end(rank);
    }

    /// Records that `rank` failed, unless another did before, and releases everybody.
    pub(super) fn fail(&self, rank: Rank, cause: String) {
        self.record(Failure { rank, cause: Cause::Own(cause) });
    }

    /// Records a failure that is no single rank's fault, unless there was one before, and releases everybody.
    pub(super) fn fail_together(&self, lowest: Rank, error: Error) {
        self.record(Failure { rank: lowest, cause: Cause::Shared(error) });
    }

    fn record(&self, failure: Failure) {
        self.failure.get_or_init(|| failure);
        self.ring();
    }

    /// The first failure, if there was one.
    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    /// Records that the rank's closure has returned: it begins no further call.
    pub(super) fn end(&self, rank: Rank) {
        self.ended[rank.0].store(true, Ordering::Release);
        self.ring();
    }

    pub(super) fn has_ended(&self, rank: Rank) -> bool {
        self.ended[rank.0].load(Ordering::Acquire)
    }

    fn ring(&self) {
        let bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.iter().filter_map(Weak::upgrade).for_each(|bell| bell.ring());
    }
}
