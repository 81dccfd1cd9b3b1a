//! Loom's types in place of those of `std::sync`.

pub(super) use loom::cell::UnsafeCell;
pub(super) use loom::hint::spin_loop;
pub(super) use loom::sync::{Condvar, Mutex};
pub(super) use loom::thread::yield_now;

pub(super) mod atomic {
    pub(in super::super) use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
}
