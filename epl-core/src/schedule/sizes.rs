//! The sizes of a pipeline, and what an action waits for.
//!
//! Parts are dealt to the stages in turn, so with two chunks a micro-batch goes round twice:
//!
//! ```text
//!             stage 0   stage 1   stage 2
//!  chunk 0    part 0 -> part 1 -> part 2 --.
//!           .------------------------------'
//!  chunk 1  '>part 3 -> part 4 -> part 5      forward; backward goes the same way back
//! ```

use super::action::{Action, ActionKind};
use super::error::{Result, ScheduleError};

/// How many stages, micro-batches and chunks a stage; none of them zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    stages: usize,
    micro_batches: usize,
    chunks: usize,
}

impl Sizes {
    /// The sizes of a pipeline.
    ///
    /// # Errors
    ///
    /// A size of zero; more actions than can be counted.
    pub fn new(stages: usize, micro_batches: usize, chunks: usize) -> Result<Self> {
        let given = [("stages", stages), ("micro-batches", micro_batches), ("chunks a stage", chunks)];
        if let Some((what, _)) = given.into_iter().find(|(_, size)| *size == 0) {
            return Err(ScheduleError::Zero { what });
        }
        let actions = [stages, micro_batches, chunks].into_iter().try_fold(2, usize::checked_mul);
        match actions {
            Some(_) => Ok(Self { stages, micro_batches, chunks }),
            None => Err(ScheduleError::TooMany { stages, micro_batches, chunks }),
        }
    }

    /// Stages, p.
    pub fn stages(&self) -> usize {
        self.stages
    }

    /// Micro-batches of a step, m.
    pub fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// Pieces of the model that one stage holds, v.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// Pieces of the model, p·v.
    pub fn parts(&self) -> usize {
        self.stages * self.chunks
    }

    /// Actions of one stage, 2·m·v.
    pub fn actions(&self) -> usize {
        2 * self.micro_batches * self.chunks
    }

    /// Which part of the model a stage's chunk is.
    pub fn part(&self, stage: usize, chunk: usize) -> usize {
        chunk * self.stages + stage
    }

    /// The action that must have ended before this one begins, with the stage that does it. Only
    /// the forward of the first part waits for none.
    pub fn awaited(&self, stage: usize, action: Action) -> Option<(usize, Action)> {
        let part = self.part(stage, action.chunk);
        match action.kind {
            ActionKind::Forward => Some(self.on(part.checked_sub(1)?, action)),
            ActionKind::Backward if part + 1 < self.parts() => Some(self.on(part + 1, action)),
            ActionKind::Backward => Some((stage, Action { kind: ActionKind::Forward, ..action })),
        }
    }

    /// The same action on another part, with the stage that holds it.
    fn on(&self, part: usize, action: Action) -> (usize, Action) {
        (part % self.stages, Action { chunk: part / self.stages, ..action })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_micro_batch_goes_round_once_a_chunk_and_back() {
        let sizes = Sizes::new(3, 1, 2).unwrap();
        let mut seen = vec![(0, Action::backward(0, 0))];
        while let Some(before) = sizes.awaited(seen[seen.len() - 1].0, seen[seen.len() - 1].1) {
            seen.push(before);
        }
        let names: Vec<String> = seen.iter().rev().map(|(stage, action)| format!("{stage}:{action}")).collect();
        assert_eq!(
            names.join(" "),
            "0:F0 1:F0 2:F0 0:F0.1 1:F0.1 2:F0.1 2:B0.1 1:B0.1 0:B0.1 2:B0 1:B0 0:B0",
            "a backward over all parts waits for everything"
        );
    }

    #[test]
    fn a_size_of_zero_is_refused() {
        for (sizes, message) in [
            (Sizes::new(0, 1, 1), "the number of stages is 0; it must be at least 1"),
            (Sizes::new(1, 0, 1), "the number of micro-batches is 0; it must be at least 1"),
            (Sizes::new(1, 1, 0), "the number of chunks a stage is 0; it must be at least 1"),
        ] {
            assert_eq!(sizes.unwrap_err().to_string(), message);
        }
        assert_eq!(
            Sizes::new(1 << 30, 1 << 30, 8).unwrap_err().to_string(),
            "1073741824 stages × 1073741824 micro-batches × 8 chunks are more actions than can be counted; \
             lower one of them"
        );
    }
}
