//! Which parts of a forward draw by Burn's generator.

use std::cell::RefCell;

use crate::plan::Plan;

/// Whether each part of a forward draws: its segments, then the loss. None: not known yet.
pub(super) struct Draws(RefCell<Vec<Option<bool>>>);

impl Draws {
    /// As far as the plan tells.
    pub fn of(plan: &Plan) -> Self {
        let known = |draws: &bool| draws.then_some(true);
        let draws = &plan.burn_layers.draws;
        Self(RefCell::new(draws.iter().chain(draws.last()).map(known).collect()))
    }

    pub fn known(&self, part: usize) -> Option<bool> {
        self.0.borrow()[part]
    }

    /// Takes what a first forward of training has shown.
    pub fn found(&self, part: usize, draws: bool) {
        self.0.borrow_mut()[part] = Some(draws);
    }
}
