//! Queries against the keys of all replicas.

use burn::tensor::{Int, Tensor, activation};
use epl_comm::{Error, unwind};
use epl_core::Context;

/// Smaller norms count as this, as in PyTorch's `normalize`; squared.
const LEAST_SQUARE: f64 = 1e-24;

/// The keys of all replicas, and where in them those of this rank's rows begin.
pub(super) struct Keys {
    all: Tensor<2>,
    first: usize,
}

/// The cross-entropy of each query's own key among all keys, summed over this rank's rows. Collective over the replicas.
///
/// # Shapes
///
/// - queries, keys: of each view `[rows, dim]`, in f32 at least; keys without a graph
/// - output: `[1]`
///
/// # Errors
///
/// Unwinds with an error when a micro-batch of training has one row on all replicas together, or a peer fails.
pub(super) fn contrast(
    queries: [Tensor<2>; 2],
    keys: [Tensor<2>; 2],
    (temperature, context): (f64, &Context),
) -> Tensor<1> {
    let [first_keys, second_keys] = gathered(keys.map(normalised), context);
    let [first, second] = queries.map(normalised);
    entropy(first, second_keys, temperature) + entropy(second, first_keys, temperature)
}

/// The rows, each of length 1.
fn normalised(rows: Tensor<2>) -> Tensor<2> {
    let norms = rows.clone().square().sum_dim(1).clamp_min(LEAST_SQUARE).sqrt();
    rows / norms
}

/// Of each view the keys of all replicas, in one call.
fn gathered(keys: [Tensor<2>; 2], context: &Context) -> [Keys; 2] {
    let (group, [rows, dim]) = (context.data(), keys[0].dims());
    let own = Tensor::cat(keys.to_vec(), 1);
    let count = if context.is_stand_in() { 0 } else { rows };
    let sizes = group.all_gather_counts(&[count as i64]).unwrap_or_else(|error| unwind(error));
    let sizes: Vec<usize> = sizes.into_iter().map(|counts| counts[0] as usize).collect();
    let total: usize = sizes.iter().sum();
    if total == 1 && context.is_training() {
        unwind(Error::invalid(
            "a micro-batch of 1 image on all replicas together: nothing is left of it behind a batch norm, and there is nothing to \
             tell it from; give each at least 2 (`train.global_batch_size`, `pipeline.num_micro_batch`)",
        ));
    }
    let all = group.all_gather_uneven(plain(own.clone()).slice([0..count]), 0, &sizes);
    let all = all.unwrap_or_else(|error| unwind(error));
    let all = if own.is_autodiff() { Tensor::from_inner(all) } else { all };
    // A stand-in is told from itself, too: its loss, which counts for nothing, is to be a number.
    let (all, first) = match context.is_stand_in() {
        true => (Tensor::cat(vec![all, own], 0), total),
        false => (all, sizes[..group.rank()].iter().sum()),
    };
    [0, 1].map(|view| Keys { all: all.clone().narrow(1, view * dim, dim), first })
}

fn plain(x: Tensor<2>) -> Tensor<2> {
    if x.is_autodiff() { x.inner() } else { x }
}

fn entropy(queries: Tensor<2>, keys: Keys, temperature: f64) -> Tensor<1> {
    let rows = queries.dims()[0];
    let own = keys.first as i64..(keys.first + rows) as i64;
    let own = Tensor::<1, Int>::arange(own, &queries.device()).reshape([rows, 1]);
    let logits = queries.matmul(keys.all.transpose()) / temperature;
    -activation::log_softmax(logits, 1).gather(1, own).sum()
}
