//! Scaled dot-product attention in host memory, head by head: the weights of all pairs lie in memory together for short sequences
//! alone, and their gradients for a bias that is learned.
//!
//! ```text
//!              keys
//!           ┌────────┐
//!           │        │
//!  queries  ├────────┤
//!           │ block  │ ── softmax, dropout ──> weights · values ──> rows of the output      all of it in a core's cache
//!           ├────────┤
//! ```
//!
//! Backward keeps what went in, and weighs each block again, as [FlashAttention](https://arxiv.org/abs/2205.14135) does; the weights
//! it keeps where they are no more bytes than what went in, as of short sequences. Other than there a block has whole rows, so its
//! softmax is made at once. Blocks of a causal call end at the last key that they see, and with a window begin at the first one.
//!
//! Heads of queries that share keys and values read the same ones; each has its gradient of them, and those are added up.
//!
//! A thread takes a head of a sequence, or, where there are few of them, a part of its queries; in backward, where sequences share
//! a bias, the same of some sequences, one after the other. How a call is cut depends on its sizes alone, and sums are made in one
//! order: the bits do not depend on the number of threads.
//!
//! `cut` says which keys a query sees, and how a call is cut into parts and blocks; `softmax` is that of a block, `call` what one
//! thread does; here is what all do together.

mod cut;
mod softmax;
mod call;

use core::ops::Range;

use burn::tensor::Tensor;
use epl_core::model::precision::cast;

use super::heads::{Gradients, Inputs};
use super::weighing::Weighing;
use crate::host::matrix::{Matrix, Output, interleaved};
use crate::host::unwritten::Unwritten;
use crate::host::{self, Owned, Real, View};
use call::{Call, PartTask, Views};
use cut::{Groups, Part};

/// See [`attend`](super::scaled_dot_product::attend).
///
/// Beside the output the weights, if there is a backward pass that has them: of each head the rows of its queries.
pub(super) fn forward<T: Real>(
    inputs: &Inputs,
    weighing: &Weighing,
    is_tracked: bool,
) -> (Tensor<4>, Option<Tensor<1>>) {
    let ([batch_size, heads, queries, keys], [_, width]) = (inputs.pairs(), inputs.widths());
    let (device, dtype) = (inputs.query.device(), inputs.query.dtype());
    let views = Views::<T>::new(inputs, weighing);
    let call = Call::new([batch_size, heads, queries, keys], inputs.shared(), &views, weighing);
    call.count_work([1, 1]);
    let (shape, parts) = ([batch_size, queries, heads, width], call.cut.parts());
    let mut output = Unwritten::<T>::new(shape.into_iter().product());
    let count = batch_size * heads * queries * keys;
    let keeps = is_tracked && keeps_weights::<T>(inputs, weighing);
    let mut kept = keeps.then(|| Unwritten::<T>::new(count));
    let mut room = kept.as_mut().map(Unwritten::memory);
    let mut tasks = Vec::new();
    for (head, output) in interleaved(output.memory(), shape).into_iter().enumerate() {
        for (queries, rows) in parts.iter().zip(split_rows(output, &parts)) {
            let room = split_off(&mut room, queries.len() * keys);
            tasks.push((Part { head, queries: queries.clone() }, rows, room));
        }
    }
    host::each(call.is_worth_it(), tasks, |(part, rows, room)| call.forward(&part, rows, room));
    // SAFETY: the parts are all rows of all heads, and have written them.
    let (output, kept) = unsafe { (output.written(), kept.map(|kept| kept.written())) };
    let output = cast(host::tensor(output, shape, &device), dtype).swap_dims(1, 2);
    (output, kept.map(|kept| host::tensor(kept, [count], &device)))
}

/// Whether backward has the weights of forward: where they are no more bytes than queries, keys and values, which it has anyway.
fn keeps_weights<T: Real>(inputs: &Inputs, weighing: &Weighing) -> bool {
    let pairs: usize = inputs.pairs().into_iter().product();
    let of_inputs = [&inputs.query, &inputs.key, &inputs.value].map(|x| x.shape().num_elements() * x.dtype().size());
    // Of a softcap backward needs the derivatives, too.
    weighing.softcap.is_none() && pairs * size_of::<T>() <= of_inputs.into_iter().sum()
}

/// The next so many elements of some memory, if there is any.
fn split_off<'a, T>(rest: &mut Option<&'a mut [T]>, count: usize) -> Option<&'a mut [T]> {
    let (own, others) = rest.take()?.split_at_mut(count);
    *rest = Some(others);
    Some(own)
}

