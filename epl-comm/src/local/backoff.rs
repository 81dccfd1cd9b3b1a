//! How long a waiter looks before it sleeps.

use std::time::Duration;

/// Rounds of looks before a waiter lets others run: a microsecond or two, when every rank has a core. No more, as the
/// system may have put the peer on this very core all the same.
pub(super) const SPINS: usize = 50;
/// The same when ranks share cores: the peer probably needs this one.
pub(super) const SPINS_SHARED: usize = 5;
/// Looks in a round, between two pauses of the core, which may take as long as the wait.
pub(super) const LOOKS: usize = 16;
/// Looks with a yield in between before a waiter sleeps: some tens of microseconds when nobody else wants the core.
pub(super) const YIELDS: usize = 100;
/// A sleeper looks this often even if nobody notifies. Only a guard: no notification is lost.
pub(super) const NAP: Duration = Duration::from_millis(100);
