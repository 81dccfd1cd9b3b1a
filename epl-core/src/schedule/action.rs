//! One thing that a stage does, and its short name.

use std::fmt;
use std::str::FromStr;

/// Which way an [`Action`] goes through the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ActionKind {
    /// From the first part to the last.
    Forward,
    /// From the last part to the first.
    Backward,
}

/// One micro-batch through one of a stage's chunks, forward or backward.
///
/// Its short name is what a schedule's file, its errors and its drawing say. Chunk 0 goes without saying:
///
/// ```
/// use epl_core::schedule::Action;
///
/// assert_eq!("F3".parse(), Ok(Action::forward(3, 0)));
/// assert_eq!("B0.1".parse(), Ok(Action::backward(0, 1)));
/// assert_eq!("B0.0".parse::<Action>().unwrap().to_string(), "B0");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Action {
    /// Forward or backward.
    pub kind: ActionKind,
    /// Which micro-batch.
    pub micro_batch: usize,
    /// Which of the model's pieces that the stage holds; 0 without interleaving.
    pub chunk: usize,
}

impl Action {
    /// The forward of a micro-batch through a chunk.
    pub const fn forward(micro_batch: usize, chunk: usize) -> Self {
        Self { kind: ActionKind::Forward, micro_batch, chunk }
    }

    /// The backward of a micro-batch through a chunk.
    pub const fn backward(micro_batch: usize, chunk: usize) -> Self {
        Self { kind: ActionKind::Backward, micro_batch, chunk }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.kind {
            ActionKind::Forward => 'F',
            ActionKind::Backward => 'B',
        };
        write!(f, "{letter}{}", self.micro_batch)?;
        match self.chunk {
            0 => Ok(()),
            chunk => write!(f, ".{chunk}"),
        }
    }
}

/// A text that is not an action's short name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an action is F (forward) or B (backward) with the number of a micro-batch, and after a dot of a chunk: F3, B0, F3.1"
)]
pub struct NotAnAction;

impl FromStr for Action {
    type Err = NotAnAction;

    fn from_str(text: &str) -> Result<Self, NotAnAction> {
        let (kind, numbers) = match (text.strip_prefix('F'), text.strip_prefix('B')) {
            (Some(numbers), _) => (ActionKind::Forward, numbers),
            (_, Some(numbers)) => (ActionKind::Backward, numbers),
            (None, None) => return Err(NotAnAction),
        };
        let (micro_batch, chunk) = numbers.split_once('.').unwrap_or((numbers, "0"));
        Ok(Self { kind, micro_batch: number(micro_batch)?, chunk: number(chunk)? })
    }
}

/// Digits only: the standard library also reads a sign.
fn number(text: &str) -> Result<usize, NotAnAction> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse().map_err(|_| NotAnAction),
        false => Err(NotAnAction),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_back() {
        for (name, action) in [
            ("F0", Action::forward(0, 0)),
            ("B12", Action::backward(12, 0)),
            ("F3.1", Action::forward(3, 1)),
            ("B10.25", Action::backward(10, 25)),
        ] {
            assert_eq!(name.parse(), Ok(action));
            assert_eq!(action.to_string(), name);
        }
        assert_eq!("F07.00".parse(), Ok(Action::forward(7, 0)));
    }

    #[test]
    fn anything_else_is_refused() {
        let huge = format!("F{}0", usize::MAX);
        let others = ["", "F", "B.", "f0", "W0", "3", "F-1", "F+1", "F1.", "F.1", "F1.1.1", "F1 ", "F١", "FB0", &huge];
        for text in others {
            assert_eq!(text.parse::<Action>(), Err(NotAnAction), "{text:?}");
        }
    }
}
