//! Ends a run from outside.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{SigId, flag, low_level};

use crate::error::{Error, Result};

/// The signals that ask a process to end.
pub(super) const SIGNALS: [i32; 2] = [SIGINT, SIGTERM];

/// What the signals do by default where no run is under way, until the program takes them over.
struct Defaults {
    /// Whether the program has asked for them, by [`StopHandle::on_signals`].
    are_taken_over: bool,
    registered: Vec<SigId>,
}

static DEFAULTS: Mutex<Defaults> = Mutex::new(Defaults { are_taken_over: false, registered: Vec::new() });

/// Asks a run to end. A cheap clone, for a signal, a timer or a hook.
///
/// One rank that was asked is enough: the ranks agree at the end of every step, and all end after the same one, with
/// a last evaluation and checkpoint if those are on. A signal leaves the evaluation out.
///
/// ```
/// # use epl_core::{Model, Result, Trainer, data::TrainData};
/// use std::time::Duration;
/// use epl_core::StopHandle;
/// # fn example<M: Model>(trainer: Trainer<M>, data: TrainData<u8, M::Batch>) -> Result<()> where M::Batch: 'static {
/// // Ends, saved, after the step in which the hour is over.
/// let trained = trainer.with_stop(StopHandle::after(Duration::from_secs(3600))).fit(&data)?;
/// # let _ = trained;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopHandle {
    requested: Arc<AtomicBool>,
    /// The last signal that has come; 0: none.
    signal: Arc<AtomicUsize>,
    /// Set by a signal, so that the next one ends the process.
    interrupted: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl StopHandle {
    /// Not asked yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks by itself once this time has passed.
    pub fn after(limit: Duration) -> Self {
        // A time too far away to be told is never reached.
        Self { deadline: Instant::now().checked_add(limit), ..Self::default() }
    }

    /// Asks by itself when the process gets a SIGINT (Ctrl-C) or a SIGTERM, as a cluster sends it some time before it
    /// kills.
    ///
    /// The step is ended, the run saved, and no more: what else is left to be done, such as an evaluation, is left to the
    /// run that goes on. A second such signal ends the process at once, with the status that a shell shows for it: 130 or
    /// 143.
    ///
    /// A trainer that is given none does so by itself: see [`Trainer`](super::Trainer). This one is for a program that has
    /// something to do after the interrupted run; it then ends with [`Summary::exit_code`](super::Summary::exit_code).
    ///
    /// Signals belong to the process, so call it once there, before [`launch`](crate::launch), and give every rank a
    /// clone. From then on the first signal does not end the process by itself, whether a run is under way or not, also
    /// where an earlier run was given no `StopHandle`.
    ///
    /// # Errors
    ///
    /// When the system does not let the process handle them.
    pub fn on_signals() -> Result<Self> {
        let stop = Self::on(&SIGNALS, None)?;
        let mut defaults = DEFAULTS.lock().unwrap_or_else(PoisonError::into_inner);
        defaults.are_taken_over = true;
        for registered in defaults.registered.drain(..) {
            low_level::unregister(registered);
        }
        Ok(stop)
    }

    /// Asks by itself at one of these signals; while `idle` is set, they do what the system does by default, until the
    /// program takes them over.
    pub(super) fn on(signals: &[i32], idle: Option<&Arc<AtomicBool>>) -> Result<Self> {
        let stop = Self::default();
        let mut defaults = DEFAULTS.lock().unwrap_or_else(PoisonError::into_inner);
        for &signal in signals {
            let by_default = idle.filter(|_| !defaults.are_taken_over);
            let by_default = by_default.map(|idle| flag::register_conditional_default(signal, idle.clone()));
            let by_default = by_default.transpose().map(|registered| defaults.registered.extend(registered));
            // The first of these three sees the flag as it was before this signal.
            by_default
                .and_then(|()| flag::register_conditional_shutdown(signal, 128 + signal, stop.interrupted.clone()))
                .and_then(|_| flag::register_usize(signal, stop.signal.clone(), signal as usize))
                .and_then(|_| flag::register(signal, stop.interrupted.clone()))
                .map_err(|cause| Error::invalid(format!("signal {signal} cannot be handled: {cause}")))?;
        }
        Ok(stop)
    }

    /// Asks.
    pub fn request(&self) {
        self.requested.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked.
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
            || self.is_interrupted()
            || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Whether it was asked by a signal.
    pub fn is_interrupted(&self) -> bool {
        self.signal().is_some()
    }

    /// The signal by which it was asked, if it was.
    pub fn signal(&self) -> Option<i32> {
        i32::try_from(self.signal.load(Ordering::Relaxed)).ok().filter(|signal| *signal > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_are_asked_together_and_a_limit_asks_by_itself() {
        let stop = StopHandle::new();
        let clone = stop.clone();
        assert!(!clone.is_requested());
        stop.request();
        assert!(clone.is_requested() && !clone.is_interrupted());
        assert_eq!(clone.signal(), None);
        assert!(StopHandle::after(Duration::ZERO).is_requested());
        assert!(!StopHandle::after(Duration::MAX).is_requested());
        assert!(!StopHandle::after(Duration::from_secs(3600)).is_requested());
    }
}
