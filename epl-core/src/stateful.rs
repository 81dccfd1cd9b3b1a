//! Burn's layers that remember something from one forward to the next, beside their parameters.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// What a layer remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remembers {
    /// The generator goes on, which all ranks share.
    Generator,
    /// Its running statistics move.
    Statistics,
}

impl Remembers {
    /// What the layer remembers that has this field, if it is of Burn and remembers anything. Of each layer one field
    /// tells.
    pub fn of(container_type: &str, field: &str) -> Option<Self> {
        match (container_type, field) {
            ("Struct:Dropout" | "Struct:GaussianNoise", "training") => Some(Self::Generator),
            ("Struct:BatchNorm", "gamma") => Some(Self::Statistics),
            _ => None,
        }
    }
}

/// The first layer of a module that remembers something, by its path.
pub(crate) fn first_stateful<M: Module>(module: &M) -> Option<(String, Remembers)> {
    let mut search = Search { path: Vec::new(), found: None };
    module.visit(&mut search);
    search.found
}

struct Search {
    path: Vec<String>,
    found: Option<(String, Remembers)>,
}

impl ModuleVisitor for Search {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        if let (Some(what), None) = (Remembers::of(container_type, name), &self.found) {
            self.found = Some((self.path.join("."), what));
        }
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, _param: &Param<Tensor<D>>) {}
}
