//! What the ranks of this process do, for `epl-launch --watch`.
//!
//! Steps are noted where they are made, by the log of their rank: an engine in a world that is only thought of has another one, and
//! is not seen. Calls are read from that log by the thread that tells all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use epl_comm::watch::{Group, OpenCall, RankStatus, Reporter};
use epl_comm::{Log, LogEntry, ProcessGroup, ThreadMemory};

/// The ranks of this process that are watched, by what they last did.
static RANKS: Mutex<Vec<WatchedRank>> = Mutex::new(Vec::new());
/// Whether there are any.
static IS_ON: AtomicBool = AtomicBool::new(false);

struct WatchedRank {
    log: Log,
    rank: usize,
    step: u64,
    steps: Option<u64>,
    /// When its last step was done.
    stepped: Option<Instant>,
    /// Smoothed.
    speed: Option<f64>,
    memory: Option<u64>,
}

/// Tells of the ranks of a launch until it is dropped; nothing, where nobody watches.
pub(super) struct Watched(Option<Reporter>);

impl Watched {
    /// Begins, as a worker of this number.
    pub(super) fn begin(worker: usize) -> Self {
        let reporter = Reporter::from_environment(worker, || ranks().iter().map(WatchedRank::status).collect());
        IS_ON.store(reporter.is_some(), Ordering::Relaxed);
        Self(reporter)
    }

    /// Adds a rank of this process.
    pub(super) fn add(&self, world: &ProcessGroup) {
        if self.0.is_some() {
            let (log, rank) = (world.log().clone(), world.global(world.rank()).0);
            let new = WatchedRank { log, rank, step: 0, steps: None, stepped: None, speed: None, memory: None };
            ranks().push(new);
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // It tells the last of them once more.
        drop(self.0.take());
        ranks().clear();
        IS_ON.store(false, Ordering::Relaxed);
    }
}

/// Notes that a rank has done so many steps, the last of which had a loss of this weight.
pub(crate) fn stepped(world: &ProcessGroup, step: u64, weight: f64) {
    note(world, |rank| {
        let now = Instant::now();
        if let Some(before) = rank.stepped.replace(now) {
            let speed = weight / (now - before).as_secs_f64().max(1e-9);
            rank.speed = Some(rank.speed.map_or(speed, |before| 0.9 * before + 0.1 * speed));
        }
        rank.step = step;
        // Of its own thread.
        rank.memory = ThreadMemory::now().and_then(|memory| u64::try_from(memory.live).ok());
    });
}

/// Notes that a rank's run has done so many steps, and ends after so many.
pub(crate) fn of_run(world: &ProcessGroup, step: u64, steps: u64) {
    note(world, |rank| (rank.step, rank.steps) = (step, Some(steps)));
}

fn note(world: &ProcessGroup, change: impl FnOnce(&mut WatchedRank)) {
    if IS_ON.load(Ordering::Relaxed)
        && let Some(rank) = ranks().iter_mut().find(|rank| rank.log.is_same(world.log()))
    {
        change(rank);
    }
}

fn ranks() -> MutexGuard<'static, Vec<WatchedRank>> {
    RANKS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WatchedRank {
    fn status(&self) -> RankStatus {
        let Self { rank, step, steps, speed, memory, .. } = *self;
        let (call, calls) = calls(&self.log.entries());
        RankStatus { rank, step, steps, speed, memory, call, calls }
    }
}

/// The oldest call that has gone out and is not over; and of each group the last one that has gone out.
fn calls(entries: &[LogEntry]) -> (Option<OpenCall>, Vec<(Group, u64)>) {
    let group = |entry: &LogEntry| Group {
        name: entry.group.to_string(),
        members: entry.members.iter().map(|rank| rank.0).collect(),
    };
    let mut last: Vec<(&LogEntry, u64)> = Vec::new();
    for entry in entries.iter().filter(|entry| entry.begun.is_some() || entry.ended.is_some()) {
        let is_of = |(known, _): &&mut (&LogEntry, u64)| known.group == entry.group && known.members == entry.members;
        match last.iter_mut().find(is_of) {
            Some((_, sequence)) => *sequence = (*sequence).max(entry.sequence),
            None => last.push((entry, entry.sequence)),
        }
    }
    let open = |entry: &LogEntry| {
        let begun = entry.begun.filter(|_| entry.ended.is_none())?;
        let (words, since) = (entry.call(), begun.elapsed());
        Some(OpenCall { group: group(entry), sequence: entry.sequence, words, since })
    };
    (entries.iter().find_map(open), last.into_iter().map(|(entry, last)| (group(entry), last)).collect())
}

#[cfg(test)]
mod tests {
    use epl_comm::{ReduceOp, local};

    use super::*;

    #[test]
    fn a_rank_that_waits_is_in_a_call_that_others_have_not_come_to() {
        let seen = Mutex::new(None);
        let ran = local::Launcher::new(2).run(|world| -> crate::Result<()> {
            world.barrier()?;
            let log = world.log().clone();
            if world.rank() == 0 {
                // The other one looks while this one waits.
                *seen.lock().unwrap() = Some(log);
                world.all_reduce_values(&[1.0], ReduceOp::Sum)?;
                return Ok(());
            }
            let waits = |log: &Log| calls(&log.entries());
            let (call, others) = loop {
                let log = seen.lock().unwrap().clone();
                match log.map(|log| waits(&log)) {
                    Some((Some(call), calls)) if call.sequence == 2 => break (call, calls),
                    _ => std::thread::yield_now(),
                }
            };
            let world_of_both = Group { name: "world".into(), members: vec![0, 1] };
            assert_eq!((&call.group, others), (&world_of_both, vec![(world_of_both.clone(), 2)]));
            assert!(call.words.starts_with("all_reduce(sum) of f64 [1], call 2 of "), "{}", call.words);
            assert_eq!(waits(&log), (None, vec![(world_of_both, 1)]));
            world.all_reduce_values(&[1.0], ReduceOp::Sum)?;
            Ok(())
        });
        assert!(ran.is_ok(), "{:?}", ran.err());
    }
}
