//! Burn's layers that need care, by the names of their types: those that remember something from one forward to the next,
//! beside their parameters, and those that would mix types in 16 bits.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::module::{Flag, Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

/// What a layer remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remembers {
    /// The generator goes on, which all ranks share.
    Generator,
    /// Its running statistics move.
    Statistics,
}

/// A field without parameters, behind the others of a layer of EPL that is called like one of Burn's: it needs no care.
const OF_EPL: &str = "of_epl";

/// The fields that are running statistics: of batch norms, and of the bias that balances experts.
pub(crate) const STATISTICS: [&str; 5] =
    ["running_mean", "running_var", "running_bias", "running_load", "running_step"];

/// What is known of a type of layer.
#[derive(Clone, Copy, Debug)]
struct Kind {
    remembers: Option<Remembers>,
    /// Whether it makes a part of what it computes with in the device's own type, whatever it is given: running statistics,
    /// noise, first states. In 16 bits it would mix types, and Burn panics.
    mixes: bool,
}

impl Kind {
    /// Of the layer that has this field, if it is of Burn and needs care. Of each layer one field tells.
    fn of(container_type: &str, field: &str) -> Option<Self> {
        let (remembers, mixes) = match (container_type, field) {
            ("Struct:Dropout" | "Struct:RRelu", "training") => (Some(Remembers::Generator), false),
            ("Struct:GaussianNoise", "training") => (Some(Remembers::Generator), true),
            ("Struct:BatchNorm", "gamma") => (Some(Remembers::Statistics), true),
            ("Struct:Lstm", "input_gate") | ("Struct:Gru", "update_gate") | ("Struct:Rnn", "gate") => (None, true),
            _ => return None,
        };
        Some(Self { remembers, mixes })
    }
}

/// Lets layers take over the updates of running statistics that they have put aside, as they do before a copy is made for
/// validation.
pub(crate) fn take_over<M: Module>(model: &M) {
    drop(model.valid());
}

/// Runs `f`, and then what puts back what it has moved, also where `f` unwinds: what fails behind that has a cause already.
pub(crate) fn undoing<T>(f: impl FnOnce() -> T, put_back: impl FnOnce()) -> T {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => {
            put_back();
            value
        }
        Err(payload) => {
            let _ = epl_comm::catch(put_back);
            resume_unwind(payload)
        }
    }
}

/// The layers of a module that remember something, by their paths, in its order. One that draws with probability zero, or
/// adds noise of no deviation, leaves the generator alone and is none.
pub(crate) fn stateful<M: Module>(module: &M) -> Vec<(String, Remembers)> {
    let mut found = search(module);
    if found.iter().any(|layer| layer.flag.is_some()) {
        // A visitor is shown parameters and no plain numbers. The text of a module has these; of parameters, identifiers.
        let text = format!("{module:?}");
        found.retain(|layer| !layer.flag.is_some_and(|flag| is_silent(&text, flag)));
    }
    found.into_iter().filter_map(|layer| Some((layer.path, layer.kind.remembers?))).collect()
}

/// The layers of a module that would mix types in 16 bits, by their paths, in its order.
pub(crate) fn mixing<M: Module>(module: &M) -> Vec<String> {
    search(module).into_iter().filter(|layer| layer.kind.mixes).map(|layer| layer.path).collect()
}

fn search<M: Module>(module: &M) -> Vec<Layer> {
    let mut search = Search { path: Vec::new(), found: Vec::new() };
    module.visit(&mut search);
    search.found
}

/// Whether the layer with this flag never draws, in the text of its module.
fn is_silent(text: &str, flag: ParamId) -> bool {
    let Some((before, _)) = text.split_once(&format!(", training: Param: {flag} -")) else { return false };
    ["Dropout { prob: ", "GaussianNoise { std: "].iter().any(|start| {
        let number = before.rsplit_once(start).map(|(_, number)| number.parse::<f64>());
        number.is_some_and(|number| number.is_ok_and(|number| number == 0.0))
    })
}

struct Layer {
    path: String,
    kind: Kind,
    /// Of one that draws: what switches it.
    flag: Option<ParamId>,
}

struct Search {
    path: Vec<String>,
    found: Vec<Layer>,
}

impl ModuleVisitor for Search {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        if let Some(kind) = Kind::of(container_type, name) {
            self.found.push(Layer { path: self.path.join("."), kind, flag: None });
        } else if name == OF_EPL {
            let path = self.path.join(".");
            self.found.retain(|layer| layer.path != path);
        }
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, _param: &Param<Tensor<D>>) {}

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        let Some((field, layer)) = self.path.split_last() else { return };
        let draws = |found: &&mut Layer| found.kind.remembers == Some(Remembers::Generator);
        let own = self.found.last_mut().filter(draws).filter(|_| field == "training");
        if let Some(found) = own.filter(|found| found.path == layer.join(".")) {
            found.flag = Some(flag.id);
        }
    }
}
