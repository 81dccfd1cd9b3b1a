//! Ends the run on all ranks after the same step.

use crate::error::Result;
use crate::model::segment::Model;
use crate::trainer::hook::Hook;
use crate::trainer::run::Run;
use crate::trainer::stop::StopHandle;

/// Ends the run once a [`StopHandle`] or a hook asks for it, on any rank. For every rank.
#[derive(Clone, Debug, Default)]
pub struct StopOnRequest(StopHandle);

impl StopOnRequest {
    /// Heeds this handle.
    pub fn new(stop: StopHandle) -> Self {
        Self(stop)
    }
}

impl<M: Model> Hook<M> for StopOnRequest {
    /// Not after a step that was skipped: there is nothing new to save then, and one that is made follows, or an error.
    fn between_steps(&mut self, run: &mut Run<M>) -> Result<()> {
        if let Some(signal) = self.0.signal() {
            run.request_interruption_by(signal);
        } else if self.0.is_requested() {
            run.request_end();
        }
        run.agree_to_end()
    }
}
