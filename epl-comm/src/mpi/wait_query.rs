//! Who keeps a call that has waited for long from going on.
//!
//! ```text
//! rank 0 waits for rank 1  ──ask──▶  process of rank 1: "it waits for rank 2, in call 3 of group `b`"
//!                          ──ask──▶  process of rank 2: "it runs; its last call was ..."     the one to blame
//!                                    or: "it waits for rank 0, in call 5 of group `a`"       a circle
//!                                    or nothing: the process has been stopped, or is gone    the one to blame
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::message::Control;
use super::waits::{Answer, CallKey, Channel, Keeps, Wait};
use super::world::MpiWorld;
use crate::error::Error;
use crate::host::failure::Failure;
use crate::host::watchdog::{self, ControlPlane};
use crate::rank::Rank;

/// A process that does not answer for so long does not run, though the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(3);

/// What is said of a rank of such a process.
pub(super) const SILENT: &str = "whose process does not answer: it was stopped, or it is gone";

/// No call.
const NOWHERE: CallKey = CallKey { channel: Channel { number: u64::MAX, link: None }, sequence: u64::MAX };

/// Answers that have come and were not looked at.
#[derive(Debug, Default)]
pub(super) struct Answers {
    arrived: Mutex<HashMap<u64, Answer>>,
    asked: AtomicU64,
}

/// What has been found.
pub(super) enum Finding {
    /// Ranks that do not wait for anybody, with what each did last.
    Sources(Vec<(Rank, String)>),
    /// Ranks that wait for each other, from the lowest on, each with the call in which it waits for the next one.
    Circle(Vec<(Rank, Wait)>),
}

impl Answers {
    pub(super) fn put(&self, question: u64, answer: Answer) {
        self.arrived().insert(question, answer);
    }

    /// Asks the process of a rank. None when there is no answer.
    fn ask(&self, world: &MpiWorld, rank: Rank, at: CallKey) -> Option<Answer> {
        if world.process(rank) == world.place.process {
            return Some(answer(world, rank, at));
        }
        self.hear(world, vec![self.question(world, rank, at)]).pop()?
    }

    /// Those of some ranks of other processes whose processes do not answer, asked all together.
    pub(super) fn silent(&self, world: &MpiWorld, ranks: Vec<Rank>) -> Vec<Rank> {
        let questions = ranks.iter().map(|rank| self.question(world, *rank, NOWHERE)).collect();
        let answers = self.hear(world, questions);
        ranks.into_iter().zip(answers).filter(|(_, answer)| answer.is_none()).map(|(rank, _)| rank).collect()
    }

    /// Sends a question to the process of a rank.
    fn question(&self, world: &MpiWorld, rank: Rank, at: CallKey) -> u64 {
        let question = self.asked.fetch_add(1, Ordering::Relaxed);
        world.tell(world.process(rank), Control::Ask { question, rank, at });
        question
    }

    /// Waits for the answers to some questions.
    fn hear(&self, world: &MpiWorld, questions: Vec<u64>) -> Vec<Option<Answer>> {
        let begun = Instant::now();
        let are_here = || {
            let arrived = self.arrived();
            questions.iter().all(|question| arrived.contains_key(question))
        };
        while !are_here() && begun.elapsed() < PATIENCE && world.failure().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        let mut arrived = self.arrived();
        questions.iter().map(|question| arrived.remove(question)).collect()
    }

    /// Follows the waits from somebody who waits in `first`. None when the world has failed meanwhile.
    pub(super) fn follow(&self, world: &MpiWorld, first: &Wait) -> Option<Finding> {
        let from = *first.missing.first()?;
        let mut known = BTreeMap::new();
        let mut needed: HashMap<Rank, CallKey> = first.missing.iter().map(|missing| (*missing, first.at)).collect();
        // Nobody is asked once the world has failed: processes leave then.
        let ask = |rank, at| world.failure().is_none().then(|| self.ask(world, rank, at)).flatten();
        let sources = watchdog::sources(first.missing.clone(), |rank| match ask(rank, needed[&rank]) {
            None => Err(SILENT.to_string()),
            Some(Answer { wait: Some(wait), .. }) if !wait.missing.is_empty() => {
                let missing = wait.missing.clone();
                needed.extend(missing.iter().map(|missing| (*missing, wait.at)));
                known.insert(rank, wait);
                Ok(missing)
            }
            Some(Answer { last, .. }) => Err(last),
        });
        if world.failure().is_some() {
            return None;
        }
        match sources.is_empty() {
            true => Some(Finding::Circle(circle(&known, from))),
            false => Some(Finding::Sources(sources.into_iter().collect())),
        }
    }

    fn arrived(&self) -> MutexGuard<'_, HashMap<u64, Answer>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What this process says of one of its ranks, which somebody waits for in a call.
pub(super) fn answer(world: &MpiWorld, rank: Rank, at: CallKey) -> Answer {
    let last = world.rank_state(rank).log.last_words();
    let inside = || {
        let (call, missing) = world.inside.wait_of(rank)?;
        // Nobody outside knows of it: who is asked about it looks at what its own thread waits for.
        let at = NOWHERE;
        // What is asked for may be a stage of a started call, whose thread does not wait for the rank's own.
        Some(Wait { at, call, missing, is_sure: world.is_idle(rank) })
    };
    let wait = match world.waits.keeps(rank, at) {
        Keeps::Wait(wait) => Some(wait),
        Keeps::Nothing => inside(),
        Keeps::Past => None,
    };
    Answer { last, wait }
}

/// The circle in which the waits from a rank end, where every rank waits for one that waits.
fn circle(known: &BTreeMap<Rank, Wait>, from: Rank) -> Vec<(Rank, Wait)> {
    let circle =
        watchdog::circle(from, |rank| known.get(&rank).into_iter().flat_map(|wait| wait.missing.iter().copied()));
    circle.into_iter().flatten().filter_map(|rank| Some((rank, known.get(&rank)?.clone()))).collect()
}

/// Whether the ranks of a circle can do nothing but wait.
pub(super) fn is_sure(circle: &[(Rank, Wait)]) -> bool {
    circle.iter().all(|(_, wait)| wait.is_sure)
}

/// The failure of ranks that wait for each other.
pub(super) fn deadlock(circle: Vec<(Rank, Wait)>) -> Failure {
    let circle = circle.into_iter().map(|(rank, wait)| (rank, wait.call)).collect();
    Failure::shared(Error::Deadlock { circle }, Rank(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::failure::Cause;

    fn wait(channel: u64, missing: &[usize]) -> Wait {
        let missing = missing.iter().copied().map(Rank).collect();
        Wait {
            at: CallKey { channel: Channel { number: channel, link: None }, sequence: 2 },
            call: format!("barrier, call 2 of group `{channel}`"),
            missing,
            is_sure: true,
        }
    }

    #[test]
    fn the_circle_leaves_out_who_only_leads_into_it_and_begins_with_the_lowest() {
        let known = [(Rank(0), wait(1, &[2])), (Rank(2), wait(2, &[1])), (Rank(1), wait(3, &[2]))];
        let circle = circle(&BTreeMap::from(known), Rank(0));
        assert_eq!(circle.iter().map(|(rank, _)| rank.0).collect::<Vec<_>>(), [1, 2]);
        let Failure { rank: lowest, cause: Cause::Shared(error) } = deadlock(circle) else { panic!("one's own") };
        assert_eq!(lowest, Rank(1));
        let text = "rank 1 waits for rank 2 in barrier, call 2 of group `3`; rank 2 waits for rank 1";
        assert!(error.to_string().contains(text), "{error}");
    }
}
