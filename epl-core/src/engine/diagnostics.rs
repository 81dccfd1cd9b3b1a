//! What a step tells beside its report: bytes, a trace, waiting, what segments cost.

use super::flops::SegmentFlops;
use super::meter::Meters;
use crate::model::context::Context;
use crate::plan::{Plan, TraceWindow};
use crate::probe::Profile;

/// What an engine notes of its steps. Nothing of it is in a checkpoint.
pub(super) struct Diagnostics {
    pub meters: Meters,
    /// The steps that are traced, and how many were made by this engine.
    trace: (Option<TraceWindow>, u64),
    /// Whether batches of [`Engine::train_batch`](super::Engine::train_batch) were compared by their values.
    pub has_compared: bool,
    /// See [`Engine::bubble`](super::Engine::bubble).
    pub bubble: Option<f64>,
    pub profiled: Option<Profile>,
    /// For how many micro-batches it is chosen what is run again.
    pub chosen_for: usize,
    pub flops: SegmentFlops,
}

impl Diagnostics {
    /// Those of an engine that traces some of its steps, or all that happens.
    pub fn new(plan: &Plan, context: &Context) -> Self {
        let window = plan.settings.trace;
        if window.is_some() {
            context.switch_trace(false);
        }
        let (meters, trace, flops) = (Meters::default(), (window, 0), SegmentFlops::new(plan));
        Self { meters, trace, has_compared: false, bubble: None, profiled: None, chosen_for: 0, flops }
    }

    /// Switches the trace on for the steps that are to be traced, and off after them: another step begins.
    pub fn trace_step(&mut self, context: &Context) {
        if let (Some(window), step) = &mut self.trace {
            context.switch_trace(window.contains(*step));
            *step += 1;
        }
    }
}
