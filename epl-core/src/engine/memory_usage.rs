//! How many bytes of each kind a rank holds.

use std::fmt;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

use super::rank::Engine;
use crate::model::segment::Model;

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

impl<M: Model> Engine<M> {
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
