//! Ends a run from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Asks a run to end. A cheap clone, for a signal handler, a timer or a hook.
///
/// One rank that was asked is enough: the ranks agree at the end of every step, and all end after the same one, with
/// a last evaluation and checkpoint if those are on.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    requested: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl Stop {
    /// Not asked yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks by itself once this time has passed.
    pub fn after(limit: Duration) -> Self {
        // A time too far away to be told is never reached.
        Self { deadline: Instant::now().checked_add(limit), ..Self::default() }
    }

    /// Asks.
    pub fn request(&self) {
        self.requested.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked.
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed) || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_are_asked_together_and_a_limit_asks_by_itself() {
        let stop = Stop::new();
        let clone = stop.clone();
        assert!(!clone.is_requested());
        stop.request();
        assert!(clone.is_requested());
        assert!(Stop::after(Duration::ZERO).is_requested());
        assert!(!Stop::after(Duration::MAX).is_requested());
        assert!(!Stop::after(Duration::from_secs(3600)).is_requested());
    }
}
