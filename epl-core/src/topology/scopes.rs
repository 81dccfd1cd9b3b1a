//! The scopes that were opened around the parts of a model, and whose parameters are whose.

use std::collections::HashMap;

use burn::module::{Flag, Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use crate::topology::layout::{LayoutError, Strategy, TaskGraph};

/// What was opened while a model was made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scopes {
    opened: Vec<Opened>,
    /// The scope in which a parameter was made, by the number of that, and its layer.
    owners: Owners,
    /// The scope that is open, by its name.
    current: Option<String>,
}

/// What was said of parameters where they were made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owners {
    /// The task graphs of those that were made in a scope.
    pub graphs: HashMap<ParamId, usize>,
    /// The task graphs of the switches of layers without a parameter, such as a Dropout.
    pub switches: HashMap<ParamId, usize>,
    /// The layers of those that were made in one that is numbered.
    pub layers: HashMap<ParamId, isize>,
}

#[derive(Clone, Debug)]
struct Opened {
    graph: TaskGraph,
    is_default: bool,
}

impl Owners {
    /// Whether what has this identifier was made in a task graph.
    pub fn is_in(&self, id: ParamId, graph: usize) -> bool {
        [&self.graphs, &self.switches].iter().any(|owners| owners.get(&id) == Some(&graph))
    }
}

impl Scopes {
    /// Opens a task graph and returns its number.
    ///
    /// # Errors
    ///
    /// When a scope is open, whatever place this one is opened at, or another one has the same name.
    pub fn open(&mut self, strategy: Strategy, is_default: bool) -> Result<usize, LayoutError> {
        let number = self.opened.len();
        let said = strategy.to_string();
        if let Some(outer) = self.current.clone() {
            return Err(LayoutError::Nested { outer, inner: said });
        }
        let Strategy { kind, devices, name } = strategy;
        let name = name.unwrap_or_else(|| number.to_string());
        if self.opened.iter().any(|other| other.graph.name == name) {
            return Err(LayoutError::SameName { name });
        }
        if !is_default {
            self.current = Some(said);
        }
        self.opened.push(Opened { graph: TaskGraph { name, kind, devices }, is_default });
        Ok(number)
    }

    /// Closes a scope and records the parameters of the part that was made in it, but for those of scopes inside a
    /// default strategy.
    pub fn close<M: Module>(&mut self, number: usize, part: &M) {
        self.current = None;
        let Owners { graphs, switches, .. } = &mut self.owners;
        part.visit(&mut Claimer { params: graphs, switches: Some(switches), owner: number });
    }

    /// Records the parameters of a part as those of a layer, but for those of other layers inside it.
    pub fn number<M: Module>(&mut self, layer: isize, part: &M) {
        part.visit(&mut Claimer { params: &mut self.owners.layers, switches: None, owner: layer });
    }

    /// The task graphs, and what was said of each parameter. A default strategy in which nothing was made is no graph.
    pub fn task_graphs(&self) -> (Vec<TaskGraph>, Owners) {
        let is_used = |number: usize| self.owners.graphs.values().any(|owner| *owner == number);
        let kept: Vec<usize> =
            (0..self.opened.len()).filter(|number| !self.opened[*number].is_default || is_used(*number)).collect();
        let place = |owner: &usize| kept.iter().position(|number| number == owner);
        let placed = |owners: &HashMap<ParamId, usize>| {
            owners.iter().filter_map(|(id, owner)| Some((*id, place(owner)?))).collect()
        };
        let Owners { graphs, switches, layers } = &self.owners;
        let owners = Owners { graphs: placed(graphs), switches: placed(switches), layers: layers.clone() };
        (kept.iter().map(|number| self.opened[*number].graph.clone()).collect(), owners)
    }
}

/// Gives the parameters of a part that nobody owns yet to an owner, and its switches.
struct Claimer<'a, O> {
    params: &'a mut HashMap<ParamId, O>,
    switches: Option<&'a mut HashMap<ParamId, O>>,
    owner: O,
}

impl<O: Copy> ModuleVisitor for Claimer<'_, O> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.params.entry(param.id).or_insert(self.owner);
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        if let Some(switches) = &mut self.switches {
            switches.entry(flag.id).or_insert(self.owner);
        }
    }
}
