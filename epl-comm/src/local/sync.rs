//! What threads share and wait with: the types of `std`, in whose place a model of the board has its own (`tests/loom`).

use core::fmt;

pub(super) use core::hint::spin_loop;
pub(super) use std::sync::{Condvar, Mutex};
pub(super) use std::thread::yield_now;

pub(super) mod atomic {
    pub(in super::super) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
}

/// A cell whose value is reached inside of closures: so the model sees who does when.
#[derive(Default)]
pub(super) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(super) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Looks at the value. That nobody changes it meanwhile is up to the caller.
    pub(super) fn with<R>(&self, look: impl FnOnce(*const T) -> R) -> R {
        look(self.0.get())
    }

    /// Changes the value. That nobody else looks at it meanwhile is up to the caller.
    pub(super) fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
        change(self.0.get())
    }
}

impl<T> fmt::Debug for UnsafeCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnsafeCell").finish_non_exhaustive()
    }
}
