//! What a step tells, the same on every rank.

use std::collections::BTreeMap;

use burn::tensor::Tensor;
use epl_comm::{ProcessGroup, ReduceOp};

use super::batches::Given;
use super::norm::Squares;
use super::weights;
use crate::config::ReduceMethod;
use crate::error::{Error, Result};
use crate::model::context::{Context, NanCauses};
use crate::model::loss::{Loss, TermWeights};
use crate::model::output::{self, Outputs, Over};
use crate::topology::cluster::Axis;

/// What one step did; the same on every rank, but for local outputs.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// The loss: Σ coefficient · Σ sum ÷ Σ weight.
    pub loss: f64,
    /// Every term, divided by its weight, without its coefficient.
    pub terms: Vec<(String, f64)>,
    /// The global norm of the gradients, before clipping. Where each replica clips its own
    /// (`communication.clip_after_allreduce = false`): the mean of the norms of their own gradients.
    pub grad_norm: f64,
    /// The global weight of every term, such as the number of tokens.
    pub weights: Vec<(String, f64)>,
    /// The layers' metrics, summed over micro-batches and replicas.
    pub metrics: BTreeMap<String, Vec<f64>>,
    /// What the model handed out, merged; the local ones are those of this rank's replica.
    pub outputs: Outputs,
    /// What the loss was multiplied by for backward, under mixed precision.
    pub loss_scale: Option<f64>,
    /// The floating-point operations of the step's products, over all replicas: those of forward, and twice as many of backward;
    /// what is run again does not count, and what replicas without samples run (the FLOPs of
    /// [MFU](https://arxiv.org/abs/2204.02311)). Attention counts all pairs of
    /// queries and keys, also those that a causal mask hides. None where it is not known how a parameter is used: see
    /// [`Context::count_flops`](crate::Context::count_flops).
    pub flops: Option<f64>,
    /// Whether nothing was updated, because a gradient was not finite under mixed precision.
    pub skipped: bool,
}

impl StepReport {
    /// How many tokens the step had, over all ranks: the weight of the loss term of this name; if there is no such term, of the
    /// first one.
    pub fn tokens(&self, term: &str) -> f64 {
        let named = self.weights.iter().find(|(name, _)| name == term);
        named.or(self.weights.first()).map_or(0.0, |(_, weight)| *weight)
    }
}

/// What an evaluation found; the same on every rank, but for local outputs.
#[derive(Clone, Debug, PartialEq)]
pub struct EvalReport {
    /// The loss over all batches of all replicas.
    pub loss: f64,
    /// Every term, divided by its weight, without its coefficient.
    pub terms: Vec<(String, f64)>,
    /// The global weight of every term.
    pub weights: Vec<(String, f64)>,
    /// What the model handed out, merged over all batches.
    pub outputs: Outputs,
}

/// What a rank counts beside its loss.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counted {
    /// Of the gradients that it owns.
    pub squares: f64,
    /// How many trained parameters have no gradient.
    pub without: usize,
    /// Of its micro-batches; none where they are not known.
    pub flops: Option<f64>,
}

/// The sums of the loss terms on this rank.
#[derive(Default)]
pub(crate) struct TermSums {
    /// Names, coefficients and sums.
    terms: Vec<(&'static str, f64, f64)>,
    noted: Vec<Noted>,
}

/// The terms of a micro-batch, which are still to be read; of a stand-in none.
struct Noted {
    /// Each of one element.
    values: Vec<Tensor<1>>,
    /// What each is multiplied by, to be a sum.
    to_sums: Vec<f64>,
    causes: NanCauses,
}

impl TermSums {
    /// Notes the terms of one micro-batch; `own` are its weights.
    ///
    /// # Errors
    ///
    /// When the model names other terms than for the micro-batch before.
    pub fn add(&mut self, loss: Loss, causes: NanCauses, own: &TermWeights, empty: bool) -> Result<()> {
        if self.terms.is_empty() {
            self.terms.extend(loss.terms.iter().map(|term| (term.name, term.coefficient, 0.0)));
        }
        let (known, given): (Vec<_>, Vec<_>) =
            (self.terms.iter().map(|term| term.0).collect(), loss.terms.iter().map(|term| term.name).collect());
        if known != given {
            return Err(Error::invalid(format!(
                "the loss has the terms {known:?} for one micro-batch and {given:?} for another; return the same \
                 terms for every batch"
            )));
        }
        // The terms of a stand-in count for nothing.
        let terms = if empty { Vec::new() } else { loss.terms };
        let to_sums = terms.iter().map(|term| term.to_sum(own.get(term.name).unwrap_or(0.0))).collect();
        let values = terms.into_iter().map(|term| term.value.inner()).collect();
        self.noted.push(Noted { values, to_sums, causes: if empty { NanCauses::default() } else { causes } });
        Ok(())
    }

