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

/// Where calls are counted: a group, or a link of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct Channel {
    /// As in the tags: all links of a group from lower to higher members share one, all others another.
    pub(super) number: u64,
    /// The ends of a link.
    pub(super) link: Option<[Rank; 2]>,
}

impl Channel {
    /// Of a group, or of a link from its first member to its second.
    pub(super) fn of(number: u64, members: &[Rank]) -> Self {
        let link = match (number % KINDS, members) {
            (UPWARD | DOWNWARD, [one, other]) => Some([*one, *other]),
            (kind, _) => {
                debug_assert!(!matches!(kind, UPWARD | DOWNWARD), "a link has two ends");
                None
            }
        };
        Self { number, link }
    }

    /// Whether calls of one may be stages of those of the other, or are the same: those of a group and of its leaders.
    fn is_stage_of(self, other: Self) -> bool {
        self == other || (self.number / KINDS == other.number / KINDS && self.link.is_none() && other.link.is_none())
    }
}

/// One call of one group, or of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct CallKey {
    /// The same on all members of the group, and at both ends of the link.
    pub(super) channel: Channel,
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

/// What keeps a rank from a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    Wait(Wait),
    /// It runs.
    Nothing,
    /// It waits in a later call of the same channel: it has done its part of this one, and who asks has not seen that yet.
    Past,
}

#[derive(Debug, Default)]
pub(super) struct ProcessWaits(Mutex<WaitTable>);

#[derive(Debug, Default)]
struct WaitTable {
    /// The last number that a rank has taken in a group.
    taken: HashMap<(Rank, Channel), Weak<AtomicU64>>,
    /// What is waited in, in each group of a rank.
    waits: HashMap<(Rank, Channel), Wait>,
    /// In which group a rank's own thread waits, and for which call.
    asleep: HashMap<Rank, (Channel, String)>,
}

impl ProcessWaits {
    /// Counts the calls of a rank in a group.
    pub(super) fn counter(&self, rank: Rank, channel: Channel) -> Arc<AtomicU64> {
        let counter = Arc::new(AtomicU64::new(0));
        let taken = &mut self.lock().taken;
        taken.retain(|_, counter| counter.strong_count() > 0);
        taken.insert((rank, channel), Arc::downgrade(&counter));
        counter
    }

    /// What a rank has counted in all its groups.
    pub(super) fn counts(&self, rank: Rank) -> Vec<(Channel, u64)> {
        let state = self.lock();
        let own = state.taken.iter().filter(|((other, _), _)| *other == rank);
        own.filter_map(|((_, channel), counter)| Some((*channel, counter.upgrade()?.load(Ordering::Acquire)))).collect()
    }

    /// Records what a thread of `rank` waits in.
    pub(super) fn begin(&self, rank: Rank, wait: Wait) {
        self.lock().waits.insert((rank, wait.at.channel), wait);
    }

    pub(super) fn end(&self, rank: Rank, channel: Channel) {
        self.lock().waits.remove(&(rank, channel));
    }

    /// Records that the own thread of `rank` sleeps until a call of this group is over.
    pub(super) fn fall_asleep(&self, rank: Rank, channel: Channel, call: String) {
        self.lock().asleep.insert(rank, (channel, call));
    }

    pub(super) fn wake_up(&self, rank: Rank) {
        self.lock().asleep.remove(&rank);
    }

    /// What keeps a rank from a call: what its own thread waits for, or, when that has taken the number of the call
    /// already, the call that is run before it.
    pub(super) fn keeps(&self, rank: Rank, from: CallKey) -> Keeps {
        let state = self.lock();
        if state.waits.get(&(rank, from.channel)).is_some_and(|wait| wait.at.sequence > from.sequence) {
            return Keeps::Past;
        }
        let taken = state.taken.get(&(rank, from.channel)).and_then(Weak::upgrade);
        let is_coming = taken.is_some_and(|taken| taken.load(Ordering::Acquire) >= from.sequence);
        // What goes before may be another stage of the same call.
        let held_up = |channel: Channel| {
            let mut own = state.waits.iter().filter(|((other, _), _)| *other == rank);
            own.find(|((_, other), _)| other.is_stage_of(channel)).map(|(_, wait)| wait.clone())
        };
        let wait = match state.asleep.get(&rank) {
            _ if is_coming => held_up(from.channel),
            // Its thread may wait for a later call of the group than the one in which that is held up.
            Some((channel, call)) => held_up(*channel).map(|wait| Wait { call: call.clone(), ..wait }),
            None => None,
        };
        wait.map_or(Keeps::Nothing, Keeps::Wait)
    }

