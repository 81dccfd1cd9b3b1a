//! What a step tells beside its report: bytes, a trace, waiting, what segments cost.

use std::cell::Cell;

use burn::tensor::Device;
use epl_comm::{ThreadMemory, TraceWatch};

use super::flops::SegmentFlops;
use super::meter::{KeptCount, Lease, Meters};
use crate::model::context::Context;
use crate::offload::is_host;
use crate::plan::{Plan, TraceWindow};
use crate::probe::Profile;
use crate::simulate::StepTime;

/// What an engine notes of its steps. Nothing of it is in a checkpoint.
pub(super) struct Diagnostics {
    pub meters: Meters,
    /// Whether the bytes of activations can be measured: the allocator counts, and the device's memory is the host's.
    pub measures_activations: bool,
    /// What stays from step to step, as it was counted last.
    pub kept: Cell<Option<KeptCount>>,
    /// The steps that are traced, and how many were made by this engine.
    trace: (Option<TraceWindow>, u64),
    /// Whether it is measured where the time of the next step goes.
    pub measures: bool,
    /// See [`Engine::step_time`](super::Engine::step_time).
    pub step_time: Option<StepTime>,
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
    pub fn new(plan: &Plan, context: &Context, device: &Device) -> Self {
        let window = plan.settings.trace;
        if window.is_some() {
            context.switch_trace(false);
        }
        Self {
            meters: Meters::default(),
            measures_activations: ThreadMemory::now().is_some() && is_host(device),
            kept: Cell::new(None),
            trace: (window, 0),
            measures: false,
            step_time: None,
            has_compared: false,
            bubble: None,
            profiled: None,
            chosen_for: 0,
            flops: SegmentFlops::new(plan),
        }
    }

    /// Runs a part of a forward, and counts what it leaves for its backward until the lease is dropped; none where that cannot be
    /// measured.
    pub fn leaving<T>(&self, f: impl FnOnce() -> T) -> (T, Option<Lease>) {
        if !self.measures_activations {
            return (f(), None);
        }
        let (value, change) = ThreadMemory::of(f);
        let lease = change.map(|change| {
            self.meters.reach(change.most);
            self.meters.activations.lease_change(change.live)
        });
        (value, lease)
    }

    /// Runs a backward, of which what it needs for a moment counts in the peak.
    pub fn needing<T>(&self, f: impl FnOnce() -> T) -> T {
        if !self.measures_activations {
            return f();
        }
        let (value, change) = ThreadMemory::of(f);
        change.into_iter().for_each(|change| self.meters.reach(change.most));
        value
    }

    /// Switches the trace on for the steps that are to be traced, and off after them, as another step begins; and watches it for
    /// one whose time is to be measured.
    pub fn trace_step(&mut self, context: &Context) -> Option<TraceWatch> {
        if let (Some(window), step) = &mut self.trace {
            context.switch_trace(window.contains(*step));
            *step += 1;
        }
        self.step_time = None;
        core::mem::take(&mut self.measures).then(|| context.watch_trace()).flatten()
    }
}
