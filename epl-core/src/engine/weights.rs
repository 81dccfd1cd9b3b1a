//! The global divisor of every loss term, known before the first forward.
//!
//! The mean of means is wrong as soon as two micro-batches hold different numbers of tokens. So the weights, which
//! depend on the batch alone, are summed over all micro-batches and replicas first, and backward is seeded with
//! coefficient ÷ global weight: no gradient is divided afterwards.

use epl_comm::ReduceOp;

use super::micro_batch::MicroBatch;
use super::settings::GradientsReduce;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::segment::{Segmented, Weights};

/// The weights of all micro-batches of all replicas. Collective over the data axis.
pub(crate) fn global_weights<M: Segmented>(
    model: &M,
    micro_batches: &[MicroBatch<M::Batch>],
    context: &Context,
) -> Result<Weights> {
    if micro_batches.is_empty() {
        return Err(Error::invalid("a step without a micro-batch; give a replica without samples a stand-in"));
    }
    let mut total = Weights::new();
    for micro_batch in micro_batches {
        let mut weights = model.weights(&micro_batch.batch);
        if micro_batch.empty {
            weights.0.iter_mut().for_each(|(_, weight)| *weight = 0.0);
        }
        total = total.plus(weights)?;
    }
    let mut values: Vec<f64> = vec![micro_batches.len() as f64];
    values.extend(total.0.iter().map(|(_, sum)| sum));
    let data = context.data();
    let sums = if data.size() > 1 { data.all_reduce_values(&values, ReduceOp::Sum)? } else { values.clone() };
    if sums[0] != values[0] * data.size() as f64 {
        return Err(Error::invalid(format!(
            "this rank has {} micro-batches in this step, and the {} replicas together {}: every replica needs the \
             same number, with stand-ins where samples are missing",
            values[0],
            data.size(),
            sums[0]
        )));
    }
    total.0.iter_mut().zip(&sums[1..]).for_each(|((_, weight), sum)| *weight = *sum);
    Ok(total)
}

/// What the gradient of a term's sum is multiplied by.
pub(crate) fn seed(coefficient: f64, weight: f64, reduce: GradientsReduce) -> f64 {
    match reduce {
        GradientsReduce::Sum => coefficient,
        GradientsReduce::Mean if weight == 0.0 => 0.0,
        GradientsReduce::Mean => coefficient / weight,
    }
}
