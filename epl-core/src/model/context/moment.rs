//! What the layers' random numbers depend on.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

/// One forward pass over one micro-batch: what the layers may ask about it.
#[derive(Clone, Debug)]
pub struct Pass {
    /// The optimizer step, from 0.
    pub step: u64,
    /// Whether dropout and jitter are active.
    pub training: bool,
    /// The global sample number of every row.
    pub samples: Arc<[u64]>,
    /// Whether the rows are a stand-in that must not count: see [`MicroBatch`](crate::MicroBatch).
    pub empty: bool,
}

/// The calls of one layer in one segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calls {
    pub(super) segment: (usize, u64),
    pub(super) count: u64,
}

/// Where a pass is: what the layers' random numbers depend on.
pub(crate) struct Moment {
    pub(super) pass: Pass,
    pub(super) segment: (usize, u64),
    pub(super) calls: HashMap<u64, Calls>,
    pub(super) replay: bool,
}

thread_local! {
    /// Whether what runs is run twice by something that knows no context.
    static WITHOUT_CONTEXT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, in which no layer may ask a context what would be another answer the second time.
pub(crate) fn without_context<T>(f: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            WITHOUT_CONTEXT.set(self.0);
        }
    }
    let _before = Before(WITHOUT_CONTEXT.replace(true));
    f()
}

/// Unwinds inside [`without_context`].
pub(super) fn needs_context() {
    if WITHOUT_CONTEXT.get() {
        epl_comm::unwind(epl_comm::Error::invalid(
            "`checkpoint` runs a layer twice that draws random numbers, or tells or keeps something; use \
             `Context::checkpoint`, which lets it do the same again",
        ));
    }
}
