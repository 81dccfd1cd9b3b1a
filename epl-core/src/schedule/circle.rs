//! Stages that wait for one another, and how they are shown.

use std::fmt;

use super::action::Action;

/// A stage that cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The stage.
    pub stage: usize,
    /// The action that is its turn.
    pub action: Action,
    /// Where in its list, counted from 1.
    pub place: usize,
    /// The action that has to end first.
    pub awaited: Action,
    /// The stage that has it: it stands at it, or before it.
    pub from: usize,
    /// Where in that stage's list, counted from 1.
    pub awaited_place: usize,
}

/// Stages each of which waits for the next, and the last for the first.
///
/// ```text
///  stage 0  F0 [B0] F1        stage 0 stands at B0, which needs B0 of stage 1;
///  stage 1  F0 [F1] B0 B1     stage 1 stands at F1, which needs F1 of stage 0
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circle {
    waits: Vec<Wait>,
}

impl Circle {
    /// The circle that is reached from a stage that stands, where `at` says for what a stage waits.
    ///
    /// Whoever waits waits for a stage that stands too: it has the action in its list, and has not
    /// done it. So following the waits comes back to a stage seen before.
    pub(super) fn from(stage: usize, at: impl Fn(usize) -> Wait) -> Self {
        let mut waits: Vec<Wait> = Vec::new();
        let mut next = stage;
        loop {
            if let Some(start) = waits.iter().position(|wait| wait.stage == next) {
                return Self { waits: waits.split_off(start) };
            }
            let wait = at(next);
            waits.push(wait);
            next = wait.from;
        }
    }

    /// The waits, each for the stage of the next one.
    pub fn waits(&self) -> &[Wait] {
        &self.waits
    }
}

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, wait) in self.waits.iter().enumerate() {
            let semicolon = if number == 0 { "" } else { "; " };
            let Wait { stage, action, place, awaited, from, awaited_place } = wait;
            write!(f, "{semicolon}stage {stage} stands at {action} (place {place}), ")?;
            write!(f, "which needs {awaited} of stage {from} (place {awaited_place})")?;
        }
        Ok(())
    }
}
