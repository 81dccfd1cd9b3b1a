//! How many bytes of each kind a rank holds.
//!
//! ```text
//! counted    parameters, optimizer state, and what lies away from the device: what stays from step to step
//! leased     gradients, gathered parameters, buckets on their way: tensor by tensor, while they are there
//! measured   what a segment's forward leaves for its backward, by the allocator: until that backward is over
//! ```

use std::fmt;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

use super::meter::{KeptBytes, KeptCount};
use super::rank::Engine;
use super::state::ModelState;
use crate::memory::{MemoryKind, Tier};
use crate::model::segment::Model;
use crate::offload::is_host;
use crate::plan::Plan;

/// What a trace calls it.
const COUNTER: &str = "memory (bytes)";
/// An optimizer has all of its state of a parameter behind the parameter's second step.
const STEPS_TO_STATE: u64 = 2;

/// The bytes that one rank holds, by kind, counted tensor by tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Parameters and running statistics, between two steps.
    pub parameters: u64,
    /// Peak of gathered parameters, on top of `parameters`.
    pub gathered: u64,
    /// Peak of gradients.
    pub gradients: u64,
    /// The optimizer's state; none before the first step.
    pub optimizer_state: u64,
    /// What was moved to host memory, of whatever kind.
    pub host: u64,
    /// What was moved to files.
    pub files: u64,
}

/// The most bytes that one rank held at once on its device, of all kinds together, and what it holds elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeakMemory {
    /// On its device; of one with memory of its own, what its allocator has reserved when it is asked.
    pub device: u64,
    /// Moved to host memory, when it is asked.
    pub host: u64,
    /// Moved to files, when it is asked.
    pub files: u64,
}

impl<M: Model> ModelState<M> {
    fn kept(&self, plan: &Plan) -> KeptBytes {
        let mut kept = KeptBytes::default();
        kept.parameters[Tier::Device as usize] = of_module(self.params.model()) + self.params.flat_bytes();
        self.params.away().for_each(|array| kept.parameters[array.tier() as usize] += array.bytes());
        if let Some(away) = &self.away {
            away.borrow().arrays().for_each(|array| kept.gradients[array.tier() as usize] += array.bytes());
        }
        // Where it is not updated in one pass there, Burn's optimizer has it on tensors there.
        kept.optimizer_state[plan.tiers.state as usize] = self.optimizer.bytes();
        let states = self.one_pass.iter().flat_map(|one_pass| &one_pass.states);
        states.for_each(|state| kept.optimizer_state[state.tier() as usize] += state.bytes());
        kept
    }
}

impl<M: Model> Engine<M> {
    /// The most bytes that this rank held at once since this was last asked, as they are measured; none where nobody measures. Who
    /// asks takes it: beside a [`Progress`](crate::trainer::Progress), which asks on the first rank, it is what was since then.
    ///
    /// Where the device's memory is the host's, and the program's allocator is a
    /// [`CountingAllocator`](epl_comm::CountingAllocator): parameters, gradients, optimizer state, activations, buckets, and what
    /// segments need for a moment in training; not batches, evaluation and generation, nor what a process needs once. What collectives inside layers give lies in
    /// memory that is used again, and counts where it is new. A device with memory of its own says what its allocator has
    /// reserved, for all ranks on it; it ends first what it was given to do.
    pub fn take_peak_memory(&self) -> Option<PeakMemory> {
        let ledger = &self.state.params.storage().ledger;
        let device = match is_host(&self.device) {
            true if !self.diagnostics.measures_activations => return None,
            true => {
                let kept = self.kept();
                let kept = [kept.parameters, kept.optimizer_state].map(|tiers| tiers[Tier::Device as usize]);
                kept.iter().sum::<u64>() + self.diagnostics.meters.take_most()
            }
            false => self.device.memory_pool_usage()?.bytes_reserved,
        };
        Some(PeakMemory { device, host: ledger.host().now, files: ledger.files().now })
    }

    /// Says in the trace, if there is one that is switched on, how many bytes this rank holds now, by kind.
    pub(super) fn count_memory(&self) {
        self.context.count(COUNTER, || self.held_by_kind());
    }

    fn held_by_kind(&self) -> Vec<(String, u64)> {
        let (kept, meters, tiers) = (self.kept(), &self.diagnostics.meters, self.plan.tiers);
        let (device, buffers) = (Tier::Device as usize, meters.parameters.now() + meters.buckets.now());
        let activations = self.diagnostics.measures_activations.then(|| meters.activations.now());
        let on_device = [
            (MemoryKind::Parameters, Some(kept.parameters[device])),
            (MemoryKind::Gradients, Some(meters.gradients.now())),
            (MemoryKind::OptimizerState, Some(kept.optimizer_state[device])),
            (MemoryKind::Activations, activations),
            (MemoryKind::Buffers, Some(buffers)),
        ];
        let on_device = on_device.into_iter().filter_map(|(kind, bytes)| Some((kind.to_string(), bytes?)));
        let away = [
            (MemoryKind::Parameters, tiers.parameters, kept.parameters),
            (MemoryKind::Gradients, tiers.gradients, kept.gradients),
            (MemoryKind::OptimizerState, tiers.state, kept.optimizer_state),
        ];
        let away = away.into_iter().filter(|(_, tier, _)| *tier != Tier::Device);
        on_device.chain(away.map(|(kind, tier, bytes)| (format!("{kind} ({tier})"), bytes[tier as usize]))).collect()
    }

    /// What stays from step to step: counted when it is asked for, and again where the optimizer may have more by now. To count
    /// what an optimizer of Burn's keeps that declares none of it is to copy it.
    fn kept(&self) -> KeptBytes {
        let (steps, untouched) = (self.state.steps, self.state.untouched.len());
        let last = self.diagnostics.kept.get();
        let since = match last {
            Some(last) if last.untouched == untouched => last.since,
            // A parameter has had its first gradient, in the last step at the latest.
            Some(_) => steps.saturating_sub(1),
            None => 0,
        };
        let all = since + STEPS_TO_STATE;
        let is_all = |last: &KeptCount| last.untouched == untouched && last.after.min(all) == steps.min(all);
        let kept = last.filter(is_all).map_or_else(|| self.state.kept(&self.plan), |last| last.kept);
        self.diagnostics.kept.set(Some(KeptCount { after: steps, untouched, since, kept }));
        kept
    }

    /// The bytes that this rank holds.
    pub fn memory_usage(&self) -> MemoryUsage {
        let ledger = &self.state.params.storage().ledger;
        MemoryUsage {
            parameters: of_module(self.model()) + self.state.params.flat_bytes(),
            gathered: self.diagnostics.meters.parameters.most(),
            gradients: self.diagnostics.meters.gradients.most(),
            optimizer_state: self.state.optimizer.bytes(),
            host: ledger.host().now,
            files: ledger.files().now,
        }
    }
}

fn of_module<M: Module>(model: &M) -> u64 {
    struct ModuleBytes(u64);
    impl ModuleVisitor for ModuleBytes {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let values = param.base();
            self.0 += (values.shape().num_elements() * values.dtype().size()) as u64;
        }
    }
    let mut bytes = ModuleBytes(0);
    model.visit(&mut bytes);
    bytes.0
}

impl fmt::Display for MemoryUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parameters, gathered, gradients, optimizer_state, host, files } = self;
        write!(
            f,
            "bytes on this rank: {parameters} of parameters ({gathered} more gathered at most), {gradients} of gradients \
             at most, {optimizer_state} of optimizer state; moved to host memory {host}, to files {files}"
        )
    }
}
