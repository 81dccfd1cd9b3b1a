//! The schedules there are: each a pure function from (stage, stages, micro-batches) to a list of
//! actions.
//!
//! All are one idea, so there is one function: some forwards ahead, then forward and backward in
//! turn, then the backwards that are left. A schedule says only how many forwards go ahead.
//!
//! ```text
//!  F0 F1 F2   F3 B0  F4 B1  F5 B2   B3 B4 B5
//!  '-ahead-'  '--- in turn -----'   '-rest-'
//! ```
//!
//! Where EPL leaves two actions of a stage in either order (it adds edges to a graph, not always enough of them to
//! fix one), the order is the one that these rules give. In EPL's own cases it is the order listed.

use std::fmt;

use super::action::Action;
use super::error::Result;
use super::interleaved;
use super::sizes::Sizes;
use super::verify::{Verified, verify};

/// In which order a stage runs forwards and backwards.
///
/// The drawings are of 4 stages and 6 micro-batches, a backward twice as long as a forward; dots are idle.
///
/// Each works with any number of micro-batches, also with fewer than stages. [`Schedule::verified`]
/// is what a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// All forwards, then all backwards; every stage keeps the activations of all micro-batches.
    ///
    /// ```text
    /// stage 0  F0F1F2F3F4F5. . . . . . . . . B0--B1--B2--B3--B4--B5--
    /// stage 1  . F0F1F2F3F4F5. . . . . . B0--B1--B2--B3--B4--B5--. .
    /// stage 2  . . F0F1F2F3F4F5. . . B0--B1--B2--B3--B4--B5--. . . .
    /// stage 3  . . . F0F1F2F3F4F5B0--B1--B2--B3--B4--B5--. . . . . .
    /// ```
    PreferForward,
    /// One forward, one backward (1F1B): p − 1 − s forwards ahead, so stage s keeps at most p − s
    /// micro-batches. With even costs it takes as long as `PreferForward`.
    ///
    /// ```text
    /// stage 0  F0F1F2F3. . . . . . B0--F4B1--F5B2--. B3--. B4--. B5--
    /// stage 1  . F0F1F2. . . . B0--F3B1--F4B2--F5B3--. B4--. B5--. .
    /// stage 2  . . F0F1. . B0--F2B1--F3B2--F4B3--F5B4--. B5--. . . .
    /// stage 3  . . . F0B0--F1B1--F2B2--F3B3--F4B4--F5B5--. . . . . .
    /// ```
    PreferBackward,
    /// As `PreferBackward` with one more forward ahead, so p − s of them, on all but the last
    /// stage: room to send while the next forward runs, for one more micro-batch in memory.
    ///
    /// ```text
    /// stage 0  F0F1F2F3F4. . . . . B0--F5B1--. B2--. B3--. B4--. B5--
    /// stage 1  . F0F1F2F3. . . B0--F4B1--F5B2--. B3--. B4--. B5--. .
    /// stage 2  . . F0F1F2. B0--F3B1--F4B2--F5B3--. B4--. B5--. . . .
    /// stage 3  . . . F0B0--F1B1--F2B2--F3B3--F4B4--F5B5--. . . . . .
    /// ```
    PreferBackwardOptimizer,
    /// Interleaved 1F1B: a stage holds several chunks of the model, `F0.1` is micro-batch 0 in the
    /// second. The bubble shrinks by the number of chunks; boundaries are crossed that much more
    /// often. With one chunk it is `PreferBackward`.
    ///
    /// Here 2 stages, 4 micro-batches and 2 chunks, a backward as long as a forward:
    ///
    /// ```text
    /// stage 0  F0  F1  F0.1F1.1F2  B0.1F3  B1.1F2.1B0  F3.1B1  .   B2.1.   B3.1B2  B3
    /// stage 1  .   F0  F1  F0.1B0.1F1.1B1.1F2  B0  F3  B1  F2.1B2.1F3.1B3.1B2  B3  .
    /// ```
    ///
    /// Least is kept in memory where the stages divide the micro-batches; otherwise the groups of
    /// micro-batches that go through a chunk together are larger, up to twice as large.
    Interleaved {
        /// Chunks that every stage holds, at least 1.
        chunks: usize,
    },
}

impl Schedule {
    /// What a stage does, in its order.
    ///
    /// # Panics
    ///
    /// If there is no such stage, and on sizes that [`Sizes::new`] refuses.
    pub fn actions(self, stage: usize, stages: usize, micro_batches: usize) -> Vec<Action> {
        assert!(stage < stages, "stage {stage} does not exist; there are {stages}, counted from 0");
        let sizes = Sizes::new(stages, micro_batches, self.chunks());
        self.list(stage, sizes.unwrap_or_else(|error| panic!("{error}")))
    }

    /// What every stage does, with the proof that it ends.
    ///
    /// # Errors
    ///
    /// A size of zero.
    pub fn verified(self, stages: usize, micro_batches: usize) -> Result<Verified> {
        let sizes = Sizes::new(stages, micro_batches, self.chunks())?;
        let lists = (0..stages).map(|stage| self.list(stage, sizes)).collect();
        verify(lists, stages, micro_batches, self.chunks())
    }

    /// Chunks that every stage holds.
    pub fn chunks(self) -> usize {
        match self {
            Self::Interleaved { chunks } => chunks,
            _ => 1,
        }
    }

    fn list(self, stage: usize, sizes: Sizes) -> Vec<Action> {
        let ahead = self.ahead(stage, sizes);
        in_turn(&interleaved::forwards(sizes), &interleaved::backwards(sizes), ahead)
    }

    /// What [`Verified::peak_in_flight`] counts, without the lists.
    ///
    /// # Panics
    ///
    /// As [`actions`](Self::actions).
    pub fn peak_in_flight(self, stage: usize, stages: usize, micro_batches: usize) -> usize {
        assert!(stage < stages, "stage {stage} does not exist; there are {stages}, counted from 0");
        let sizes = Sizes::new(stages, micro_batches, self.chunks());
        let ahead = self.ahead(stage, sizes.unwrap_or_else(|error| panic!("{error}")));
        // One more goes forward before the first goes backward.
        (ahead + 1).min(micro_batches * self.chunks())
    }

    /// How many forwards a stage does before it alternates; more than there are means all.
    fn ahead(self, stage: usize, sizes: Sizes) -> usize {
        let later_stages = sizes.stages() - 1 - stage;
        match self {
            Self::PreferForward => sizes.micro_batches(),
            Self::PreferBackward | Self::Interleaved { chunks: 1 } => later_stages,
            Self::PreferBackwardOptimizer if later_stages == 0 => 0,
            Self::PreferBackwardOptimizer => later_stages + 1,
            Self::Interleaved { .. } => interleaved::ahead(stage, sizes),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PreferForward => f.write_str("PreferForward"),
            Self::PreferBackward => f.write_str("PreferBackward"),
            Self::PreferBackwardOptimizer => f.write_str("PreferBackwardOptimizer"),
            Self::Interleaved { chunks } => write!(f, "Interleaved, {chunks} chunks a stage"),
        }
    }
}

/// Some forwards ahead, then one of each in turn, then the backwards that are left.
fn in_turn(forwards: &[Action], backwards: &[Action], ahead: usize) -> Vec<Action> {
    let (first, alternating) = forwards.split_at(ahead.min(forwards.len()));
    let (paired, rest) = backwards.split_at(alternating.len());
    let pairs = alternating.iter().zip(paired).flat_map(|(forward, backward)| [forward, backward]);
    first.iter().chain(pairs).chain(rest).copied().collect()
}
