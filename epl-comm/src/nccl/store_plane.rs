//! What a rank that is a process of its own knows of the others: their failures, their ends, and what they do when
//! somebody waits for too long; all by a few values of a [`Store`].
//!
//! | name | value | set by |
//! |---|---|---|
//! | `nccl/failure` | the rank and why | whoever fails first |
//! | `nccl/ended/RANK` | how many calls of each group it has begun | a rank whose closure has returned |
//! | `nccl/roll` | a group and a call | who has waited too long, to ask who has come there |
//! | `nccl/answer/RANK` | whether it has, and its last call | all, when they see it |
//! | `nccl/id/GROUP` | the name of a communicator | its member 0 |
//! | `nccl/call/GROUP/CALL/MEMBER`, `nccl/met/GROUP/CALL` | a call, and what is said of all members' (`meeting`) | its members |
//!
//! A thread of each rank looks for failures and for the roll a few times a second; calls at which nobody meets do without
//! the store.

use core::fmt;
use core::time::Duration;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;

use epl_launch::Store;

use crate::error::{Error, LaunchError, Result};
use crate::host::failure::{Cause, Failure};
use crate::host::ranks::Report;
use crate::host::watchdog::{ControlPlane, Options, Watchdog};
use crate::log::Log;
use crate::rank::Rank;

/// The longest value: less than what a store takes.
const LONGEST: usize = 32 << 10;
/// Of groups that are gone, so many are remembered.
const GONE: usize = 256;
/// How the text of a rank that has forgotten groups begins.
const FORGETFUL: &str = "some";
/// So many threads of a rank wait for values at once.
const WAITING: usize = 2;
/// How often the store is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How long the others have to answer the roll.
const ANSWER: Duration = Duration::from_secs(3);
/// For how long it is tried to tell the others of this rank's failure or end, before it ends untold: a store may be stopped,
/// and is waited for longer otherwise.
const LAST_WORD: Duration = Duration::from_secs(10);

/// One rank's knowledge of its world.
pub(super) struct StorePlane {
    store: Arc<dyn Store>,
    pub(super) rank: Rank,
    log: Log,
    watchdog: Watchdog,
    /// What this rank has found of the failure that another one, which has found the same, was quicker to tell.
    found: OnceLock<Error>,
    /// Whether that is this rank's own, and others had told of theirs before.
    is_late: AtomicBool,
    begun: Mutex<Begun>,
    /// How many threads wait for a value now.
    waiting: AtomicUsize,
    is_over: AtomicBool,
}

/// The calls that a rank has begun.
#[derive(Default)]
struct Begun {
    /// The numbers of the last calls of each group, by its path, the oldest group first.
    groups: Vec<(String, Arc<AtomicU64>)>,
    /// When there are so many, groups that are gone are forgotten.
    most: usize,
    has_forgotten: bool,
}

impl Begun {
    /// Takes note of a group. Of those that are gone only the last are kept, as a peer may still be in a call of one.
    fn enter(&mut self, path: &str) -> Arc<AtomicU64> {
        if self.groups.len() >= self.most.max(2 * GONE) {
            let is_gone = |(_, last): &(String, Arc<AtomicU64>)| Arc::strong_count(last) == 1;
            let mut too_many = self.groups.iter().filter(|group| is_gone(group)).count().saturating_sub(GONE);
            self.has_forgotten |= too_many > 0;
            self.groups.retain(|group| {
                let goes = too_many > 0 && is_gone(group);
                too_many -= usize::from(goes);
                !goes
            });
            self.most = 2 * self.groups.len();
        }
        let last = Arc::new(AtomicU64::new(0));
        self.groups.push((path.to_string(), last.clone()));
        last
    }

    /// The number of the last call of a group.
    fn last(&self, path: &str) -> Option<u64> {
        let of_group = self.groups.iter().filter(|(own, _)| own == path);
        of_group.map(|(_, last)| last.load(Ordering::Acquire)).max()
    }

