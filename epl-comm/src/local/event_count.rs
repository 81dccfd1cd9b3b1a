//! Waiting for a peer: fast when it is about to come, cheap when it is not.

use std::sync::PoisonError;

use super::backoff::{LOOKS, NAP, SPINS, SPINS_SHARED, YIELDS};
use super::sync::atomic::{AtomicUsize, Ordering, fence};
use super::sync::{Condvar, Mutex, spin_loop, yield_now};

/// Where the waiters of one board sleep.
#[derive(Debug)]
pub(super) struct EventCount {
    spins: usize,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl EventCount {
    /// `shared`: whether more threads wait than there are cores.
    pub(super) fn new(shared: bool) -> Self {
        let spins = if shared { SPINS_SHARED } else { SPINS };
        Self { spins, sleepers: AtomicUsize::new(0), lock: Mutex::new(()), changed: Condvar::new() }
    }

    /// To be called after a change that somebody may wait for.
    pub(super) fn notify(&self) {
        // Pairs with the fence in `sleep`: either we see the sleeper, or it sees our change.
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            // Taken so that a sleeper is either before its last look or inside its wait.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }

    /// Looks closely for a microsecond or two whether the peer `has_come`.
    pub(super) fn spin(&self, has_come: impl Fn() -> bool) -> bool {
        (0..self.spins).any(|round| {
            if round > 0 {
                spin_loop();
            }
            (0..LOOKS).any(|_| has_come())
        })
    }

    /// Looks for a while longer whether it `is_over`, and lets others run in between.
    pub(super) fn look(&self, is_over: impl Fn() -> bool) -> bool {
        (0..YIELDS).any(|_| {
            let is_over = is_over();
            if !is_over {
                yield_now();
            }
            is_over
        })
    }

    /// Sleeps until it `is_over`, which only looks: it must not notify.
    pub(super) fn sleep(&self, is_over: impl Fn() -> bool) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !is_over() {
            guard = self.changed.wait_timeout(guard, NAP).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}