    fn lock(&self) -> MutexGuard<'_, WaitTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(number: u64) -> Channel {
        Channel::of(number, &[])
    }

    fn at(channel: Channel, sequence: u64) -> CallKey {
        CallKey { channel, sequence }
    }

    fn wait(at: CallKey) -> Wait {
        Wait { at, call: "barrier".into(), missing: vec![Rank(1)], is_sure: true }
    }

    #[test]
    fn a_rank_is_kept_by_its_own_thread_or_by_the_queue_of_the_group() {
        let waits = ProcessWaits::default();
        let (one, other) = (channel(0), channel(KINDS));
        let (first, _second) = (waits.counter(Rank(0), one), waits.counter(Rank(0), other));
        assert_eq!(waits.keeps(Rank(0), at(other, 1)), Keeps::Nothing, "it runs");
        first.store(3, Ordering::Release);
        waits.begin(Rank(0), wait(at(one, 2)));
        assert_eq!(waits.keeps(Rank(0), at(other, 1)), Keeps::Nothing, "a helper thread waits");
        let behind = Keeps::Wait(wait(at(one, 2)));
        assert_eq!(waits.keeps(Rank(0), at(one, 3)), behind, "behind the call before");
        assert_eq!(waits.keeps(Rank(0), at(one, 2)), behind);
        assert_eq!(waits.keeps(Rank(0), at(one, 1)), Keeps::Past);
        assert_eq!(waits.keeps(Rank(1), at(one, 1)), Keeps::Nothing, "another rank");
        waits.fall_asleep(Rank(0), one, "split".into());
        let asleep = Wait { call: "split".into(), ..wait(at(one, 2)) };
        assert_eq!(waits.keeps(Rank(0), at(other, 1)), Keeps::Wait(asleep));
        waits.wake_up(Rank(0));
        waits.end(Rank(0), one);
        assert_eq!(waits.keeps(Rank(0), at(one, 3)), Keeps::Nothing);
        let mut counts = waits.counts(Rank(0));
        counts.sort();
        assert_eq!(counts, [(one, 3), (other, 0)]);
        drop(first);
        assert_eq!(waits.counts(Rank(0)), [(other, 0)]);
    }

    /// Its messages bear the same tag as those of other links of the group: what is counted and waited in is not theirs.
    #[test]
    fn each_link_counts_by_itself() {
        let waits = ProcessWaits::default();
        let up = |from: usize, to: usize| Channel::of(7 * KINDS + UPWARD, &[Rank(from), Rank(to)]);
        let (of_first, of_second) = (waits.counter(Rank(1), up(0, 1)), waits.counter(Rank(1), up(1, 2)));
        of_first.store(3, Ordering::Release);
        of_second.store(1, Ordering::Release);
        let counts = waits.counts(Rank(1));
        assert!(counts.contains(&(up(0, 1), 3)) && counts.contains(&(up(1, 2), 1)), "{counts:?}");
        waits.begin(Rank(1), wait(at(up(0, 1), 3)));
        waits.fall_asleep(Rank(1), up(0, 1), "receive".into());
        let asleep = Wait { call: "receive".into(), ..wait(at(up(0, 1), 3)) };
        assert_eq!(waits.keeps(Rank(1), at(up(1, 2), 2)), Keeps::Wait(asleep), "not past the other link's call");
        waits.end(Rank(1), up(1, 2));
        assert_eq!(waits.keeps(Rank(1), at(up(0, 1), 2)), Keeps::Past, "it still waits in the other one");
    }

    #[test]
    fn a_stage_is_kept_by_the_one_before_it() {
        let waits = ProcessWaits::default();
        let (group, leaders) = (channel(7 * KINDS), channel(7 * KINDS + LEADERS));
        let link = Channel::of(7 * KINDS + UPWARD, &[Rank(0), Rank(1)]);
        let counter = waits.counter(Rank(0), group);
        counter.store(2, Ordering::Release);
        waits.begin(Rank(0), wait(at(leaders, 1)));
        assert_eq!(waits.keeps(Rank(0), at(group, 2)), Keeps::Wait(wait(at(leaders, 1))));
        assert_eq!(waits.keeps(Rank(0), at(link, 1)), Keeps::Nothing);
    }
}