    /// Whether some were forgotten; then a line for each group.
    fn text(&self) -> String {
        let head = if self.has_forgotten { FORGETFUL } else { "all" };
        let lines = self.groups.iter().map(|(path, last)| format!("\n{path} {}", last.load(Ordering::Acquire)));
        core::iter::once(head.to_string()).chain(lines).collect()
    }

    /// Whether a rank with this text has ended without having begun a call.
    fn lacks(text: &str, path: &str, sequence: u64) -> bool {
        let begun = text.lines().filter_map(|line| line.rsplit_once(' '));
        let last = begun.filter(|(own, _)| *own == path).filter_map(|(_, last)| last.parse::<u64>().ok()).max();
        match last {
            Some(last) => last < sequence,
            // Nobody is blamed for what he may have begun.
            None => !text.starts_with(FORGETFUL),
        }
    }
}

impl ControlPlane for StorePlane {
    fn watchdog(&self) -> &Watchdog {
        &self.watchdog
    }

    fn tell_failure(&self, failure: &Failure) {
        // Whoever was first has told all; and where the store itself is gone, nobody can be told.
        let is_told = self.store.set_within("nccl/failure", told(failure).as_bytes(), LAST_WORD).is_ok();
        self.is_late.store(!is_told, Ordering::Release);
    }

    fn tell_end(&self, rank: Rank) {
        let text = self.begun().text();
        let last_word = |key: &str, part: &[u8]| Ok(self.store.set_within(key, part, LAST_WORD)?);
        let _ = in_parts(&format!("nccl/ended/{}", rank.0), text.as_bytes(), &last_word);
    }
}

impl StorePlane {
    pub(super) fn new(store: Arc<dyn Store>, rank: Rank, log: Log, report: Option<Arc<Report>>) -> Self {
        let options = Options { on_failure: report, time_limit: None, lanes: None };
        let (found, is_late, begun, waiting, is_over) = Default::default();
        Self { store, rank, log, watchdog: Watchdog::new(options), found, is_late, begun, waiting, is_over }
    }

    /// Takes note of a group.
    pub(super) fn enter(&self, path: &str) -> Arc<AtomicU64> {
        self.begun().enter(path)
    }

    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the world goes on, for a rank that is in `operation`.
    pub(super) fn go_on(&self, operation: impl FnOnce() -> String) -> Result<()> {
        match self.failure() {
            None => Ok(()),
            Some(Failure { cause: Cause::Shared(error), .. }) => Err(error.clone()),
            Some(failure) => Err(self.found.get().cloned().unwrap_or_else(|| failure.to_error(operation()))),
        }
    }

    /// Records that this rank has failed, and tells the others, unless there was a failure before; takes note that it has
    /// found itself what it had been told of.
    pub(super) fn fail(&self, error: &Error) {
        let failure = match error {
            Error::Peer { .. } if self.failure().is_some() => return,
            Error::Peer { rank, .. } => Failure::heard(error, *rank),
            Error::Timeout { .. } => Failure::shared(error.clone(), self.rank),
            _ => Failure::found(error, self.rank),
        };
        let (told, is_shared) = (told(&failure), matches!(failure.cause, Cause::Shared(_)));
        if !self.record(failure) && is_shared && self.failure().map(self::told) == Some(told) {
            let _ = self.found.set(error.clone());
        }
    }

    /// The first failure that this rank knows of, as it is told to one that was released from `operation`.
    pub(super) fn first_failure(&self, operation: &str) -> Option<(Rank, Error)> {
        let failure = self.failure()?;
        self.go_on(|| operation.to_string()).err().map(|error| (failure.rank, error))
    }

    /// Whether this rank's failure is its own, and not the first one.
    pub(super) fn is_late(&self) -> bool {
        self.is_late.load(Ordering::Acquire)
    }

