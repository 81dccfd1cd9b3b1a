//! The order in which a rank's calls, of all its groups, are put on its device: that in which they were made.
//!
//! Started calls of several groups are put there by a helper thread each. Kernels of NCCL wait on the device for their
//! peers, and two communicators whose kernels come to two devices in different orders may each hold what the other
//! needs: NCCL asks for one order on all ranks. That of the calls is one, wherever ranks make the calls of their groups
//! in the same order. Links are apart, as their order differs: one end sends before it receives, the other receives before
//! it sends.
//!
//! Between processes, a call that meets its peers on the host keeps its turn meanwhile, so that all calls of a rank but those
//! of links wait until the members of an earlier started one have come. Where the ranks are threads of one process, all calls meet on the host first, and go to all devices in the order in
//! which they have met there, links with them.

use core::time::Duration;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::communicator::GoOn;
use crate::error::Result;
use crate::rank::Rank;

/// How often who waits looks whether the world goes on.
const LOOK: Duration = Duration::from_millis(20);

/// The turns of one rank.
#[derive(Debug, Default)]
pub(super) struct LaunchOrder {
    turns: Mutex<Turns>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Turns {
    next: u64,
    /// Those that were taken and are not over.
    open: BTreeSet<u64>,
}

/// The turns of all ranks of a process in calls at which they have met.
#[derive(Debug)]
pub(super) struct Meetings {
    orders: Vec<Arc<LaunchOrder>>,
    met: Mutex<Met>,
}

#[derive(Debug, Default)]
struct Met {
    next: u64,
    /// By the group and the number of the call there: its turn, and how many members have yet to take it.
    turns: HashMap<(String, u64), (u64, usize)>,
}

impl Meetings {
    /// Of so many ranks.
    pub(super) fn new(ranks: usize) -> Self {
        Self { orders: (0..ranks).map(|_| Arc::default()).collect(), met: Mutex::default() }
    }

    /// The turn of a rank in a call at which these have met.
    pub(super) fn take(&self, group: &str, sequence: u64, members: &[Rank], rank: Rank) -> Turn {
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (group.to_string(), sequence);
        let (number, left) = met.turns.remove(&key).unwrap_or_else(|| {
            // The first to come takes it for all, so that no rank sees a later one first.
            met.next += 1;
            members.iter().for_each(|member| self.orders[member.0].open(met.next));
            (met.next, members.len())
        });
        if left > 1 {
            met.turns.insert(key, (number, left - 1));
        }
        Turn { order: self.orders[rank.0].clone(), number }
    }
}

/// One call's turn, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    order: Arc<LaunchOrder>,
    number: u64,
}

impl LaunchOrder {
    /// The next turn: to be taken on the rank's own thread, in the order of the calls.
    pub(super) fn take(self: &Arc<Self>) -> Turn {
        let mut turns = self.lock();
        let number = turns.next;
        turns.next += 1;
        turns.open.insert(number);
        Turn { order: self.clone(), number }
    }

    fn open(&self, number: u64) {
        self.lock().open.insert(number);
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Waits until all turns before it are over.
    pub(super) fn wait(&self, go_on: &GoOn<'_>) -> Result<()> {
        let mut turns = self.order.lock();
        while turns.open.first().is_some_and(|first| *first < self.number) {
            turns = self.order.changed.wait_timeout(turns, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            go_on()?;
        }
        Ok(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.order.lock().open.remove(&self.number);
        self.order.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn ranks_that_have_met_take_their_turns_in_one_order() {
        let meetings = Meetings::new(3);
        let take = |group: &str, members: &[usize], rank| {
            let members: Vec<Rank> = members.iter().copied().map(Rank).collect();
            meetings.take(group, 1, &members, Rank(rank))
        };
        let stop = || Err(Error::invalid("waited"));
        // Rank 1 comes to the second one first.
        let (a0, b1, b2) = (take("a", &[0, 1], 0), take("b", &[1, 2], 1), take("b", &[1, 2], 2));
        assert!(a0.wait(&stop).is_ok() && b2.wait(&stop).is_ok() && b1.wait(&stop).is_err());
        drop(take("a", &[0, 1], 1));
        assert!(b1.wait(&stop).is_ok());
        assert!(meetings.met.lock().unwrap().turns.is_empty());
    }

    #[test]
    fn a_turn_waits_for_those_before_it_and_ends_when_it_is_dropped() {
        let order = Arc::new(LaunchOrder::default());
        let (first, second, third) = (order.take(), order.take(), order.take());
        let stop = || Err(Error::invalid("waited"));
        assert!(first.wait(&stop).is_ok() && second.wait(&stop).is_err());
        drop(second);
        assert!(third.wait(&stop).is_err());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| third.wait(&|| Ok(())));
            drop(first);
            assert!(waits.join().unwrap().is_ok());
        });
    }
}
