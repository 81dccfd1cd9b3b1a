//! What enters each segment, from a batch that goes through a model whose parameters are numbers.

use burn::tensor::Device;
use epl_comm::catch;

use crate::error::Result;
use crate::model::carry::Carry;
use crate::model::context::{Context, Pass};
use crate::model::graph::Untrack;
use crate::model::loss::Loss;
use crate::model::precision::widen_carry;
use crate::model::segment::Model;
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
        let whole = filled(model.clone(), plan.records(), segment, None);
        let without = emptied(whole.clone(), plan.records(), segment);
        let bench = Bench { model, plan, context: self.context, device: self.device };
        let loss = |model: &M| {
            let exit = widen_carry(self.left[segment].clone());
            catch(|| bench.holding(segment, || numbers(&model.loss(exit, batch))))
        };
        match (loss(&whole), loss(&without)) {
            (Ok(Some(whole)), Ok(Some(without))) if whole == without => None,
            (Err(error), _) => Some(format!("the loss behind it does not run: {error}")),
            _ => Some(
                "the loss behind it reads its parameters; make a segment of what the loss needs of them".to_string(),
            ),
        }
    }
}

/// The terms of a loss, to the bit; none where the model has differentiated it.
fn numbers(loss: &Loss) -> Option<Vec<(&'static str, Vec<u64>)>> {
    let bits = |value: f64| value.to_bits();
    loss.differentiated.is_none().then(|| {
        let terms = loss.terms.iter();
        terms.map(|term| (term.name, term.value.clone().into_data().iter::<f64>().map(bits).collect())).collect()
    })
}