    /// Looks whether others have told of a failure.
    pub(super) fn look(&self) {
        match self.read("nccl/failure") {
            Ok(None) => {}
            Ok(Some(told)) => {
                let (rank, cause) = told.split_once('\n').unwrap_or(("", &told));
                let rank = Rank(rank.parse().unwrap_or(self.rank.0));
                self.learn(Failure { rank, cause: Cause::Own(cause.to_string()) });
            }
            Err(error) => self.learn(Failure { rank: self.rank, cause: Cause::Shared(error) }),
        }
    }

    /// Looks for failures and the roll until this rank's end.
    pub(super) fn watch(&self) {
        let mut has_answered = false;
        while !self.is_over.load(Ordering::Acquire) && self.failure().is_none() {
            self.look();
            if !has_answered && let Ok(Some(roll)) = self.read("nccl/roll") {
                has_answered = true;
                let _ = self.store.set(&format!("nccl/answer/{}", self.rank.0), self.answer(&roll).as_bytes());
            }
            thread::park_timeout(LOOK);
        }
    }

    /// A value that may be there; an error when the store itself fails.
    fn read(&self, key: &str) -> Result<Option<String>> {
        match self.store.get(key, Duration::ZERO) {
            Ok(value) => Ok(Some(String::from_utf8_lossy(&value).to_string())),
            Err(LaunchError::Unset { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A value for which it is waited as long as the world goes on, and `go_on` says.
    pub(super) fn wait(&self, key: &str, go_on: &dyn Fn() -> Result<()>) -> Result<Vec<u8>> {
        loop {
            match self.get_soon(key) {
                Err(LaunchError::Unset { .. }) => go_on()?,
                other => return Ok(other?),
            }
        }
    }

    /// A value that may come soon. A store lets a process wait for so many at once: more threads take turns.
    fn get_soon(&self, key: &str) -> Result<Vec<u8>, LaunchError> {
        let wait = Duration::from_millis(50);
        let is_one_of_few = self.waiting.fetch_add(1, Ordering::AcqRel) < WAITING;
        let value = match is_one_of_few {
            true => self.store.get(key, wait),
            false => self.store.get(key, Duration::ZERO),
        };
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        if !is_one_of_few && matches!(value, Err(LaunchError::Unset { .. })) {
            thread::sleep(wait);
        }
        value
    }

    /// Sets a value that may be longer than a store takes.
    pub(super) fn set_long(&self, key: &str, value: &[u8]) -> Result<()> {
        in_parts(key, value, &|key, part| self.set(key, part))
    }

    /// A value of [`set_long`](Self::set_long), for which it is [`wait`](Self::wait)ed.
    pub(super) fn wait_long(&self, key: &str, go_on: &dyn Fn() -> Result<()>) -> Result<Vec<u8>> {
        let head = self.wait(key, go_on)?;
        self.long(key, head, &|key| self.wait(key, go_on))
    }

    fn long(&self, key: &str, head: Vec<u8>, part: &dyn Fn(&str) -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        let (parts, first) = split_head(&head);
        let mut value = first.to_vec();
        for number in 1..=parts {
            value.extend(part(&part_key(key, number))?);
        }
        Ok(value)
    }

    /// Forgets a value of [`set_long`](Self::set_long) that all have read.
    pub(super) fn forget(&self, key: &str) -> Result<()> {
        let parts = self.store.get(key, Duration::ZERO).map_or(0, |head| split_head(&head).0);
        (1..=parts).try_for_each(|number| self.store.forget(&part_key(key, number)))?;
        Ok(self.store.forget(key)?)
    }

    pub(super) fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        Ok(self.store.set(key, value)?)
    }

    /// `1` or `0`: whether it has begun the call; then its last one.
    fn answer(&self, roll: &str) -> String {
        let has_come =
            roll.rsplit_once(' ').is_some_and(|(path, sequence)| self.begun().last(path) >= sequence.parse().ok());
        shortened(format!("{}{}", u8::from(has_come), self.log.last_words()))
    }

    /// Asks the members of a group who has come to a call: those who have not, with their last calls.
    pub(super) fn missing(&self, path: &str, sequence: u64, members: &[Rank]) -> Vec<(Rank, String)> {
        if self.store.set_within("nccl/roll", format!("{path} {sequence}").as_bytes(), LAST_WORD).is_err() {
            // Somebody else has lost patience first, maybe in another group, and will say with whom; or the store is stopped.
            let until = Instant::now() + 2 * ANSWER;
            while self.failure().is_none() && Instant::now() < until {
                thread::sleep(LOOK / 4);
            }
            return Vec::new();
        }
        let until = Instant::now() + ANSWER;
        let answer = |rank: &Rank| {
            let left = until.saturating_duration_since(Instant::now());
            match self.store.get(&format!("nccl/answer/{}", rank.0), left) {
                Ok(answer) => String::from_utf8_lossy(&answer).to_string(),
                Err(_) => "0which does not answer: its process hangs, was stopped, or is gone".to_string(),
            }
        };
        let others = members.iter().filter(|rank| **rank != self.rank);
        let answers = others.map(|rank| (*rank, answer(rank)));
        answers.filter_map(|(rank, answer)| Some((rank, answer.strip_prefix('0')?.to_string()))).collect()
    }

    /// A member that has returned without having begun a call.
    pub(super) fn left(&self, path: &str, sequence: u64, members: &[Rank]) -> Option<Rank> {
        let has_left = |rank: &&Rank| {
            let (key, now) = (format!("nccl/ended/{}", rank.0), Duration::ZERO);
            let get = |key: &str| Ok(self.store.get(key, now)?);
            let ended = get(&key).and_then(|head| self.long(&key, head, &get));
            ended.is_ok_and(|text| Begun::lacks(&String::from_utf8_lossy(&text), path, sequence))
        };
        members.iter().filter(|rank| **rank != self.rank).find(has_left).copied()
    }

    /// Ends the watch.
    pub(super) fn close(&self) {
        self.is_over.store(true, Ordering::Release);
    }
}

/// Sets a value in parts, the first of which says how many there are, and comes last.
fn in_parts(key: &str, value: &[u8], set: &dyn Fn(&str, &[u8]) -> Result<()>) -> Result<()> {
    let (first, rest) = value.split_at(value.len().min(LONGEST));
    let parts = rest.chunks(LONGEST);
    let head = [&(parts.len() as u32).to_le_bytes()[..], first].concat();
    parts.zip(1..).try_for_each(|(part, number)| set(&part_key(key, number), part))?;
    set(key, &head)
}

fn part_key(key: &str, number: u32) -> String {
    format!("{key}+{number}")
}

/// How many parts follow, and the first one.
fn split_head(head: &[u8]) -> (u32, &[u8]) {
    head.split_first_chunk().map_or((0, head), |(parts, first)| (u32::from_le_bytes(*parts), first))
}

/// What others are told of a failure.
fn told(failure: &Failure) -> String {
    shortened(format!("{}\n{}", failure.rank.0, failure.text()))
}

/// A text that a store takes.
fn shortened(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(LONGEST));
    text
}

impl fmt::Debug for StorePlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StorePlane({})", self.rank)
    }
}

