//! What the ranks of this process do, for `epl-launch --watch`.
//!
//! Steps are noted where they are made, by the log of their rank: an engine in a world that is only thought of has another one, and
//! is not seen. Calls are read from that log by the thread that tells all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use epl_comm::watch::{Group, OpenCall, RankStatus, Reporter};
use epl_comm::{Log, LogEntry, ProcessGroup, Rank, ThreadMemory};

/// The ranks of this process that are watched, by what they last did.
static RANKS: Mutex<Vec<WatchedRank>> = Mutex::new(Vec::new());
/// Whether there are any.
static IS_ON: AtomicBool = AtomicBool::new(false);

struct WatchedRank {
    log: Log,
    rank: usize,
    step: u64,
    steps: Option<u64>,
    /// The loss term whose weight counts the tokens of a step.
    tokens: String,
    /// When the step began that its trainer is at, which waits for data first.
    begun: Option<Instant>,
    /// Whether it has made a step. The first one allocates and compiles, and its speed is that of no other.
    has_stepped: bool,
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
            ranks().push(WatchedRank::new(world.log().clone(), world.global(world.rank()).0));
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

/// Notes that a rank's trainer began a step, before the engine does.
pub(crate) fn step_began(world: &ProcessGroup, begun: Instant) {
    note(world, |rank| rank.begun = Some(begun));
}

/// Notes that a rank has done so many steps, how many tokens the last of them had, counted by a loss term, and when its engine
/// began it.
pub(crate) fn stepped(world: &ProcessGroup, step: u64, tokens: impl Fn(&str) -> f64, begun: Instant) {
    note(world, |rank| {
        rank.stepped(step, tokens, [begun, Instant::now()]);
        // Of its own thread.
        rank.memory = ThreadMemory::now().and_then(|memory| u64::try_from(memory.live).ok());
    });
}

/// Notes that a rank's run has done so many steps, ends after so many, and counts tokens by the loss term of this name.
pub(crate) fn of_run(world: &ProcessGroup, step: u64, steps: u64, tokens: &str) {
    note(world, |rank| (rank.step, rank.steps, rank.tokens) = (step, Some(steps), tokens.to_string()));
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
    fn new(log: Log, rank: usize) -> Self {
        let (tokens, begun, has_stepped) = (String::new(), None, false);
        Self { log, rank, step: 0, steps: None, tokens, begun, has_stepped, speed: None, memory: None }
    }

    /// Counts the time of the step itself, as the progress does: evaluation and saving lie between two of them.
    fn stepped(&mut self, step: u64, tokens: impl Fn(&str) -> f64, [begun, ended]: [Instant; 2]) {
        let begun = self.begun.take().unwrap_or(begun);
        if std::mem::replace(&mut self.has_stepped, true) {
            let speed = tokens(&self.tokens) / (ended - begun).as_secs_f64().max(1e-9);
            self.speed = Some(self.speed.map_or(speed, |before| 0.9 * before + 0.1 * speed));
        }
        self.step = step;
    }

    fn status(&self) -> RankStatus {
        let Self { rank, step, steps, speed, memory, .. } = *self;
        let (call, calls) = calls(&self.log);
        RankStatus { rank, step, steps, speed, memory, call, calls }
    }
}

/// The oldest call that has gone out and is not over; and of each group the last one that has gone out.
fn calls(log: &Log) -> (Option<OpenCall>, Vec<(Group, u64)>) {
    let group = |name: &str, members: &[Rank]| Group {
        name: name.to_string(),
        members: members.iter().map(|rank| rank.0).collect(),
    };
    let open = |entry: &LogEntry| {
        let begun = entry.begun.filter(|_| entry.ended.is_none())?;
        let (words, since) = (entry.call(), begun.elapsed());
        Some(OpenCall { group: group(&entry.group, &entry.members), sequence: entry.sequence, words, since })
    };
    let call = log.entries().iter().find_map(open);
    // Read behind the call that is open, which counts there.
    let last = log.last_of_groups().into_iter().map(|last| (group(&last.group, &last.members), last.sequence));
    (call, last.collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use epl_comm::{ReduceOp, local};

    use super::*;
    use crate::trainer::record::tests::record;

    #[test]
    fn the_speed_counts_the_runs_tokens_and_the_steps_own_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let report = record(1).report;
        let tokens = |term: &str| report.tokens(term);
        let mut by_engine = WatchedRank::new(Log::default(), 0);
        by_engine.stepped(1, tokens, [at(0), at(9)]);
        assert_eq!((by_engine.step, by_engine.speed), (1, None));
        // 500 of the first term, in two seconds; what lay between the steps does not count.
        by_engine.stepped(2, tokens, [at(90), at(92)]);
        assert_eq!(by_engine.speed, Some(250.0));
        let mut by_trainer = WatchedRank::new(Log::default(), 0);
        (by_trainer.tokens, by_trainer.has_stepped) = ("auxiliary".to_string(), true);
        // Two seconds of waiting for data are of the step.
        by_trainer.begun = Some(at(88));
        by_trainer.stepped(2, tokens, [at(90), at(92)]);
        assert_eq!(by_trainer.speed, Some(2.0));
        assert_eq!(by_trainer.begun, None);
    }

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
            let (call, others) = loop {
                let log = seen.lock().unwrap().clone();
                match log.as_ref().map(calls) {
                    Some((Some(call), calls)) if call.sequence == 2 => break (call, calls),
                    _ => std::thread::yield_now(),
                }
            };
            let world_of_both = Group { name: "world".into(), members: vec![0, 1] };
            assert_eq!((&call.group, others), (&world_of_both, vec![(world_of_both.clone(), 2)]));
            assert!(call.words.starts_with("all_reduce(sum) of f64 [1], call 2 of "), "{}", call.words);
            assert_eq!(calls(&log), (None, vec![(world_of_both, 1)]));
            world.all_reduce_values(&[1.0], ReduceOp::Sum)?;
            Ok(())
        });
        assert!(ran.is_ok(), "{:?}", ran.err());
    }
}
