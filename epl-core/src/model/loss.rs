//! The loss contract: named terms, each a sum or a mean with its weight. Never a mean of means.

use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use crate::error::{Error, Result};

/// The weights of a batch's loss terms: what their sums are divided by. From the batch alone, on the host.
///
/// Tokens for a cross-entropy, routing groups for an auxiliary loss.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossWeights(Vec<(&'static str, Weight)>);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Weight {
    Known(f64),
    /// The same, of a term that is a mean over it, which there is none of over nothing.
    Mean(f64),
    /// As much as the micro-batch has rows, which the engine knows.
    Rows,
}

impl Weight {
    fn of(self, rows: usize) -> f64 {
        match self {
            Self::Known(weight) | Self::Mean(weight) => weight,
            Self::Rows => rows as f64,
        }
    }
}

impl LossWeights {
    /// No weight yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the weight of a term, a finite number that is at least 0: a step with another is refused.
    #[must_use]
    pub fn with(mut self, name: &'static str, weight: f64) -> Self {
        self.0.push((name, Weight::Known(weight)));
        self
    }

    /// Adds the weight of a term that is a mean over it.
    pub(crate) fn with_mean(mut self, name: &'static str, weight: f64) -> Self {
        self.0.push((name, Weight::Mean(weight)));
        self
    }

    /// Why a micro-batch with these weights cannot be trained on, or evaluated.
    ///
    /// That of a stand-in counts for nothing, and may be guarded against being over nothing.
    pub(crate) fn refusal(&self, rows: usize, is_stand_in: bool) -> Option<String> {
        if is_stand_in {
            return None;
        }
        self.0.iter().find_map(|(name, weight)| match weight {
            Weight::Known(weight) | Weight::Mean(weight) if !(weight.is_finite() && *weight >= 0.0) => Some(format!(
                "the loss term `{name}` weighs {weight} in a micro-batch of {rows} rows; a weight counts what a sum is divided \
                 by: give a number that is at least 0"
            )),
            Weight::Mean(0.0) => Some(format!(
                "the loss is a mean over 0 of what `weighted_by` counts in a micro-batch of {rows} rows, and no number; give \
                 each micro-batch something that counts, with fewer micro-batches or replicas, or implement `Model` with a sum \
                 (`Loss::with`), which may be of nothing"
            )),
            _ => None,
        })
    }

    /// Adds a term that weighs as much as the micro-batch has rows.
    #[must_use]
    pub fn with_rows(mut self, name: &'static str) -> Self {
        self.0.push((name, Weight::Rows));
        self
    }

    /// The weight of a term of a micro-batch of so many rows.
    pub fn get(&self, name: &str, rows: usize) -> Option<f64> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, weight)| weight.of(rows))
    }

    /// The weights of a micro-batch of so many rows.
    pub(crate) fn of(self, rows: usize) -> TermWeights {
        TermWeights(self.0.into_iter().map(|(name, weight)| (name, weight.of(rows))).collect())
    }
}

/// The weight of every term, known.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TermWeights(pub Vec<(&'static str, f64)>);

impl TermWeights {
    /// The sums of two micro-batches' weights; an empty one takes the names of the other.
    ///
    /// # Errors
    ///
    /// When the batches name different terms, or name them in another order.
    pub fn plus(mut self, other: Self) -> Result<Self> {
        if self.0.is_empty() {
            return Ok(other);
        }
        if self.names() != other.names() {
            return Err(Error::invalid(format!(
                "the model's `weights` names {:?} for one batch and {:?} for another; name the same terms, in the \
                 same order, for every batch",
                self.names(),
                other.names()
            )));
        }
        self.0.iter_mut().zip(other.0).for_each(|((_, sum), (_, weight))| *sum += weight);
        Ok(self)
    }

    /// The weight of a term.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, weight)| *weight)
    }

    /// The names of the terms.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|(name, _)| *name).collect()
    }
}

/// What the value of a [`Term`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermKind {
    /// The sum over this rank's share of the batch.
    Sum,
    /// That sum divided by the weight of this rank's share.
    Mean,
}

/// One term of a loss.
#[derive(Clone, Debug)]
pub struct Term {
    /// The name that [`LossWeights`] knows it by.
    pub name: &'static str,
    /// What is summed over the ranks, or the mean of it. Shape `[1]`.
    pub value: Tensor<1>,
    /// Which of both.
    pub kind: TermKind,
    /// Its factor in the loss.
    pub coefficient: f64,
}