#[cfg(test)]
mod tests {
    use epl_launch::MemoryStore;

    use super::*;

    fn two() -> [StorePlane; 2] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        [0, 1].map(|rank| StorePlane::new(store.clone(), Rank(rank), Log::default(), None))
    }

    /// Both members of a call find that they do not agree; one of them hears so from the other first.
    #[test]
    fn what_a_rank_has_found_is_what_it_is_told_from_then_on() {
        let [own, other] = two();
        let (first_call, second_call) = ("barrier".to_string(), "all_reduce".to_string());
        let group = "world".to_string();
        let (first, second) = (Rank(0), Rank(1));
        let error =
            Error::Mismatch { group, sequence: 1, first, first_call, second, second_call, second_is_odd: false };
        other.fail(&error);
        own.learn(Failure { rank: Rank(0), cause: Cause::Own(error.to_string()) });
        assert!(matches!(own.go_on(String::new), Err(Error::Peer { rank: Rank(0), .. })));
        own.fail(&error);
        assert_eq!(own.go_on(String::new), Err(error));
    }

    #[test]
    fn a_rank_that_has_begun_a_call_of_one_of_many_groups_is_not_blamed() {
        let [own, other] = two();
        let path = |group: usize| format!("world/{group}.0/a/long/path/of/groups/that/were/divided/again");
        let entered: Vec<_> = (1..=5000).map(|group| (group, other.enter(&path(group)))).collect();
        entered.iter().for_each(|(group, last)| last.store(*group as u64, Ordering::Release));
        other.tell_end(other.rank);
        let members = [Rank(0), Rank(1)];
        for group in (1..=5000).step_by(71) {
            assert_eq!(own.left(&path(group), group as u64, &members), None, "group {group}");
            assert_eq!(own.left(&path(group), group as u64 + 1, &members), Some(Rank(1)), "group {group}");
        }
        assert_eq!(own.left("world/elsewhere", 1, &members), Some(Rank(1)));
    }

    #[test]
    fn groups_that_are_gone_are_forgotten_and_nobody_is_blamed_for_them() {
        let [own, other] = two();
        let kept = other.enter("kept");
        kept.store(3, Ordering::Release);
        for group in 0..100_000 {
            other.enter(&format!("world/{group}")).store(1, Ordering::Release);
        }
        assert!(other.begun().groups.len() <= 4 * GONE, "{}", other.begun().groups.len());
        other.tell_end(other.rank);
        let left = |path: &str, call| own.left(path, call, &[Rank(0), Rank(1)]);
        assert_eq!((left("kept", 3), left("kept", 4)), (None, Some(Rank(1))));
        assert_eq!((left("world/99999", 1), left("world/99999", 2)), (None, Some(Rank(1))));
        assert_eq!(left("world/7", 1), None, "it is not known any more");
    }
}

