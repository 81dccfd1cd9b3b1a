//! What collectives gave, to be given again without asking the peers.
//!
//! A part of a model that is run a second time, because what it computed was not kept, makes the same collectives again.
//! Their results are kept, so that only computation is repeated: never communication.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ProcessGroup;
use crate::buffer::Buffer;
use crate::error::{Error, Result};

/// The results of a rank's collectives, in the order of the calls. See [`ProcessGroup::record`].
#[derive(Debug, Default)]
pub struct Recording(VecDeque<Buffer>);

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
    Record(VecDeque<Buffer>),
    Replay(VecDeque<Buffer>),
}

impl Recall {
    pub(super) fn is_on(&self) -> bool {
        self.0.is_on.load(Ordering::Relaxed)
    }

    /// The result that is given again; none where the collective is to be run.
    ///
    /// # Errors
    ///
    /// When more is asked for than was recorded.
    pub(super) fn recall(&self) -> Result<Option<Buffer>> {
        match &mut *self.mode() {
            Mode::Off | Mode::Record(_) => Ok(None),
            Mode::Replay(results) => results.pop_front().map(Some).ok_or_else(|| {
                Error::invalid(
                    "what is run again makes more collectives than it made at first; let it depend on nothing but the \
                     batch, the parameters and the context",
                )
            }),
        }
    }

    /// Keeps a result where it is recorded.
    pub(super) fn keep(&self, result: &Buffer) {
        if let Mode::Record(results) = &mut *self.mode() {
            results.push_back(result.clone());
        }
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
    /// Runs `f`, and keeps the results of all collectives that this rank makes in it, in whatever group.
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
        recall.change(Mode::Record(VecDeque::new()));
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
        recall.change(Mode::Replay(recording.0));
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
