//! A signal in the midst of a run that was told nothing of signals: the run is saved, and then the process ends.
//!
//! ```text
//! no run is under way   the signal does what the system does: it ends the process; or what the program has said since
//! a run is under way    the run ends after its step, saved, on all ranks; then the process ends with 128 + the signal
//! a second one          the process ends at once, with 128 + the signal
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use signal_hook::low_level;

use super::stop::{SIGNALS, StopHandle};
use crate::error::Result;
use crate::launch;
use crate::system::is_left_to_the_system;

/// What a process's runs have in common, as signals belong to the process.
struct Runs {
    /// Heeds the signals, once there was a run.
    stop: Option<StopHandle>,
    /// Set while no run is under way; without effect once the program has called [`StopHandle::on_signals`].
    idle: Option<Arc<AtomicBool>>,
    under_way: usize,
    /// The signal at which the process ends once no run is under way.
    last: Option<i32>,
}

static RUNS: Mutex<Runs> = Mutex::new(Runs { stop: None, idle: None, under_way: 0, last: None });

fn runs() -> MutexGuard<'static, Runs> {
    RUNS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run of one rank that is under way, for as long as this lives.
pub(super) struct Interruption {
    stop: StopHandle,
}

impl Interruption {
    /// A run begins. What the program handles or ignores itself when the first one does is left to the program.
    pub(super) fn begin() -> Result<Self> {
        let mut runs = runs();
        let idle = runs.idle.get_or_insert_default().clone();
        let stop = match &runs.stop {
            Some(stop) => stop.clone(),
            None => {
                let left: Vec<i32> = SIGNALS.into_iter().filter(|signal| is_left_to_the_system(*signal)).collect();
                runs.stop.insert(StopHandle::on(&left, Some(&idle))?).clone()
            }
        };
        runs.under_way += 1;
        idle.store(false, Ordering::SeqCst);
        Ok(Self { stop })
    }

    /// Asks the run to end at a signal.
    pub(super) fn stop(&self) -> StopHandle {
        self.stop.clone()
    }

    /// The run is over and saved. Comes back unless a signal has ended it, or has come since: then the process ends once all
    /// its ranks are here.
    pub(super) fn end(self, signal: Option<i32>) {
        // What has come after the ranks have agreed is this process's own.
        let Some(signal) = signal.or_else(|| self.stop.signal()) else { return };
        runs().last = Some(signal);
        drop(self);
        // Another rank's run is under way, and ends the process.
        loop {
            thread::park();
        }
    }
}

impl Drop for Interruption {
    fn drop(&mut self) {
        let mut runs = runs();
        runs.under_way -= 1;
        if runs.under_way > 0 {
            return;
        }
        if let Some(signal) = runs.last {
            launch::leave_workers();
            // Not by what other libraries do at an ordered end: their threads are at work, such as those of MPI.
            low_level::exit(128 + signal);
        }
        if let Some(idle) = &runs.idle {
            idle.store(true, Ordering::SeqCst);
        }
    }
}