impl Term {
    /// What the value must be multiplied by to be a sum, if the share has this weight.
    pub(crate) fn to_sum(&self, weight: f64) -> f64 {
        match self.kind {
            TermKind::Sum => 1.0,
            TermKind::Mean => weight,
        }
    }
}

/// A loss of named terms: loss = Σ coefficient · Σ sum ÷ Σ weight, over all micro-batches and replicas.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::{Loss, LossWeights};
/// # fn loss(cross_entropy: Tensor<1>, balance: Tensor<1>) -> Loss {
/// // Two sums, over the tokens and over the sequences that this rank runs; ...
/// Loss::new().with("cross_entropy", cross_entropy, 1.0).with("balance", balance, 0.01)
/// # }
/// # fn weights(tokens: usize, sequences: usize) -> LossWeights {
/// // ... and how many these are, which `Model::weights` tells of a batch.
/// LossWeights::new().with("cross_entropy", tokens as f64).with("balance", sequences as f64)
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Loss {
    /// The terms.
    pub terms: Vec<Term>,
    /// What is differentiated already, in the place of the terms.
    pub(crate) differentiated: Option<Box<Differentiated>>,
}

/// A mean loss of which only the gradients are known.
#[derive(Debug)]
pub(crate) struct Differentiated {
    pub name: &'static str,
    pub gradients: GradientsParams,
    pub coefficient: f64,
}

impl Loss {
    /// No term yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a term that is a sum over the rows, tokens or groups of the batch.
    ///
    /// # Shapes
    ///
    /// - sum: `[1]`
    #[must_use]
    pub fn with(self, name: &'static str, sum: Tensor<1>, coefficient: f64) -> Self {
        self.and(Term { name, value: sum, kind: TermKind::Sum, coefficient })
    }

    /// Adds a term that is a mean over what its weight counts, as most loss functions give it. Of the means of uneven
    /// batches the weighted mean is taken.
    ///
    /// # Shapes
    ///
    /// - mean: `[1]`
    #[must_use]
    pub fn with_mean(self, name: &'static str, mean: Tensor<1>, coefficient: f64) -> Self {
        self.and(Term { name, value: mean, kind: TermKind::Mean, coefficient })
    }

    /// A mean over what the weight `name` counts that the model has differentiated itself, as a step of Burn's learner does: the
    /// gradients of its own parameters, as they are without a factor. A model of one segment may return it; its value is not
    /// known, so that reports tell none.
    #[must_use]
    pub fn of_gradients(name: &'static str, gradients: GradientsParams, coefficient: f64) -> Self {
        Self { terms: Vec::new(), differentiated: Some(Box::new(Differentiated { name, gradients, coefficient })) }
    }

    fn and(mut self, term: Term) -> Self {
        self.terms.push(term);
        self
    }

    /// Checks that every term has a weight, and that no mean is over nothing, unless nothing counts.
    pub(crate) fn check(&self, weights: &TermWeights, is_stand_in: bool) -> Result<()> {
        if let (Some(term), Some(given)) = (self.terms.first(), &self.differentiated) {
            return Err(Error::invalid(format!(
                "the loss has the gradients of `{}` (`Loss::of_gradients`) and a term `{}`, which would not be differentiated; \
                 differentiate both together",
                given.name, term.name
            )));
        }
        let is_empty = |term: &&Term| term.kind == TermKind::Mean && weights.get(term.name) == Some(0.0);
        if let (Some(term), false) = (self.terms.iter().find(is_empty), is_stand_in) {
            return Err(Error::invalid(format!(
                "the loss term `{}` is a mean over 0 of what its weight counts in a micro-batch that counts; return its \
                 sum with `Loss::with`, or give the micro-batch the numbers of its samples",
                term.name
            )));
        }
        if let Some(term) = self.terms.iter().find(|term| term.value.dims() != [1]) {
            return Err(Error::invalid(format!(
                "the loss term `{}` has {} elements, and a term is 1 number; return their sum",
                term.name,
                term.value.dims()[0]
            )));
        }
        let names = self.terms.iter().map(|term| term.name).chain(self.differentiated.as_ref().map(|given| given.name));
        match names.into_iter().find(|name| weights.get(name).is_none()) {
            Some(name) => Err(Error::invalid(format!(
                "the loss has a term `{name}`, and the model's `weights` names only {:?}; a term without a weight would \
                 not be trained",
                weights.names()
            ))),
            None => Ok(()),
        }
    }
}
