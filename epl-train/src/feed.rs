//! One loader for the ranks of a process: the first to come reads, and the others get what it read.
//!
//! A loader that shuffles gives each who iterates it another order, so that one rank iterates it. All ranks wait for each other in
//! a step, before any reads the batches of the next one: there is room for those of a step.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use burn::data::dataloader::Progress;

use crate::batch::Whole;

/// What a loader has given.
pub(crate) enum Fed<I> {
    /// A batch, and how far the loader has come.
    Batch(Arc<Whole<I>>, Progress),
    /// The end of an epoch.
    End,
    /// Nothing more: it has failed.
    Failed,
}

impl<I> Clone for Fed<I> {
    fn clone(&self) -> Self {
        match self {
            Self::Batch(whole, progress) => Self::Batch(whole.clone(), progress.clone()),
            Self::End => Self::End,
            Self::Failed => Self::Failed,
        }
    }
}

/// What one rank reads for the others of its process.
pub(crate) struct Feed<I> {
    row: Mutex<Row<I>>,
    filled: Condvar,
    /// Of so many the last ones are kept.
    room: usize,
}

struct Row<I> {
    /// How many were put here.
    count: u64,
    last: VecDeque<Fed<I>>,
    is_closed: bool,
}

impl<I> Feed<I> {
    /// Nothing was read; a step has so many batches.
    pub fn new(batches: usize) -> Self {
        let row = Row { count: 0, last: VecDeque::new(), is_closed: false };
        // Behind them, the end of the epoch.
        Self { row: Mutex::new(row), filled: Condvar::new(), room: batches + 1 }
    }

    /// Gives the others what was read.
    pub fn put(&self, fed: Fed<I>) {
        let mut row = self.lock();
        row.count += 1;
        row.last.push_back(fed);
        if row.last.len() > self.room {
            row.last.pop_front();
        }
        self.filled.notify_all();
    }

    /// The next one, behind as many as this rank has taken; none, when the one who reads has left.
    pub fn take(&self, taken: u64) -> Option<Fed<I>> {
        let waits = |row: &mut Row<I>| row.count <= taken && !row.is_closed;
        let row = self.filled.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        let behind = usize::try_from(row.count.checked_sub(taken)?).ok()?;
        row.last.get(row.last.len().checked_sub(behind)?).cloned()
    }

    /// Nothing more will come.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.filled.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Row<I>> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
