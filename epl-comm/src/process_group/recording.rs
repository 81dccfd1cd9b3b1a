//! What a rank's collectives gave, kept and given again.

use super::ProcessGroup;
use super::recall::{Mode, Results};
use crate::error::{Error, Result};

/// The results of a rank's collectives, in the order of the calls. See [`ProcessGroup::record`].
#[derive(Debug, Default)]
pub struct Recording(Results);

impl Recording {
    /// The bytes of all results.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, result)| (result.num_elements() * result.dtype().size()) as u64).sum()
    }
}

/// # Running something a second time
impl ProcessGroup {
    /// Runs `f`, and keeps the results of all collectives that this rank makes in it, in whatever group. Started ones
    /// are waited for at once: two members must not start a send to each other before they receive. Inside a replay it
    /// keeps what that gives.
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
        let (value, results) = self.communicator.rank_state.recall.within(Mode::Record(Results::new()), f);
        (value, Recording(results))
    }

    /// Runs `f`, whose collectives give what was recorded, one after the other.
    ///
    /// # Errors
    ///
    /// When `f` made fewer collectives than were recorded. When it makes more, the first one too many fails.
    pub fn replay<T>(&self, recording: Recording, f: impl FnOnce() -> T) -> Result<T> {
        let (value, left) = self.communicator.rank_state.recall.within(Mode::Replay(recording.0), f);
        match left.len() {
            0 => Ok(value),
            left => Err(Error::invalid(format!(
                "what is run again makes {left} collectives fewer than it made at first; let it depend on nothing but \
                 the batch, the parameters and the context"
            ))),
        }
    }

    /// Runs `f` inside of what is recorded or given again, of which it is no part: its collectives are made.
    pub fn apart<T>(&self, f: impl FnOnce() -> T) -> T {
        self.communicator.rank_state.recall.within(Mode::Apart, f).0
    }
}