#[cfg(test)]
mod last_words {
    use super::*;

    /// One that is stopped: it answers nothing until it is not waited for any more.
    #[derive(Default)]
    struct Stopped(Mutex<Vec<(String, Duration)>>);

    impl Store for Stopped {
        fn set(&self, key: &str, _: &[u8]) -> Result<(), LaunchError> {
            panic!("waits for ever, to set {key}")
        }

        fn get(&self, key: &str, _: Duration) -> Result<Vec<u8>, LaunchError> {
            panic!("waits for ever, for {key}")
        }

        fn set_within(&self, key: &str, _: &[u8], limit: Duration) -> Result<(), LaunchError> {
            self.0.lock().unwrap().push((key.to_string(), limit));
            Err(LaunchError::Joining { message: "no answer".into() })
        }
    }

    #[test]
    fn a_failure_and_an_end_do_not_wait_for_a_store_that_is_stopped() {
        let (store, reported) = (Arc::new(Stopped::default()), Arc::new(Mutex::new(Vec::new())));
        let reports = reported.clone();
        let report = Arc::new(move |rank, error: &Error| reports.lock().unwrap().push((rank, error.to_string())));
        let plane = StorePlane::new(store.clone(), Rank(3), Log::default(), Some(report));
        plane.record(Failure::own(plane.rank, "out of memory".into()));
        plane.tell_end(plane.rank);
        assert!(reported.lock().unwrap().iter().any(|(rank, why)| *rank == Rank(3) && why.contains("out of memory")));
        let said = store.0.lock().unwrap().clone();
        assert_eq!(said, [("nccl/failure".to_string(), LAST_WORD), ("nccl/ended/3".to_string(), LAST_WORD)]);
        assert!(plane.is_late());
    }
}