    /// Reads what is noted here, of metrics and of outputs, and a sum of squares with it: all wait for the device once. Returns
    /// that sum, and the numbers of those noted micro-batches whose terms are not all finite.
    ///
    /// # Errors
    ///
    /// When a term is NaN and one of its micro-batch's causes is found.
    pub fn settle(&mut self, squares: Squares, context: &Context) -> Result<(f64, Vec<usize>)> {
        let mut values: Vec<_> = self.noted.iter_mut().flat_map(|noted| core::mem::take(&mut noted.values)).collect();
        let count = values.len();
        let metrics = context.take_noted_metrics();
        values.extend(metrics.values().cloned());
        let (squared, mut values, outputs) = squares.read_with(values, context.noted_outputs(), context);
        context.settle_metrics(metrics, values.split_off(count));
        context.settle_outputs(outputs);
        let (mut values, mut not_finite) = (values.into_iter(), Vec::new());
        for (number, Noted { to_sums, causes, .. }) in self.noted.drain(..).enumerate() {
            let (mut is_nan, mut is_finite) = (false, true);
            for ((.., sum), (to_sum, value)) in self.terms.iter_mut().zip(to_sums.into_iter().zip(&mut values)) {
                is_nan |= value.is_nan();
                is_finite &= value.is_finite();
                *sum += value * to_sum;
            }
            if let Some(cause) = is_nan.then(|| causes.find()).flatten() {
                return Err(Error::invalid(cause));
            }
            if !is_finite {
                not_finite.push(number);
            }
        }
        Ok((squared, not_finite))
    }

    /// Σ coefficient · sum ÷ weight, and the terms one by one.
    fn divided(&self, weights: &TermWeights) -> (f64, Vec<(String, f64)>) {
        let mut loss = 0.0;
        let mut terms = Vec::new();
        for (name, coefficient, sum) in &self.terms {
            let mean = sum * weights::seed(1.0, 1.0, weights.get(name).unwrap_or(0.0), ReduceMethod::Mean);
            loss += coefficient * mean;
            terms.push(((*name).to_string(), mean));
        }
        (loss, terms)
    }

    /// Tells the stages that know no loss which terms it has, with which coefficients. Of the ranks that know it,
    /// `tells` is true of one. Collective over the stages.
    fn share(&mut self, weights: &TermWeights, stages: &ProcessGroup, tells: bool) -> Result<()> {
        let known = |name: &str| self.terms.iter().find(|term| term.0 == name).filter(|_| tells);
        let own = |(name, _): &(&'static str, f64)| known(name).map(|term| term.1);
        let told = weights.0.iter().map(own).flat_map(|coefficient| match coefficient {
            Some(coefficient) => [1.0, coefficient],
            None => [0.0, 0.0],
        });
        let told = stages.all_reduce_values(&told.collect::<Vec<_>>(), ReduceOp::Sum)?;
        if self.terms.is_empty() {
            let terms = weights.0.iter().zip(told.chunks(2)).filter(|(_, told)| told[0] > 0.0);
            self.terms = terms.map(|((name, _), told)| (*name, told[1], 0.0)).collect();
        }
        Ok(())
    }

    /// Sums over the world what each rank counts: `norm` of the parameters it owns; those that have no gradient; its operations,
    /// terms and metrics if it is the first of its tensor group, whose ranks all hold the same. Collective. Returns, too, whether
    /// any rank is without a gradient.
    ///
    /// # Errors
    ///
    /// When ranks were not `given` the same where they must be.
    pub fn reduce(
        mut self,
        counted: Counted,
        weights: &TermWeights,
        given: &Given,
        context: &Context,
    ) -> Result<(StepReport, bool)> {
        let stages = context.axis(Axis::Pipeline);
        if stages.size() > 1 {
            let width = &context.mesh().widths()[context.coordinate().pipeline];
            self.share(weights, stages, width.members.start == stages.rank())?;
        }
        self.terms.sort_by_key(|(name, ..)| weights.0.iter().position(|(other, _)| other == name));
        let mut metrics = context.take_metrics();
        let first = context.coordinate().along(Axis::Tensor) == 0;
        let share = if first { 1.0 } else { 0.0 };
        let mut values = given.over_all().to_vec();
        let compared = values.len();
        values.extend([counted.squares, counted.without as f64, counted.flops.unwrap_or(f64::NAN) * share]);
        values.extend(self.terms.iter().map(|(_, _, sum)| sum * share));
        values.extend(metrics.values().flatten().map(|value| value * share));
        let world = context.world();
        let sums = if world.size() > 1 { world.all_reduce_values(&values, ReduceOp::Sum)? } else { values };
        given.check(&sums[..compared], world, context)?;
        let mut sums = sums.into_iter().skip(compared);
        let mut next = || sums.next().unwrap_or(0.0);
        let (grad_norm, is_without, flops) = (next().sqrt(), next() > 0.0, next());
        let flops = (!flops.is_nan()).then_some(flops);
        self.terms.iter_mut().for_each(|(_, _, sum)| *sum = next());
        metrics.values_mut().flatten().for_each(|value| *value = next());
        let outputs = merged(context)?;
        let (loss, terms) = self.divided(weights);
        let weights = weights.0.iter().map(|(name, weight)| ((*name).to_string(), *weight)).collect();
        let report =
            StepReport { loss, terms, grad_norm, weights, metrics, outputs, loss_scale: None, flops, skipped: false };
        Ok((report, is_without))
    }
}

/// What the model handed out. Collective.
fn merged(context: &Context) -> Result<Outputs> {
    let (stages, taken) = (context.axis(Axis::Pipeline), context.take_outputs());
    match context.mesh().is_bridged() {
        false => output::merge(taken, &Over { replica: &[stages], all: &[stages, context.data()], is_copy: false }),
        // All devices of a replica have parts of its values; those that run the same rows, the same.
        true => {
            let is_copy = context.coordinate().tensor > 0;
            output::merge(taken, &Over { replica: &[stages], all: &[context.world()], is_copy })
        }
    }
}
