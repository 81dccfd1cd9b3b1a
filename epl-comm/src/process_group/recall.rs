//! What collectives gave, to be given again without asking the peers.
//!
//! A part of a model that is run a second time, because what it computed was not kept, makes the same collectives again.
//! Their results are kept, so that only computation is repeated: never communication.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::buffer::Buffer;
use crate::error::{Error, Result};

/// The calls, and what they gave.
pub(super) type Results = VecDeque<(String, Buffer)>;

/// What the collectives of a rank, in all its groups, do beside their work. A clone is the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recall(Arc<RecallState>);

#[derive(Debug, Default)]
struct RecallState {
    /// To be asked without the lock.
    is_on: AtomicBool,
    /// What is under way, one inside the other.
    modes: Mutex<Vec<Mode>>,
}

#[derive(Debug)]
pub(super) enum Mode {
    Record(Results),
    Replay(Results),
    /// What is outside does not hold inside.
    Apart,
}

impl Recall {
    pub(super) fn is_on(&self) -> bool {
        self.0.is_on.load(Ordering::Relaxed)
    }

    /// The result that the innermost replay gives again, or that `run` gives; recordings inside that replay keep it.
    ///
    /// # Errors
    ///
    /// When another call was recorded, or none; and those of `run`.
    pub(super) fn through(&self, call: String, run: impl FnOnce() -> Result<Buffer>) -> Result<Buffer> {
        let replay = |mode: &mut Mode| match mode {
            Mode::Replay(results) => Some(next_of(results, &call)),
            Mode::Record(_) | Mode::Apart => None,
        };
        let again = inner(&mut self.modes()).find_map(replay);
        let result = again.unwrap_or_else(run)?;
        let mut modes = self.modes();
        let recordings = inner(&mut modes).map_while(|mode| match mode {
            Mode::Record(results) => Some(results),
            Mode::Replay(_) | Mode::Apart => None,
        });
        recordings.for_each(|results| results.push_back((call.clone(), result.clone())));
        Ok(result)
    }

    /// Runs `f` in a mode; returns what is left of it.
    pub(super) fn within<T>(&self, mode: Mode, f: impl FnOnce() -> T) -> (T, Results) {
        let until = ModeGuard { recall: self, depth: self.change(|modes| modes.push(mode)) - 1 };
        let value = f();
        let depth = until.depth;
        let mut left = Results::new();
        self.change(|modes| {
            if let Some(Mode::Record(results) | Mode::Replay(results)) = modes.drain(depth..).next() {
                left = results;
            }
        });
        (value, left)
    }

    /// Returns how many modes there are then.
    fn change(&self, change: impl FnOnce(&mut Vec<Mode>)) -> usize {
        let mut modes = self.modes();
        change(&mut modes);
        self.0.is_on.store(inner(&mut modes).next().is_some(), Ordering::Relaxed);
        modes.len()
    }

    fn modes(&self) -> MutexGuard<'_, Vec<Mode>> {
        self.0.modes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The modes that hold now, the innermost one first.
fn inner(modes: &mut [Mode]) -> impl Iterator<Item = &mut Mode> {
    modes.iter_mut().rev().take_while(|mode| !matches!(mode, Mode::Apart))
}

fn next_of(results: &mut Results, call: &str) -> Result<Buffer> {
    match results.pop_front() {
        Some((recorded, result)) if recorded == call => Ok(result),
        other => {
            let recorded = other.map_or("nothing".to_string(), |(recorded, _)| recorded);
            Err(Error::invalid(format!(
                "what is run again makes another collective than it made at first: {call} instead of {recorded}; let it \
                 depend on nothing but the batch, the parameters and the context"
            )))
        }
    }
}

/// Ends a recording or a replay, and all inside it, also when what it is for unwinds.
struct ModeGuard<'a> {
    recall: &'a Recall,
    depth: usize,
}

impl Drop for ModeGuard<'_> {
    fn drop(&mut self) {
        self.recall.change(|modes| modes.truncate(self.depth));
    }
}
