//! How a pass goes back to where it was.

use super::{Context, Moment};

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
