//! Panics that are looked for: a segment whose parameters do not fit together is the answer to a question, and no news.

use std::cell::Cell;
use std::panic::{set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, whose panics on this thread print nothing.
pub(super) fn quietly<T>(f: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                before(info);
            }
        }));
    });
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            IS_QUIET.set(self.0);
        }
    }
    let _before = Before(IS_QUIET.replace(true));
    f()
}
