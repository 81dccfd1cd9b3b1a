//! The scopes that were opened around the parts of a model, and whose parameters are whose.

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use crate::layout::{LayoutError, Strategy, TaskGraph};

/// What was opened while a model was made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scopes {
    opened: Vec<Opened>,
    /// The scope in which a parameter was made, by the number of that.
    owners: HashMap<ParamId, usize>,
    /// The scope that is open, by its name.
    current: Option<String>,
}

#[derive(Clone, Debug)]
struct Opened {
    graph: TaskGraph,
    is_default: bool,
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
        struct Claimer<'a>(&'a mut HashMap<ParamId, usize>, usize);
        impl ModuleVisitor for Claimer<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0.entry(param.id).or_insert(self.1);
            }
        }
        part.visit(&mut Claimer(&mut self.owners, number));
    }

    /// The task graphs, and for each parameter that has one its task graph's number. A default strategy in which
    /// nothing was made is none.
    pub fn task_graphs(&self) -> (Vec<TaskGraph>, HashMap<ParamId, usize>) {
        let is_used = |number: usize| self.owners.values().any(|owner| *owner == number);
        let kept: Vec<usize> =
            (0..self.opened.len()).filter(|number| !self.opened[*number].is_default || is_used(*number)).collect();
        let place = |owner: &usize| kept.iter().position(|number| number == owner);
        let owners = self.owners.iter().filter_map(|(id, owner)| Some((*id, place(owner)?))).collect();
        (kept.iter().map(|number| self.opened[*number].graph.clone()).collect(), owners)
    }
}
