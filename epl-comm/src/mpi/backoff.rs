//! Waiting for what the library does: fast when it is about to be done, cheap when it is not.

use std::thread;
use std::time::{Duration, Instant};

/// Looks before a waiter lets others run: some microseconds, when every rank has a core.
const SPINS: u32 = 100;
/// The same when ranks share cores: the peer probably needs this one.
const SPINS_SHARED: u32 = 3;
/// How long a waiter only yields while a peer has not come.
const YIELDS: Duration = Duration::from_millis(2);
/// How long it only yields while data moves, which takes both ends: a nap would hold it up.
const YIELDS_MOVING: Duration = Duration::from_secs(10);
/// Between two looks after that.
const NAP: Duration = Duration::from_micros(100);
/// The same after a while.
const LONG_NAP: Duration = Duration::from_micros(300);
/// A waiter that yields or naps looks around so often.
const PACE: Duration = Duration::from_millis(5);

/// How one wait goes on.
pub(super) struct Backoff {
    spins: u32,
    yields: Duration,
    looks: u32,
    begun: Option<Instant>,
    looked_around: Duration,
}

impl Backoff {
    /// `is_crowded`: whether ranks share cores; `moves`: whether all peers have come, and data moves.
    pub(super) fn new(is_crowded: bool, moves: bool) -> Self {
        let spins = if is_crowded { SPINS_SHARED } else { SPINS };
        let yields = if moves { YIELDS_MOVING } else { YIELDS };
        Self { spins, yields, looks: 0, begun: None, looked_around: Duration::ZERO }
    }

    /// Lets some time pass. Now and then, when it is time to look around, says how long it has been.
    pub(super) fn pause(&mut self) -> Option<Duration> {
        self.looks = self.looks.saturating_add(1);
        if self.looks <= self.spins {
            core::hint::spin_loop();
            return None;
        }
        let waited = self.begun.get_or_insert_with(Instant::now).elapsed();
        if waited < self.yields {
            thread::yield_now();
        } else {
            thread::sleep(if waited < 10 * YIELDS { NAP } else { LONG_NAP });
        }
        if waited < self.looked_around + PACE {
            return None;
        }
        self.looked_around = waited;
        Some(waited)
    }
}
