//! What each rank did last: a ring of its calls, always on.

use core::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use burn::tensor::{DType, Shape};

use crate::operation::{Call, Operation};
use crate::rank::Rank;

/// So many calls are kept.
const CAPACITY: usize = 128;

/// The last calls of one rank, in all its groups. A clone is the same log.
///
/// See [`ProcessGroup::log`](crate::ProcessGroup::log).
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Ring>>);

#[derive(Debug, Default)]
struct Ring {
    entries: Vec<LogEntry>,
    /// How many calls were logged in all.
    count: usize,
    /// Of each group that the rank has called, in the order of the first calls.
    groups: Vec<LastCall>,
}

/// The last call of a rank in a group that has gone out, however many calls of other groups came behind it.
#[derive(Clone, Debug)]
pub struct LastCall {
    /// The name of the group.
    pub group: Arc<str>,
    /// Its ranks in the world, by their places in the group.
    pub members: Arc<[Rank]>,
    /// The number of the call in the group, from 1; 0 while none has gone out.
    pub sequence: u64,
}

/// One call of a rank.
#[derive(Clone, Debug)]
pub struct LogEntry {
    /// The name of the group.
    pub group: Arc<str>,
    /// Its ranks in the world, by their places in the group.
    pub members: Arc<[Rank]>,
    /// The number of the call in the group, from 1.
    pub sequence: u64,
    /// The collective.
    pub operation: Operation,
    /// The element type.
    pub dtype: DType,
    /// The shape of this rank's tensor.
    pub shape: Shape,
    /// When the rank made it.
    pub issued: Instant,
    /// When it went out to the peers: later than that for a call that was started, and waited for others.
    pub begun: Option<Instant>,
    /// When it was over, well or not.
    pub ended: Option<Instant>,
}

/// A place in a log; and which of the groups, and its number there, which are known when the place is another call's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogMark {
    call: usize,
    group: usize,
    sequence: u64,
}

impl Log {
    /// What is kept, the oldest call first.
    pub fn entries(&self) -> Vec<LogEntry> {
        let ring = self.ring();
        let (newer, older) = ring.entries.split_at(ring.count % CAPACITY.min(ring.entries.len().max(1)));
        older.iter().chain(newer).cloned().collect()
    }

    /// The last call the rank has made.
    pub fn last(&self) -> Option<LogEntry> {
        let ring = self.ring();
        let last = ring.count.checked_sub(1)?;
        ring.entries.get(last % CAPACITY).cloned()
    }

    /// The last call that has gone out, of each group in which there is one. Unlike [`entries`](Self::entries) it forgets none.
    pub fn last_of_groups(&self) -> Vec<LastCall> {
        self.ring().groups.iter().filter(|last| last.sequence > 0).cloned().collect()
    }

    /// What is said of a rank that others wait for.
    pub(crate) fn last_words(&self) -> String {
        self.last().map_or("which has made no call".to_string(), |entry| format!("whose last call was {entry}"))
    }

    /// Whether both are the log of one rank.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Records that a call is made in a group of these members; `begun`: that it goes out at once.
    pub(crate) fn issue(&self, (group, members): (&Arc<str>, &Arc<[Rank]>), call: &Call, begun: bool) -> LogMark {
        let now = Instant::now();
        let Call { sequence, operation, dtype, .. } = *call;
        let (group, members) = (group.clone(), members.clone());
        let (shape, begun) = (call.shape.clone(), begun.then_some(now));
        let entry = LogEntry { group, members, sequence, operation, dtype, shape, issued: now, begun, ended: None };
        let mut ring = self.ring();
        let mark = LogMark { call: ring.count, group: ring.group_of(&entry), sequence };
        if begun.is_some() {
            ring.went_out(mark);
        }
        ring.count += 1;
        match ring.entries.get_mut(mark.call % CAPACITY) {
            Some(oldest) => *oldest = entry,
            None => ring.entries.push(entry),
        }
        mark
    }

    /// Records that it goes out.
    pub(crate) fn begin(&self, mark: LogMark) {
        self.update(mark, |entry| entry.begun = Some(Instant::now()));
    }

    /// Records that it is over.
    pub(crate) fn end(&self, mark: LogMark) {
        self.update(mark, |entry| entry.ended = Some(Instant::now()));
    }

