//! One loader for the ranks of a process: the first to come reads, and the others get what it read.
//!
//! A loader that shuffles gives each who iterates it another order, so that one rank iterates it. Every rank runs its rows of a
//! batch before any reads the next one's, as all wait for each other in a step: there is room for one batch.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use burn::data::dataloader::Progress;

use crate::batch::Whole;

/// A batch, and how far the loader has come; nothing at the end of an epoch.
pub(crate) type Fed<I> = Option<(Arc<Whole<I>>, Progress)>;

/// What one rank reads for the others of its process.
pub(crate) struct Feed<I> {
    slot: Mutex<Slot<I>>,
    filled: Condvar,
}

struct Slot<I> {
    /// How many were put here.
    count: u64,
    last: Fed<I>,
    is_closed: bool,
}

impl<I> Feed<I> {
    /// Nothing was read.
    pub fn new() -> Self {
        Self { slot: Mutex::new(Slot { count: 0, last: None, is_closed: false }), filled: Condvar::new() }
    }

    /// Gives the others what was read.
    pub fn put(&self, fed: Fed<I>) {
        let mut slot = self.lock();
        (slot.count, slot.last) = (slot.count + 1, fed);
        self.filled.notify_all();
    }

    /// The next one, behind as many as this rank has taken; none, when the one who reads has left.
    pub fn take(&self, taken: u64) -> Option<Fed<I>> {
        let waits = |slot: &mut Slot<I>| slot.count <= taken && !slot.is_closed;
        let slot = self.filled.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        (slot.count == taken + 1).then(|| slot.last.clone())
    }

    /// Nothing more will come.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.filled.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Slot<I>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
