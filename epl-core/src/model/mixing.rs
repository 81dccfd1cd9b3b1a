//! Layers of Burn that make a part of what they compute with in the device's own type, whatever they are given: running
//! statistics, noise, first states. In 16 bits they would mix types, and Burn panics.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// Such layers, each with a field by which it is told.
const LAYERS: [(&str, &str); 5] = [
    ("Struct:BatchNorm", "gamma"),
    ("Struct:GaussianNoise", "training"),
    ("Struct:Lstm", "input_gate"),
    ("Struct:Gru", "update_gate"),
    ("Struct:Rnn", "gate"),
];

/// Those of a module, by their paths, in its order.
pub(crate) fn mixing<M: Module>(module: &M) -> Vec<String> {
    let mut search = MixingSearch { path: Vec::new(), found: Vec::new() };
    module.visit(&mut search);
    search.found
}

struct MixingSearch {
    path: Vec<String>,
    found: Vec<String>,
}

impl ModuleVisitor for MixingSearch {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        if LAYERS.contains(&(container_type, name)) {
            self.found.push(self.path.join("."));
        }
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, _param: &Param<Tensor<D>>) {}
}
