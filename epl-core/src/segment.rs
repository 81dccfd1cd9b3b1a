//! What the engine asks of a model: a chain of segments, and a loss of named terms.

use burn::module::{Module, ModuleDisplay};
use burn::tensor::Tensor;

use crate::error::{Error, Result};

/// The float tensors that cross the boundary between two segments.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::{Carry, CarryMapper};
/// #[derive(Clone)]
/// struct Hidden { states: Tensor<3>, memory: Option<Tensor<3>> }
///
/// impl Carry for Hidden {
///     fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
///         Self { states: mapper.float(self.states), memory: self.memory.map(|memory| mapper.float(memory)) }
///     }
/// }
/// ```
pub trait Carry: Sized + Clone + Send {
    /// Hands every tensor to `mapper`, always in the same order.
    #[must_use]
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self;
}

/// Does something with each tensor of a [`Carry`].
pub trait CarryMapper {
    /// Maps one tensor.
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D>;
}

impl Carry for () {
    fn map<M: CarryMapper>(self, _mapper: &mut M) -> Self {}
}

impl<const D: usize> Carry for Tensor<D> {
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
        mapper.float(self)
    }
}

impl<C: Carry> Carry for Option<C> {
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
        match self {
            Some(carry) => Some(carry.map(mapper)),
            None => None,
        }
    }
}

impl<C: Carry> Carry for Vec<C> {
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
        self.into_iter().map(|carry| Carry::map(carry, mapper)).collect()
    }
}

impl<A: Carry, B: Carry> Carry for (A, B) {
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
        (self.0.map(mapper), self.1.map(mapper))
    }
}

impl<A: Carry, B: Carry, C: Carry> Carry for (A, B, C) {
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
        (self.0.map(mapper), self.1.map(mapper), self.2.map(mapper))
    }
}

/// The weights of a batch's loss terms: what their sums are divided by. From the batch alone, on the host.
///
/// Tokens for a cross-entropy, routing groups for an auxiliary loss.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights(pub Vec<(&'static str, f64)>);

impl Weights {
    /// No weight yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the weight of a term.
    #[must_use]
    pub fn with(mut self, name: &'static str, weight: f64) -> Self {
        self.0.push((name, weight));
        self
    }

    /// The sums of two batches' weights; an empty one takes the names of the other.
    ///
    /// # Errors
    ///
    /// When the batches name different terms, or name them in another order.
    pub(crate) fn plus(mut self, other: Self) -> Result<Self> {
        let names = |weights: &Self| weights.0.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        if self.0.is_empty() {
            return Ok(other);
        }
        if names(&self) != names(&other) {
            return Err(Error::invalid(format!(
                "the model's `weights` names {:?} for one batch and {:?} for another; name the same terms, in the \
                 same order, for every batch",
                names(&self),
                names(&other)
            )));
        }
        self.0.iter_mut().zip(other.0).for_each(|((_, sum), (_, weight))| *sum += weight);
        Ok(self)
    }

    /// The weight of a term.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, weight)| *weight)
    }
}

/// One term of a loss: a sum, not a mean.
#[derive(Clone, Debug)]
pub struct Term {
    /// The name that [`Weights`] knows it by.
    pub name: &'static str,
    /// The sum over this rank's share of the batch. Shape `[1]`.
    pub sum: Tensor<1>,
    /// Its factor in the loss.
    pub coefficient: f64,
}

/// A loss of named terms: loss = Σ coefficient · Σ sum ÷ Σ weight, over all micro-batches and replicas.
#[derive(Clone, Debug, Default)]
pub struct Loss {
    /// The terms.
    pub terms: Vec<Term>,
}

impl Loss {
    /// No term yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks that every term has a weight.
    pub(crate) fn check(&self, weights: &Weights) -> Result<()> {
        match self.terms.iter().find(|term| weights.get(term.name).is_none()) {
            Some(term) => Err(Error::invalid(format!(
                "the loss has a term `{}`, and the model's `weights` names only {:?}; a term without a weight would \
                 not be trained",
                term.name,
                weights.0.iter().map(|(name, _)| *name).collect::<Vec<_>>()
            ))),
            None => Ok(()),
        }
    }

    /// Adds a term.
    ///
    /// # Shapes
    ///
    /// - sum: `[1]`
    #[must_use]
    pub fn with(mut self, name: &'static str, sum: Tensor<1>, coefficient: f64) -> Self {
        self.terms.push(Term { name, sum, coefficient });
        self
    }
}

impl Carry for Loss {
    fn map<M: CarryMapper>(mut self, mapper: &mut M) -> Self {
        self.terms = self.terms.into_iter().map(|term| Term { sum: mapper.float(term.sum), ..term }).collect();
        self
    }
}

/// A model as a chain of segments, each the smallest run of layers that is scheduled and reduced as one.
pub trait Segmented: Module {
    /// What one forward reads.
    type Batch: Send;
    /// What crosses a boundary between segments.
    type Carry: Carry;

    /// How many segments the model has, at least one.
    fn segments(&self) -> usize;

    /// The segments that use the parameter at `path`; several for a tied weight.
    fn segments_of(&self, path: &str) -> Vec<usize>;

    /// Runs one segment. The first one gets no carry.
    fn forward_segment(&self, index: usize, carry: Option<Self::Carry>, batch: &Self::Batch) -> Self::Carry;

    /// The weights of the loss terms, from the batch alone.
    fn weights(&self, batch: &Self::Batch) -> Weights;

    /// The loss, from what the last segment returned.
    fn loss(&self, carry: Self::Carry, batch: &Self::Batch) -> Loss;
}

/// A model that is run as a whole: see [`OneSegment`].
pub trait WholeModel: Module {
    /// What one forward reads.
    type Batch: Send;

    /// The weights of the loss terms, from the batch alone.
    fn weights(&self, batch: &Self::Batch) -> Weights;

    /// Forward and loss.
    fn forward_loss(&self, batch: &Self::Batch) -> Loss;
}

/// Makes one segment of a whole model: correct under data parallelism, without overlap.
#[derive(Module, Debug)]
pub struct OneSegment<M> {
    /// The model.
    pub model: M,
}

impl<M: WholeModel + ModuleDisplay> Segmented for OneSegment<M> {
    type Batch = M::Batch;
    type Carry = Loss;

    fn segments(&self) -> usize {
        1
    }

    fn segments_of(&self, _path: &str) -> Vec<usize> {
        vec![0]
    }

    fn forward_segment(&self, _index: usize, _carry: Option<Loss>, batch: &M::Batch) -> Loss {
        self.model.forward_loss(batch)
    }

    fn weights(&self, batch: &M::Batch) -> Weights {
        self.model.weights(batch)
    }

    fn loss(&self, carry: Loss, _batch: &M::Batch) -> Loss {
        carry
    }
}