/// The gradients of all inputs, that of the bias if it is asked for.
pub(super) fn backward<T: Real>(
    inputs: &Inputs,
    (weighing, kept): (&Weighing, Option<Tensor<1>>),
    grad: Tensor<4>,
    asks_bias: bool,
) -> Gradients {
    let ([batch_size, heads, queries, keys], [depth, width]) = (inputs.pairs(), inputs.widths());
    let (device, dtype) = (grad.device(), inputs.query.dtype());
    let bias = inputs.bias.as_ref().filter(|_| asks_bias);
    if inputs.pairs().contains(&0) {
        return inputs.zeros(asks_bias);
    }
    let views = Views::<T>::new(inputs, weighing);
    let grad = View::<T>::of_matrices(cast(grad, T::dtype()));
    let grads: Vec<Matrix<T>> = grad.matrices().collect();
    let call = Call::new([batch_size, heads, queries, keys], inputs.shared(), &views, weighing);
    call.count_work([if kept.is_some() { 2 } else { 3 }, 2]);
    let mut kept = kept.map(Owned::<T>::take);
    let parts = call.cut.parts();

    // Of each part the gradients of all keys and values, and of each group of sequences that of their bias.
    let shape = |rows, width| [batch_size, rows, heads, width];
    let [of_query, of_key, of_value] = [shape(queries, depth), shape(keys, depth), shape(keys, width)];
    let of_parts = |[batch_size, rows, heads, width]: [usize; 4]| [parts.len() * batch_size, rows, heads, width];
    let counts = [of_query, of_parts(of_key), of_parts(of_value)].map(|shape| shape.into_iter().product());
    let mut values = counts.map(Unwritten::<T>::new);
    let [query, key, value] = values.each_mut().map(Unwritten::memory);
    let outputs = Outputs {
        query: interleaved(query, of_query).into_iter().map(|rows| split_rows(rows, &parts)).collect(),
        key: interleaved(key, of_parts(of_key)),
        value: interleaved(value, of_parts(of_value)),
        weights: kept.as_mut().map(Owned::slice_mut),
    };
    let groups = match bias {
        Some(_) => Groups::new(batch_size, inputs.biased(), heads * parts.len()),
        None => Groups { biases: batch_size, size: 1 },
    };
    let mut of_bias = vec![T::ZERO; if bias.is_some() { groups.count(batch_size) * heads * queries * keys } else { 0 }];
    let tasks = tasks(&call, &parts, groups, outputs, &mut of_bias);
    host::each(call.is_worth_it(), tasks, |(tasks, mut of_bias)| {
        for task in tasks {
            let grad = grads[task.part.head];
            call.backward(task, grad, of_bias.as_deref_mut());
        }
    });

    // SAFETY: the parts are all queries of all heads; each has written its rows, and those of all keys and values.
    let [query, key, value] = values.map(|values| unsafe { values.written() });
    let tensor = |values, shape| cast(host::tensor(values, shape, &device), dtype).swap_dims(1, 2);
    let summed = |values: Vec<T>, shape: [usize; 4]| {
        let values = match parts.len() {
            1 => values,
            _ => host::sum_blocks(&values, shape.into_iter().product()),
        };
        let (shared, [batch_size, rows, heads, width]) = (inputs.shared(), shape);
        tensor(host::sum_neighbours(values, shared, width), [batch_size, rows, heads / shared, width])
    };
    let bias = bias.map(|bias| {
        let (shape, count) = (bias.dims(), bias.shape().num_elements());
        let values = if of_bias.len() > count { host::sum_blocks(&of_bias, count) } else { of_bias };
        cast(host::tensor(values, shape, &device), bias.dtype())
    });
    Gradients { query: tensor(query, of_query), key: summed(key, of_key), value: summed(value, of_value), bias }
}

/// What one thread does after the other: a part of a head in each sequence of a group, with the rows of the group's gradient of
/// the bias that are the part's.
type GroupTask<'a, T> = (Vec<PartTask<'a, T>>, Option<&'a mut [T]>);

/// Where the gradients of queries go, by head and part; those of keys, and of values, by part and head; and the weights that are kept.
struct Outputs<'a, T> {
    query: Vec<Vec<Output<'a, T>>>,
    key: Vec<Output<'a, T>>,
    value: Vec<Output<'a, T>>,
    weights: Option<&'a mut [T]>,
}

/// All tasks.
fn tasks<'a, T: Real>(
    call: &Call<'_, T>,
    parts: &[Range<usize>],
    groups: Groups,
    outputs: Outputs<'a, T>,
    of_bias: &'a mut [T],
) -> Vec<GroupTask<'a, T>> {
    let [batch_size, heads, _, keys] = call.cut.shape;
    let (count, mut of_bias) = (groups.count(batch_size) * heads, (!of_bias.is_empty()).then_some(of_bias));
    let mut tasks: Vec<GroupTask<'a, T>> = Vec::new();
    for _ in 0..count {
        for queries in parts {
            tasks.push((Vec::new(), split_off(&mut of_bias, queries.len() * keys)));
        }
    }
    let by_head = |outputs: Vec<Output<'a, T>>| {
        let mut outputs: Vec<_> = outputs.into_iter().map(Some).collect();
        move |part: usize, head: usize| outputs[part * batch_size * heads + head].take().expect("one for each part")
    };
    let (mut key, mut value, mut weights) = (by_head(outputs.key), by_head(outputs.value), outputs.weights);
    for (head, rows) in outputs.query.into_iter().enumerate() {
        let (sequence, of_sequence) = (head / heads, head % heads);
        for (index, (queries, query)) in parts.iter().zip(rows).enumerate() {
            let part = Part { head, queries: queries.clone() };
            let weights = split_off(&mut weights, queries.len() * keys);
            let task = PartTask { part, query, key: key(index, head), value: value(index, head), weights };
            tasks[(groups.of(sequence) * heads + of_sequence) * parts.len() + index].0.push(task);
        }
    }
    tasks
}

/// The rows of each part.
fn split_rows<'a, T>(output: Output<'a, T>, parts: &[Range<usize>]) -> Vec<Output<'a, T>> {
    let mut rest = Some(output);
    let of = |queries: &Range<usize>| {
        let [own, others] = rest.take()?.split(0, queries.len());
        rest = Some(others);
        Some(own)
    };
    parts.iter().filter_map(of).collect()
}