    /// Changes the entry of a call that has gone out.
    fn update(&self, mark: LogMark, change: impl FnOnce(&mut LogEntry)) {
        let mut ring = self.ring();
        ring.went_out(mark);
        // Otherwise newer calls have taken its place.
        if ring.count - mark.call <= CAPACITY {
            change(&mut ring.entries[mark.call % CAPACITY]);
        }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    /// The number of a call's group, of which a rank has few.
    fn group_of(&mut self, entry: &LogEntry) -> usize {
        let is_of = |last: &LastCall| last.group == entry.group && last.members == entry.members;
        self.groups.iter().position(is_of).unwrap_or_else(|| {
            self.groups.push(LastCall { group: entry.group.clone(), members: entry.members.clone(), sequence: 0 });
            self.groups.len() - 1
        })
    }

    fn went_out(&mut self, LogMark { group, sequence, .. }: LogMark) {
        let last = &mut self.groups[group].sequence;
        *last = sequence.max(*last);
    }
}

impl LogEntry {
    /// The call in words, without its times: ``all_reduce(sum) of f32 [1024], call 12 of group `data` ``.
    pub fn call(&self) -> String {
        let of = match self.operation {
            Operation::Barrier | Operation::Split => String::new(),
            _ => format!(" of {} {:?}", self.dtype.name(), self.shape.as_slice()),
        };
        format!("{}{of}, call {} of group `{}`", self.operation, self.sequence, self.group)
    }
}

impl fmt::Display for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.call())?;
        let seconds = |time: &Instant| format!("{:.1} s", time.elapsed().as_secs_f64());
        match (&self.begun, &self.ended) {
            (_, Some(ended)) => write!(f, ", which ended {} ago", seconds(ended)),
            (Some(begun), None) => write!(f, ", in which it has been for {}", seconds(begun)),
            (None, None) => write!(f, ", which it started {} ago", seconds(&self.issued)),
        }
    }
}

/// One line a call, the oldest first.
impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entries().iter().try_for_each(|entry| writeln!(f, "{entry}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(sequence: usize) -> Call {
        Call { sequence: sequence as u64, ..Call::new(Operation::Barrier, DType::F32, Shape::new([0])) }
    }

    fn kept(log: &Log) -> Vec<u64> {
        log.entries().iter().map(|entry| entry.sequence).collect()
    }

    #[test]
    fn the_last_calls_are_kept_in_their_order() {
        let (log, group, members) = (Log::default(), Arc::from("g"), Arc::from([Rank(0)]));
        assert!(log.last().is_none() && log.entries().is_empty());
        for number in 1..=CAPACITY + 3 {
            log.issue((&group, &members), &call(number), true);
            let first = number.saturating_sub(CAPACITY) + 1;
            assert_eq!(kept(&log), (first as u64..=number as u64).collect::<Vec<_>>());
            assert_eq!(log.last().map(|entry| entry.sequence), Some(number as u64));
        }
    }

    #[test]
    fn the_last_call_of_a_group_is_known_behind_many_of_others() {
        let (log, members) = (Log::default(), Arc::from([Rank(0), Rank(1)]));
        let [data, world, late] = ["data", "world", "late"].map(Arc::from);
        log.issue((&data, &members), &call(12), true);
        let waits = log.issue((&late, &members), &call(3), false);
        for number in 1..=CAPACITY {
            log.issue((&world, &members), &call(number), true);
        }
        let last = || log.last_of_groups().into_iter().map(|last| (last.group, last.sequence)).collect::<Vec<_>>();
        assert!(log.entries().iter().all(|entry| entry.group == world));
        assert_eq!(last(), [(data.clone(), 12), (world.clone(), CAPACITY as u64)]);
        // One that goes out when its place in the ring is another's.
        log.begin(waits);
        assert_eq!(last(), [(data, 12), (late, 3), (world, CAPACITY as u64)]);
    }

    #[test]
    fn a_call_that_has_been_overwritten_is_not_changed() {
        let (log, group, members) = (Log::default(), Arc::from("g"), Arc::from([Rank(0)]));
        let first = log.issue((&group, &members), &call(0), false);
        let second = log.issue((&group, &members), &call(1), false);
        for number in 2..=CAPACITY {
            log.issue((&group, &members), &call(number), false);
        }
        log.begin(first);
        log.end(second);
        let entries = log.entries();
        assert!(entries[0].ended.is_some() && entries[0].begun.is_none());
        assert!(entries[1..].iter().all(|entry| entry.begun.is_none() && entry.ended.is_none()));
        assert!(entries[0].to_string().starts_with("barrier, call 1 of group `g`, which ended 0."), "{}", entries[0]);
    }
}
