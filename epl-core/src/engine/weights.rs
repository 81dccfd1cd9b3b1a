//! The global divisor of every loss term, known before the first forward.
//!
//! The mean of means is wrong as soon as two micro-batches hold different numbers of tokens. So the weights, which
//! depend on the batch alone, are summed over all micro-batches and replicas first, and backward is seeded with
//! coefficient ÷ global weight: no gradient is divided afterwards.

use epl_comm::{ProcessGroup, ReduceOp};

use super::batches::Given;
use super::micro_batch::MicroBatch;
use crate::config::ReduceMethod;
use crate::error::{Error, Result};
use crate::model::context::Context;
use crate::model::loss::TermWeights;
use crate::model::segment::Model;
use crate::simulate::protocol::{BEFORE_SAMPLES, OVER_REPLICAS};
use crate::stable_hash::stable_hash;

/// The weights of one micro-batch on this rank, a stand-in's zero; and why there are none, where one is no number or a mean would
/// be over nothing.
pub(crate) fn weights_of<M: Model>(model: &M, micro_batch: &MicroBatch<M::Batch>) -> (TermWeights, Option<String>) {
    let (weights, rows) = (model.weights(&micro_batch.batch), micro_batch.samples.len());
    let refusal = weights.refusal(rows, micro_batch.empty);
    let mut weights = weights.of(rows);
    if micro_batch.empty {
        weights.0.iter_mut().for_each(|(_, weight)| *weight = 0.0);
    }
    (weights, refusal)
}

/// Compares the micro-batches of the stages: each runs the same, whatever it does with them. Collective over them.
///
/// # Errors
///
/// When they are not the same number of the same samples.
pub(crate) fn check_stages<B>(micro_batches: &[MicroBatch<B>], stages: &ProcessGroup) -> Result<()> {
    if stages.size() == 1 {
        return Ok(());
    }
    let samples = |micro_batch: &MicroBatch<B>| stable_hash(&(&*micro_batch.samples, u64::from(micro_batch.empty)));
    let all: Vec<u64> = micro_batches.iter().map(samples).collect();
    let told = stages.all_gather_counts(&[micro_batches.len() as i64, stable_hash(&all[..]).cast_signed()])?;
    let Some(other) = told.iter().position(|other| *other != told[0]) else { return Ok(()) };
    let (first, other_count) = (told[0][0], told[other][0]);
    let what = match first == other_count {
        true => format!("{first} micro-batches of other samples than stage {other}"),
        false => format!("{first} micro-batches, and stage {other} {other_count}"),
    };
    Err(Error::invalid(format!(
        "stage 0 has {what}; give all stages of a replica the same micro-batches: divide the samples by \
         `BatchShard::of`, not by the rank in the world"
    )))
}

/// The weights of each micro-batch of a step, and of all of them together of all replicas. Collective over the data axis.
///
/// # Errors
///
/// When a replica has weights that are none, on all replicas; when they have different numbers of micro-batches.
pub(crate) fn global_weights<M: Model>(
    model: &M,
    micro_batches: &[MicroBatch<M::Batch>],
    given: &mut Given,
    context: &Context,
) -> Result<(Vec<TermWeights>, TermWeights)> {
    if micro_batches.is_empty() {
        return Err(Error::invalid("a step without a micro-batch; give a replica without samples a stand-in"));
    }
    given.add(micro_batches);
    let (mut total, mut own, mut refusal) = (TermWeights::default(), Vec::with_capacity(micro_batches.len()), None);
    for micro_batch in micro_batches {
        let (weights, refused) = weights_of(model, micro_batch);
        total = total.plus(weights.clone())?;
        own.push(weights);
        refusal = refusal.or(refused);
    }
    Ok((own, sum_over_replicas(total, (micro_batches.len(), refusal), given, context)?))
}

/// The weights of this rank's micro-batches, of which there are so many, summed over all replicas, as what tells their samples
/// from others. Collective over the data axis.
///
/// # Errors
///
/// When the replicas have different numbers of micro-batches, or one of them refuses its weights.
pub(crate) fn sum_over_replicas(
    mut total: TermWeights,
    (micro_batches, refusal): (usize, Option<String>),
    given: &mut Given,
    context: &Context,
) -> Result<TermWeights> {
    let mut values: Vec<f64> = vec![micro_batches as f64, f64::from(u8::from(refusal.is_some()))];
    values.extend(given.over_replicas());
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
    if sums[1] > 0.0 {
        let others = "another replica has a micro-batch whose weights are refused, as its error says".to_string();
        return Err(Error::invalid(refusal.unwrap_or(others)));
    }
    let (samples, sums) = sums[BEFORE_SAMPLES..].split_at(OVER_REPLICAS);
    given.summed(samples);
    total.0.iter_mut().zip(sums).for_each(|((_, weight), sum)| *weight = *sum);
    Ok(total)
}

/// What the gradient of a term's value is multiplied by; `to_sum` is what the value itself must be multiplied by to be
/// a sum.
pub(crate) fn seed(coefficient: f64, to_sum: f64, weight: f64, reduce: ReduceMethod) -> f64 {
    match reduce {
        ReduceMethod::Sum => coefficient * to_sum,
        ReduceMethod::Mean if weight == 0.0 => 0.0,
        ReduceMethod::Mean => coefficient * to_sum / weight,
    }
}
