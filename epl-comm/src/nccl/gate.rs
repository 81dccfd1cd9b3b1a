//! In a rank's warm-up, calls go to the device only while the rank's own thread waits.
//!
//! ```text
//! rank's thread   compute ........│ wait ──────────────│ compute ......
//!                                 │ open               │ closed
//! helper thread      meets peers ─┼▶[ NCCL ]──────────▶│
//! ```
//!
//! What is computed for the first time makes the device load kernels, set up communicators and grow its memory, and for
//! much of that the driver waits until all is over that runs on the device. If that is a kernel of NCCL whose peer's
//! device waits in the same way for another one, nobody goes on. So the two are kept apart until all has been loaded: calls
//! meet their peers on the host, and then go to the device while the rank's thread, from which all its other work comes,
//! waits; which it does until they are over. The gate stays open all that time, as what they wait for may be on a peer's
//! device behind a call that waits for one of this rank's. When the program says that the rank is warmed up
//! ([`ProcessGroup::warmed_up`](crate::ProcessGroup::warmed_up)), the gate is left open.
//!
//! What is loaded later, such as the kernels of a first evaluation, still makes the driver wait for calls that run. That
//! ends where calls go to all devices in one order (`launch_order`), since a call then waits for none that comes after it; not
//! where ranks that send to each other load between a send and a receive.

use core::time::Duration;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::communicator::GoOn;
use crate::error::Result;

/// How often who waits looks whether the world goes on.
const LOOK: Duration = Duration::from_millis(20);

/// One rank's.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    /// How many waits of the rank's thread there are, one inside the other.
    waits: usize,
    /// How many calls have gone through and are not over.
    inside: usize,
    is_left_open: bool,
}

/// A call that has gone through, until it is over and this is dropped.
#[derive(Debug)]
pub(super) struct Pass(Arc<Gate>);

/// A wait of the rank's thread.
#[derive(Debug)]
pub(super) struct Open<'a>(&'a Gate);

impl Gate {
    /// Opens it for as long as the calling thread, the rank's own, waits, and then until the calls that have gone through
    /// are over.
    pub(super) fn open(&self) -> Open<'_> {
        self.lock().waits += 1;
        self.changed.notify_all();
        Open(self)
    }

    /// Opens it for good: all has been loaded, or nothing comes from the rank's thread any more.
    pub(super) fn leave_open(&self) {
        self.lock().is_left_open = true;
        self.changed.notify_all();
    }

    /// Opens it for good when the rank's thread is done.
    pub(super) fn until_left(&self) -> impl Drop + '_ {
        struct LeaveOpen<'a>(&'a Gate);
        impl Drop for LeaveOpen<'_> {
            fn drop(&mut self) {
                self.0.leave_open();
            }
        }
        LeaveOpen(self)
    }

    /// Whether it was opened for good.
    pub(super) fn is_left_open(&self) -> bool {
        self.lock().is_left_open
    }

    /// Waits until it is open.
    pub(super) fn enter(self: &Arc<Self>, go_on: &GoOn<'_>) -> Result<Pass> {
        let mut state = self.lock();
        while state.waits == 0 && !state.is_left_open {
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            go_on()?;
        }
        state.inside += 1;
        Ok(Pass(self.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        // Their helpers see to it that they end.
        while state.waits == 1 && state.inside > 0 && !state.is_left_open {
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waits -= 1;
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.lock().inside -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn calls_go_through_while_the_rank_waits_which_waits_for_them() {
        let gate = Arc::new(Gate::default());
        let stop = || Err(Error::invalid("closed"));
        assert!(gate.enter(&stop).is_err());
        let open = gate.open();
        let pass = gate.enter(&stop).unwrap();
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| drop(open));
            // What the first call waits for may be behind another one of this rank's.
            let second = gate.enter(&stop).unwrap();
            drop(pass);
            assert!(!closing.is_finished());
            drop(second);
            closing.join().unwrap();
        });
        assert!(gate.enter(&stop).is_err(), "it is closed again");
        gate.leave_open();
        assert!(gate.enter(&stop).is_ok());
    }
}
