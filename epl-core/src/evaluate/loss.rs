//! The mean of a loss term over a validation set, and its perplexity.

use super::evaluator::Evaluator;
use super::measure::{Measure, Values, mean};
use crate::data::ValidData;
use crate::engine::MicroBatch;
use crate::error::{Error, Result};
use crate::model::loss::Term;
use crate::model::segment::Model;

/// The terms of a loss over some samples: their sums and weights, on the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossTerms(Vec<(&'static str, f64, f64)>);

impl LossTerms {
    /// Of what left the last segment of a model: see [`Evaluator::of_loss`](super::Evaluator::of_loss).
    ///
    /// # Errors
    ///
    /// When a term has no weight.
    pub fn of<M: Model>(model: &M, carry: M::Carry, micro_batch: &MicroBatch<M::Batch>) -> Result<Self> {
        let batch = &micro_batch.batch;
        let weights = model.weights(batch).of(micro_batch.samples.len());
        let loss = model.loss(carry, batch);
        loss.check(&weights, micro_batch.empty)?;
        let term = |term: Term| {
            let weight = weights.get(term.name).unwrap_or(0.0);
            let to_sum = term.to_sum(weight);
            (term.name, term.value.into_data().iter::<f64>().sum::<f64>() * to_sum, weight)
        };
        Ok(Self(loss.terms.into_iter().map(term).collect()))
    }

    /// The sum and the weight of a term.
    ///
    /// # Errors
    ///
    /// When the loss has no such term: its name and those that there are.
    pub fn get(&self, name: &str) -> Result<(f64, f64)> {
        let found = self.0.iter().find(|(known, _, _)| *known == name);
        found.map(|(_, sum, weight)| (*sum, *weight)).ok_or_else(|| {
            let names: Vec<&str> = self.0.iter().map(|(name, _, _)| *name).collect();
            Error::invalid(format!("a loss of the terms {names:?} has no term `{name}`; name one of these"))
        })
    }
}

impl<'a, M: Model + 'a> Evaluator<'a, M, LossTerms>
where
    M::Batch: 'static,
{
    /// A pass over `data` whose outputs are the terms of the model's loss.
    pub fn of_loss<I: 'static>(data: ValidData<I, M::Batch>) -> Self {
        Self::over(data, LossTerms::of)
    }
}

/// Σ sum ÷ Σ weight of one term, such as the cross-entropy of a token.
#[derive(Clone, Debug)]
pub struct MeanLoss {
    name: String,
    term: String,
}

impl MeanLoss {
    /// Of this term, under its name.
    pub fn of(term: &str) -> Self {
        Self { name: term.to_string(), term: term.to_string() }
    }

    /// Calls the value something else.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.to_string();
        self
    }
}

impl Measure<LossTerms> for MeanLoss {
    fn sums(&self) -> usize {
        2
    }

    fn add(&self, output: &LossTerms, sums: &mut [f64]) -> Result<()> {
        let (sum, weight) = output.get(&self.term)?;
        sums[0] += sum;
        sums[1] += weight;
        Ok(())
    }

    fn values(&self, sums: &[f64]) -> Result<Values> {
        Ok(vec![(self.name.clone(), mean(&self.name, sums[0], sums[1], "of what weighs the term")?)])
    }
}

/// exp of the mean of one term: how many tokens the model hesitates between.
#[derive(Clone, Debug)]
pub struct Perplexity(MeanLoss);

impl Perplexity {
    /// Of this term, the cross-entropy in nats: `perplexity`.
    pub fn of(term: &str) -> Self {
        Self(MeanLoss::of(term).named("perplexity"))
    }

    /// Calls the value something else.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self(self.0.named(name))
    }
}

impl Measure<LossTerms> for Perplexity {
    fn sums(&self) -> usize {
        self.0.sums()
    }

    fn add(&self, output: &LossTerms, sums: &mut [f64]) -> Result<()> {
        self.0.add(output, sums)
    }

    fn values(&self, sums: &[f64]) -> Result<Values> {
        let values = self.0.values(sums)?;
        Ok(values.into_iter().map(|(name, value)| (name, value.exp())).collect())
    }
}
