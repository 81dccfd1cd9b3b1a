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
    /// Why a layer may not ask its context, where what runs is run twice by something that knows none.
    static WITHOUT_CONTEXT: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Runs `f`, in which no layer may ask a context what would be another answer the second time: it is refused, for this reason.
pub(crate) fn without_context<T>(refusal: &'static str, f: impl FnOnce() -> T) -> T {
    struct Before(Option<&'static str>);
    impl Drop for Before {
        fn drop(&mut self) {
            WITHOUT_CONTEXT.set(self.0);
        }
    }
    let _before = Before(WITHOUT_CONTEXT.replace(Some(refusal)));
    f()
}

/// Unwinds inside [`without_context`].
pub(super) fn needs_context() {
    if let Some(refusal) = WITHOUT_CONTEXT.get() {
        epl_comm::unwind(epl_comm::Error::invalid(refusal));
    }
}
