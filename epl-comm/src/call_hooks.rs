//! What a thread does around its calls: lets go of a lock that others need before they come.

use std::cell::RefCell;

use crate::scoped::scoped;

/// What a thread does around each of its calls: see [`with_call_hooks`].
#[derive(Clone, Copy, Debug)]
pub struct CallHooks {
    /// Before a call, which may wait for other ranks.
    pub before: fn(),
    /// After it, also where it failed.
    pub after: fn(),
}

thread_local! {
    static HOOKS: RefCell<Option<CallHooks>> = const { RefCell::new(None) };
}

/// Runs `f`, in which this thread runs the hooks around every call of every group of more than one, started or blocking, and
/// around every [`Pending::wait`](crate::Pending::wait).
///
/// They also run where a result is only given again ([`ProcessGroup::replay`](crate::ProcessGroup::replay)), so that whoever
/// counts them counts the same when something is run again.
pub fn with_call_hooks<T>(hooks: CallHooks, f: impl FnOnce() -> T) -> T {
    scoped(&HOOKS, hooks, f)
}

/// Runs a call, and the thread's hooks around it, if it has some; a call inside it has none.
pub(crate) fn hooked<T>(call: impl FnOnce() -> T) -> T {
    struct After(CallHooks);
    impl Drop for After {
        fn drop(&mut self) {
            (self.0.after)();
            HOOKS.set(Some(self.0));
        }
    }
    let Some(hooks) = HOOKS.take() else { return call() };
    // Made first: a hook that fails leaves the others in their place.
    let _after = After(hooks);
    (hooks.before)();
    call()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static NOTED: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    }

    const HOOKS: CallHooks = CallHooks {
        before: || NOTED.set((NOTED.get().0 + 1, NOTED.get().1)),
        after: || NOTED.set((NOTED.get().0, NOTED.get().1 + 1)),
    };

    #[test]
    fn hooks_run_around_the_outermost_call_and_only_in_their_scope() {
        assert_eq!(hooked(|| NOTED.get()), (0, 0));
        let inside = with_call_hooks(HOOKS, || {
            let inside = hooked(|| hooked(|| NOTED.get()));
            assert!(crate::catch(|| hooked(|| panic!("a call"))).is_err());
            inside
        });
        assert_eq!((inside, NOTED.get()), ((1, 0), (2, 2)));
        assert_eq!(hooked(|| NOTED.get()), (2, 2));
    }
}
