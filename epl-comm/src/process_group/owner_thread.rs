//! The one thread that uses a rank's groups.

use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};

/// The first thread that uses a group of a rank: from then on the only one that uses any group of it.
///
/// One thread per rank, not one per group, so that a transport knows: while this thread sleeps, its rank begins no
/// call anywhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnerThread(Arc<OnceLock<ThreadId>>);

impl OwnerThread {
    /// Makes the calling thread the owner if there is none yet; whether it is the owner now.
    pub(super) fn enter(&self) -> bool {
        let here = here();
        *self.0.get_or_init(|| here) == here
    }

    /// Whether the calling thread is the owner.
    pub(crate) fn is_here(&self) -> bool {
        self.0.get() == Some(&here())
    }
}

/// The calling thread, without the reference count of its handle.
fn here() -> ThreadId {
    thread_local! {
        static HERE: ThreadId = thread::current().id();
    }
    HERE.with(|here| *here)
}
