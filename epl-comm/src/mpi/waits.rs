//! Which calls the ranks of this process have taken numbers for, and what they wait in.
//!
//! Nobody knows that of all ranks. Who has waited for long asks the processes of those it waits for (`wait_query`), which
//! answer from here.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde::{Deserialize, Serialize};

use crate::rank::Rank;

/// A group, its links from lower to higher members, those from higher to lower, the group of its leaders, and those of
/// leaders inside its hosts: each has messages of its own.
pub(super) const KINDS: u64 = 5;
pub(super) const UPWARD: u64 = 1;
pub(super) const DOWNWARD: u64 = 2;
pub(super) const LEADERS: u64 = 3;
pub(super) const HOST_LEADERS: u64 = 4;

/// One call of one group, or of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct CallKey {
    /// The number of the group or link, which is the same on all its members.
    pub(super) channel: u64,
    pub(super) sequence: u64,
}

/// What somebody waits in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Wait {
    pub(super) at: CallKey,
    /// The call, with its group.
    pub(super) call: String,
    /// Those who have not come, or not sent all of their data.
    pub(super) missing: Vec<Rank>,
    /// Whether nothing of the rank can go on before: no started call of it may be one that another waits for.
    pub(super) is_sure: bool,
}

/// What a process says of one of its ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answer {
    /// What it did last.
    pub(super) last: String,
    /// What keeps it.
    pub(super) wait: Option<Wait>,
}

#[derive(Debug, Default)]
pub(super) struct ProcessWaits(Mutex<WaitTable>);

#[derive(Debug, Default)]
struct WaitTable {
    /// The last number that a rank has taken in a group.
    taken: HashMap<(Rank, u64), Weak<AtomicU64>>,
    /// What is waited in, in each group of a rank.
    waits: HashMap<(Rank, u64), Wait>,
    /// In which group a rank's own thread waits, and for which call.
    asleep: HashMap<Rank, (u64, String)>,
}

impl ProcessWaits {
    /// Counts the calls of a rank in a group.
    pub(super) fn counter(&self, rank: Rank, channel: u64) -> Arc<AtomicU64> {
        let counter = Arc::new(AtomicU64::new(0));
        let taken = &mut self.lock().taken;
        taken.retain(|_, counter| counter.strong_count() > 0);
        taken.insert((rank, channel), Arc::downgrade(&counter));
        counter
    }

    /// What a rank has counted in all its groups.
    pub(super) fn counts(&self, rank: Rank) -> Vec<(u64, u64)> {
        let state = self.lock();
        let own = state.taken.iter().filter(|((other, _), _)| *other == rank);
        own.filter_map(|((_, channel), counter)| Some((*channel, counter.upgrade()?.load(Ordering::Acquire)))).collect()
    }

    /// Records what a thread of `rank` waits in.
    pub(super) fn begin(&self, rank: Rank, wait: Wait) {
        self.lock().waits.insert((rank, wait.at.channel), wait);
    }

    pub(super) fn end(&self, rank: Rank, channel: u64) {
        self.lock().waits.remove(&(rank, channel));
    }

    /// Records that the own thread of `rank` sleeps until a call of this group is over.
    pub(super) fn fall_asleep(&self, rank: Rank, channel: u64, call: String) {
        self.lock().asleep.insert(rank, (channel, call));
    }

    pub(super) fn wake_up(&self, rank: Rank) {
        self.lock().asleep.remove(&rank);
    }

    /// What keeps a rank from a call: what its own thread waits for, or, when that has taken the number of the call
    /// already, the call that is run before it. None when it runs, or has done its part of the call: who asks has not seen
    /// that yet.
    pub(super) fn keeps(&self, rank: Rank, from: CallKey) -> Option<Wait> {
        let state = self.lock();
        let taken = state.taken.get(&(rank, from.channel)).and_then(Weak::upgrade);
        let is_coming = taken.is_some_and(|taken| taken.load(Ordering::Acquire) >= from.sequence);
        // What goes before may be another stage of the same call.
        let held_up = |channel: u64| {
            let mut own = state.waits.iter().filter(|((other, _), _)| *other == rank);
            own.find(|((_, other), _)| are_stages(*other, channel)).map(|(_, wait)| wait.clone())
        };
        if is_coming {
            let is_behind = |at: CallKey| at.channel == from.channel && at.sequence > from.sequence;
            return held_up(from.channel).filter(|wait| !is_behind(wait.at));
        }
        // Its thread may wait for a later call of the group than the one in which that is held up.
        let (channel, call) = state.asleep.get(&rank)?;
        held_up(*channel).map(|wait| Wait { call: call.clone(), ..wait })
    }

    fn lock(&self) -> MutexGuard<'_, WaitTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether calls of one channel may be stages of those of another, or are the same: those of a group and of its leaders.
fn are_stages(one: u64, other: u64) -> bool {
    let is_link = |channel: u64| matches!(channel % KINDS, UPWARD | DOWNWARD);
    one == other || (one / KINDS == other / KINDS && !is_link(one) && !is_link(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_kept_by_its_own_thread_or_by_the_queue_of_the_group() {
        let waits = ProcessWaits::default();
        let at = |channel, sequence| CallKey { channel, sequence };
        let wait = |channel| Wait { at: at(channel, 1), call: "barrier".into(), missing: vec![Rank(1)], is_sure: true };
        let (first, _second) = (waits.counter(Rank(0), 3), waits.counter(Rank(0), 6));
        assert_eq!(waits.keeps(Rank(0), at(6, 1)), None, "it runs");
        first.store(2, Ordering::Release);
        waits.begin(Rank(0), wait(3));
        assert_eq!(waits.keeps(Rank(0), at(6, 1)), None, "a helper thread waits");
        assert_eq!(waits.keeps(Rank(0), at(3, 2)), Some(wait(3)), "behind the first call");
        waits.fall_asleep(Rank(0), 3, "split".into());
        assert_eq!(waits.keeps(Rank(0), at(6, 1)), Some(Wait { call: "split".into(), ..wait(3) }));
        assert_eq!(waits.keeps(Rank(0), at(3, 0)), None, "it waits in a later call, and is not kept from this one");
        waits.wake_up(Rank(0));
        waits.end(Rank(0), 3);
        assert_eq!(waits.keeps(Rank(0), at(3, 3)), None);
        let mut counts = waits.counts(Rank(0));
        counts.sort();
        assert_eq!(counts, [(3, 2), (6, 0)]);
        drop(first);
        assert_eq!(waits.counts(Rank(0)), [(6, 0)]);
    }

    #[test]
    fn a_stage_is_kept_by_the_one_before_it() {
        let waits = ProcessWaits::default();
        let (group, leaders, link) = (7 * KINDS, 7 * KINDS + LEADERS, 7 * KINDS + UPWARD);
        let counter = waits.counter(Rank(0), group);
        counter.store(2, Ordering::Release);
        let at = CallKey { channel: leaders, sequence: 1 };
        let wait = Wait { at, call: "barrier".into(), missing: vec![Rank(1)], is_sure: true };
        waits.begin(Rank(0), wait.clone());
        assert_eq!(waits.keeps(Rank(0), CallKey { channel: group, sequence: 2 }), Some(wait));
        assert_eq!(waits.keeps(Rank(0), CallKey { channel: link, sequence: 1 }), None);
    }
}
