//! What all ranks of one launch share: who has ended, and the first failure.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::bell::Bell;
use crate::error::Error;
use crate::rank::Rank;

/// The ranks of one launch.
#[derive(Debug)]
pub(super) struct World {
    ended: Box<[AtomicBool]>,
    failure: OnceLock<Failure>,
    bells: Mutex<Vec<Weak<Bell>>>,
    /// Whether ranks outnumber cores.
    pub(super) crowded: bool,
}

/// The first failure. It stays.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) rank: Rank,
    pub(super) cause: String,
}

impl Failure {
    /// What a rank gets that was released from `operation`.
    pub(super) fn to_error(&self, operation: String) -> Error {
        Error::Peer { rank: self.rank, operation, cause: self.cause.clone() }
    }
}

impl World {
    pub(super) fn new(ranks: usize, cores: usize) -> Self {
        Self {
            ended: (0..ranks).map(|_| AtomicBool::new(false)).collect(),
            failure: OnceLock::new(),
            bells: Mutex::new(Vec::new()),
            crowded: ranks > cores,
        }
    }

    /// A bell that failures and ends ring too.
    pub(super) fn bell(&self) -> Arc<Bell> {
        let bell = Arc::new(Bell::new(self.crowded));
        let mut bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.retain(|bell| bell.strong_count() > 0);
        bells.push(Arc::downgrade(&bell));
        bell
    }

    /// Records that `rank` failed, unless another did before, and releases everybody.
    pub(super) fn fail(&self, rank: Rank, cause: impl FnOnce() -> String) {
        self.failure.get_or_init(|| Failure { rank, cause: cause() });
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
