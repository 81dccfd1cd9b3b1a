//! The numbers of the stages of a call, which are taken together with its own.
//!
//! Peers wait for whoever has taken the number of a call, and for nobody else. So a rank's own thread takes all of them
//! when it issues the call, whichever thread then runs it: when the rank ends, it is known what it still takes part in.

use core::cell::RefCell;
use core::ops::Deref;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec;

use crate::error::{Error, Result};
use crate::operation::{Call, Operation};

/// Stages in one group, in their order, with their numbers there.
pub(super) type Stages = vec::IntoIter<(Operation, u64)>;

/// Those of one call: inside this member's host, and between the leaders.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) inside: Stages,
    pub(super) between: Stages,
}

/// Those of the calls that have been issued and not yet run.
#[derive(Debug, Default)]
pub(super) struct StageNumbers(Mutex<Issued>);

#[derive(Debug, Default)]
struct Issued {
    last: u64,
    issued: HashMap<u64, Taken>,
}

impl StageNumbers {
    /// The next number of a call, and with it those that `take` takes for its stages.
    pub(super) fn issue(&self, take: impl FnOnce() -> Taken) -> u64 {
        let mut state = self.lock();
        state.last += 1;
        let sequence = state.last;
        state.issued.insert(sequence, take());
        sequence
    }

    /// A call that is about to be run.
    ///
    /// # Errors
    ///
    /// When nobody has taken its number, or it has been run.
    pub(super) fn run(&self, call: Call) -> Result<Whole> {
        let Some(Taken { inside, between }) = self.lock().issued.remove(&call.sequence) else {
            return Err(Error::invalid(format!("{call} has number {}, which was not taken for it", call.sequence)));
        };
        Ok(Whole { call: Arc::new(call), inside: RefCell::new(inside), between: RefCell::new(between) })
    }

    /// A call that nobody runs.
    pub(super) fn forget(&self, sequence: u64) {
        self.lock().issued.remove(&sequence);
    }

    fn lock(&self) -> MutexGuard<'_, Issued> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A whole call, with those of its stages that have not been made yet.
pub(super) struct Whole {
    pub(super) call: Arc<Call>,
    pub(super) inside: RefCell<Stages>,
    pub(super) between: RefCell<Stages>,
}

impl Whole {
    /// Whether all stages have been made.
    pub(super) fn is_over(&self) -> bool {
        self.inside.borrow().len() == 0 && self.between.borrow().len() == 0
    }
}

impl Deref for Whole {
    type Target = Call;

    fn deref(&self) -> &Call {
        &self.call
    }
}
