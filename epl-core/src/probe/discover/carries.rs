//! What enters each segment, from a batch that goes through a model whose parameters are numbers.

use burn::tensor::{Device, Tensor};
use epl_comm::catch;

use crate::error::Result;
use crate::model::carry::{Carry, CarryMapper};
use crate::model::context::{Context, Pass};
use crate::model::graph::Untrack;
use crate::model::loss::Loss;
use crate::model::precision::widen_carry;
use crate::model::segment::Model;
use crate::params::ParamRecord;
use crate::plan::Plan;
use crate::plan::split::emptied;
use crate::probe::measure::{Bench, filled};

/// What leaves each segment, in the model's own types.
pub(super) struct Carries<'a, C> {
    left: Vec<C>,
    context: &'a Context,
    device: &'a Device,
}

impl<'a, C: Carry> Carries<'a, C> {
    /// Runs the segments one after the other, of which one at a time has values. Collective where they are divided.
    pub fn of<M: Model<Carry = C>>(
        model: &M,
        plan: &Plan,
        (context, device): (&'a Context, &'a Device),
        batch: &M::Batch,
    ) -> Result<Self> {
        context.begin(Pass { step: 0, training: false, samples: [].into(), empty: false });
        // Layers tell nothing and move nothing.
        let _again = context.replaying();
        let bench = Bench { model, plan, context, device };
        let mut left = Vec::<C>::new();
        for segment in 0..plan.segments.len() {
            let exit = bench.untracked(segment, left.last().cloned(), batch);
            left.push(exit.map(&mut Untrack));
        }
        Ok(Self { left, context, device })
    }

    /// What enters a segment.
    pub fn entering(&self, segment: usize) -> Option<C> {
        self.left.get(segment.checked_sub(1)?).cloned()
    }

    /// Why the loss behind a segment does not let its parameters be cut, if it does not.
    pub fn loss_reads<M: Model<Carry = C>>(
        &self,
        segment: usize,
        model: &M,
        plan: &Plan,
        batch: &M::Batch,
    ) -> Option<String> {
        if segment + 1 < plan.segments.len() {
            return None;
        }
        let _again = self.context.replaying();
        // What is not trained could not be read behind it either.
        let records: Vec<ParamRecord> =
            plan.records().iter().map(|record| ParamRecord { trainable: true, ..record.clone() }).collect();
        let filled_model = filled(model.clone(), &records, segment, None);
        let without = emptied(filled_model.clone(), &records, segment);
        let bench = Bench { model, plan, context: self.context, device: self.device };
        let rows = first_extent(&self.left[segment]);
        let loss = |model: &M, training: bool| {
            let samples = (0..rows as u64).collect();
            self.context.begin(Pass { step: 0, training, samples, empty: false });
            self.context.enter(segment);
            let exit = widen_carry(self.left[segment].clone());
            catch(|| bench.holding(segment, || model.loss(exit, batch)))
        };
        [false, true].into_iter().find_map(|training| match loss(&filled_model, training) {
            Err(error) => Some(format!("the loss behind it does not run: {error}")),
            // Of its parameters alone there are gradients.
            Ok(whole) if whole.differentiated.is_some() || whole.terms.iter().any(|term| term.value.is_tracked()) => {
                Some(READS.to_string())
            }
            Ok(whole) => match numbers(&whole) {
                terms if !terms.iter().flat_map(|(_, term)| term).all(|number| number.is_finite()) => {
                    Some("the loss behind it is no number for this sample; give one for which it is".to_string())
                }
                // What it reads without a gradient.
                terms => match loss(&without, training) {
                    Ok(without) if numbers(&without) == terms => None,
                    _ if loss(&filled_model, training).is_ok_and(|again| numbers(&again) != terms) => {
                        Some(DRAWS.to_string())
                    }
                    _ => Some(READS.to_string()),
                },
            },
        })
    }
}

/// Why a last segment stays whole.
const READS: &str = "the loss behind it reads its parameters; make a segment of what the loss needs of them";

/// The same.
const DRAWS: &str =
    "the loss behind it draws other numbers each time, so what it reads is not seen; draw them in the batch";

/// The first dim of the first tensor: the rows, where there is one a sample.
fn first_extent<C: Carry>(carry: &C) -> usize {
    struct First(Option<usize>);
    impl CarryMapper for First {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.0.get_or_insert(tensor.dims().first().copied().unwrap_or(0));
            tensor
        }
    }
    let mut first = First(None);
    let _ = carry.clone().map(&mut first);
    first.0.unwrap_or(0)
}

/// The terms of a loss.
fn numbers(loss: &Loss) -> Vec<(&'static str, Vec<f64>)> {
    let terms = loss.terms.iter();
    terms.map(|term| (term.name, term.value.clone().into_data().iter::<f64>().collect())).collect()
}
