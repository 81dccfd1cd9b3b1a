//! What the layers' random numbers depend on, and how a pass goes back to where it was.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use super::{Calls, Context};

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

/// Where a pass is: what the layers' random numbers depend on.
pub(crate) struct Moment {
    pass: Pass,
    segment: (usize, u64),
    calls: HashMap<u64, Calls>,
    replay: bool,
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

/// While it is held, what runs was run before, in the same pass: see [`Context::replaying`].
#[must_use = "it ends when it is dropped"]
pub(crate) struct Replaying<'a> {
    context: &'a Context,
    before: bool,
}

impl Drop for Replaying<'_> {
    fn drop(&mut self) {
        self.context.state().replay = self.before;
    }
}

/// Moves a context back, also when what was run unwinds.
struct Back<'a> {
    context: &'a Context,
    now: Option<Moment>,
}

impl Drop for Back<'_> {
    fn drop(&mut self) {
        if let Some(now) = self.now.take() {
            self.context.move_to(now);
        }
    }
}

impl Context {
    /// Where the current pass is.
    pub(crate) fn moment(&self) -> Moment {
        let state = self.state();
        Moment { pass: state.pass.clone(), segment: state.segment, calls: state.calls.clone(), replay: state.replay }
    }

    /// Says that what runs was run before, or is run to be looked at: what it tells beside its result, or keeps, is not told
    /// nor kept. It ends when the result is dropped, also when what was run fails, and holds for all passes until then.
    pub(crate) fn replaying(&self) -> Replaying<'_> {
        Replaying { context: self, before: core::mem::replace(&mut self.state().replay, true) }
    }

    /// Runs `f` at a moment that was, for the second time: its layers draw what they drew then, and tell nothing.
    pub(crate) fn at<T>(&self, moment: Moment, f: impl FnOnce() -> T) -> T {
        let now = self.move_to(Moment { replay: true, ..moment });
        let _back = Back { context: self, now: Some(now) };
        f()
    }

    /// Returns where the pass was.
    fn move_to(&self, Moment { pass, segment, calls, replay }: Moment) -> Moment {
        let mut state = self.state();
        Moment {
            pass: core::mem::replace(&mut state.pass, pass),
            segment: core::mem::replace(&mut state.segment, segment),
            calls: core::mem::replace(&mut state.calls, calls),
            replay: core::mem::replace(&mut state.replay, replay),
        }
    }
}
