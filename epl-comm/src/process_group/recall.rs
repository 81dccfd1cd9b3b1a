//! What collectives gave, to be given again without asking the peers.
//!
//! A part of a model that is run a second time, because what it computed was not kept, makes the same collectives again.
//! Their results are kept, so that only computation is repeated: never communication.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ProcessGroup;
use crate::buffer::Buffer;
use crate::error::{Error, Result, unwind};

/// The results of a rank's collectives, in the order of the calls. See [`ProcessGroup::record`].
#[derive(Debug, Default)]
pub struct Recording(Results);

/// The calls, and what they gave.
type Results = VecDeque<(String, Buffer)>;

/// What the collectives of a rank, in all its groups, do beside their work. A clone is the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recall(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// To be asked without the lock.
    is_on: AtomicBool,
    mode: Mutex<Mode>,
}

#[derive(Debug, Default)]
enum Mode {
    #[default]
    Off,
    Record(Results),
    Replay(Results),
}

impl Recall {
    pub(super) fn is_on(&self) -> bool {
        self.0.is_on.load(Ordering::Relaxed)
    }

    /// The result that is given again; none where the collective is to be run.
    ///
    /// # Errors
    ///
    /// When another call was recorded, or none.
    pub(super) fn recall(&self, call: &str) -> Result<Option<Buffer>> {
        let Mode::Replay(results) = &mut *self.mode() else { return Ok(None) };
        match results.pop_front() {
            Some((recorded, result)) if recorded == call => Ok(Some(result)),
            other => {
                let recorded = other.map_or("nothing".to_string(), |(recorded, _)| recorded);
                Err(Error::invalid(format!(
                    "what is run again makes another collective than it made at first: {call} instead of {recorded}; let \
                     it depend on nothing but the batch, the parameters and the context"
                )))
            }
        }
    }

    /// Keeps a result where it is recorded.
    pub(super) fn keep(&self, call: String, result: &Buffer) {
        if let Mode::Record(results) = &mut *self.mode() {
            results.push_back((call, result.clone()));
        }
    }

    /// Begins a recording or a replay.
    ///
    /// # Panics
    ///
    /// Unwinds with an [`Error::Invalid`] inside another one.
    fn begin(&self, mode: Mode) {
        if self.is_on() {
            unwind(Error::invalid("a recording or a replay inside another one; run again what is outside only"));
        }
        self.change(mode);
    }

    fn change(&self, mode: Mode) -> Mode {
        self.0.is_on.store(!matches!(mode, Mode::Off), Ordering::Relaxed);
        core::mem::replace(&mut self.mode(), mode)
    }

    fn mode(&self) -> MutexGuard<'_, Mode> {
        self.0.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a recording or a replay, also when what it is for unwinds.
struct Until<'a>(&'a Recall);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.change(Mode::Off);
    }
}

/// # Running something a second time
impl ProcessGroup {
    /// Runs `f`, and keeps the results of all collectives that this rank makes in it, in whatever group. Started ones
    /// are waited for at once: two members must not start a send to each other before they receive.
    ///
    /// Unwinds inside another recording.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use epl_comm::{Error, ReduceOp, local};
    ///
    /// let twice = local::run(2, |group| {
    ///     let sum = || group.all_reduce(Tensor::<1>::ones([1], &Device::flex()), ReduceOp::Sum);
    ///     let (first, recording) = group.record(sum);
    ///     let again = group.replay(recording, sum)?; // no other rank is asked
    ///     Ok::<_, Error>((first?.into_scalar::<f32>(), again?.into_scalar::<f32>()))
    /// });
    /// assert_eq!(twice.ok(), Some(vec![(2.0, 2.0); 2]));
    /// ```
    pub fn record<T>(&self, f: impl FnOnce() -> T) -> (T, Recording) {
        let recall = &self.communicator.seat.recall;
        recall.begin(Mode::Record(VecDeque::new()));
        let until = Until(recall);
        let value = f();
        let mode = recall.change(Mode::Off);
        drop(until);
        let results = if let Mode::Record(results) = mode { results } else { VecDeque::new() };
        (value, Recording(results))
    }

    /// Runs `f`, whose collectives give what was recorded, one after the other.
    ///
    /// # Errors
    ///
    /// When `f` made fewer collectives than were recorded. When it makes more, the first one too many fails.
    pub fn replay<T>(&self, recording: Recording, f: impl FnOnce() -> T) -> Result<T> {
        let recall = &self.communicator.seat.recall;
        recall.begin(Mode::Replay(recording.0));
        let until = Until(recall);
        let value = f();
        let mode = recall.change(Mode::Off);
        drop(until);
        match mode {
            Mode::Replay(left) if !left.is_empty() => Err(Error::invalid(format!(
                "what is run again makes {} collectives fewer than it made at first; let it depend on nothing but the \
                 batch, the parameters and the context",
                left.len()
            ))),
            _ => Ok(value),
        }
    }
}
