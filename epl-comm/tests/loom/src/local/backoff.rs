//! A waiter looks once, then sleeps: more looks are more orders of steps, and no other ones.

use std::time::Duration;

pub(super) const SPINS: usize = 1;
pub(super) const SPINS_SHARED: usize = 1;
pub(super) const LOOKS: usize = 1;
pub(super) const YIELDS: usize = 0;
/// Loom's time stands still: a notification that is lost is a deadlock.
pub(super) const NAP: Duration = Duration::from_secs(1);
