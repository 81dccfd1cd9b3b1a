//! Scaled dot-product attention in host memory, head by head: the weights of all pairs never lie in memory together, nor do
//! their gradients, but for those of a bias that is learned.
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
//! Backward keeps what went in, and weighs each block again, as [FlashAttention](https://arxiv.org/abs/2205.14135) does. Other
//! than there a block has whole rows, so its softmax is made at once. Blocks of a causal call end at the last key that they see.
//!
//! Heads of queries that share keys and values read the same ones; each has its gradient of them, and those are added up.
//!
//! A thread takes a head of a sequence, or, where there are few of them, a part of its queries; in backward, where sequences share
//! a bias, the same of some sequences, one after the other. How a call is cut depends on its sizes alone, and sums are made in one
//! order: the bits do not depend on the number of threads.

use core::ops::Range;

use burn::tensor::{Bool, Tensor};
use epl_comm::count_work;
use epl_core::model::precision::cast;
use multiversion::multiversion;

use super::heads::{Gradients, Inputs};
use super::weighing::Weighing;
use crate::dropout::Mask;
use crate::host::product::{Matrix, Output, WORTH_A_THREAD, interleaved, product, transpose_into};
use crate::host::unwritten::Unwritten;
use crate::host::{self, Real, View, map_sum, max_of, sum_of};

/// The weights of a block: those in f32 and their gradients take half of a core's second cache.
const BLOCK: usize = 1 << 16;
/// The queries of a block, at least, whatever the keys: with fewer its products do not pay.
const LEAST_QUERIES: usize = 32;
/// The queries of a block of a causal call, at most: each computes half as many keys as it has queries in vain.
const CAUSAL_QUERIES: usize = 64;
/// From so many queries on a part transposes the keys of its head once, for all of them; in backward the values, too. A head's
/// keys are in the core's cache, so that pays with fewer rows than where a whole weight is transposed.
const TRANSPOSED_FROM: usize = 4;
/// Heads are cut into parts so that there are about so many tasks at least, and sequences that share a bias into so many groups
/// at most.
const TASKS: usize = 8;

/// The tensors of a call.
struct Views<T> {
    query: View<T>,
    key: View<T>,
    value: View<T>,
    /// `[biases, heads, queries, keys]`, begun anew after so many sequences
    bias: Option<View<T>>,
    /// 0 or -∞, `[batch_size, keys]`
    padding: Option<Vec<T>>,
}

impl<T: Real> Views<T> {
    fn new(inputs: &Inputs, weighing: &Weighing) -> Self {
        let of = |x: &Tensor<4>| View::<T>::of_matrices(cast(x.clone(), T::dtype()));
        Self {
            query: of(&inputs.query),
            key: of(&inputs.key),
            value: of(&inputs.value),
            bias: inputs.bias.as_ref().map(|bias| View::new(cast(bias.clone(), T::dtype()))),
            padding: weighing.padding.clone().map(additive::<T>),
        }
    }
}

/// 0 where a key is seen, -∞ where it is padding.
fn additive<T: Real>(padding: Tensor<2, Bool>) -> Vec<T> {
    padding.into_data().iter::<bool>().map(|hidden| if hidden { T::NEG_INFINITY } else { T::ZERO }).collect()
}

/// A call, as its heads see it.
struct Call<'a, T> {
    /// `[batch_size, heads, queries, keys]`
    shape: [usize; 4],
    scale: T,
    causal: bool,
    bias: Option<&'a [T]>,
    padding: Option<&'a [T]>,
    dropout: Option<&'a Mask>,
    /// Of each head of each sequence; of keys and values those that it shares.
    query: Vec<Matrix<'a, T>>,
    key: Vec<Matrix<'a, T>>,
    value: Vec<Matrix<'a, T>>,
}

/// Some queries of a head, and the keys that the last of them sees.
#[derive(Clone, Copy)]
struct Block {
    /// The number of the head among those of all sequences.
    head: usize,
    first: usize,
    queries: usize,
    seen: usize,
}

/// Some queries of a head: whole blocks.
#[derive(Clone)]
struct Part {
    head: usize,
    queries: Range<usize>,
}

impl<'a, T: Real> Call<'a, T> {
    fn new(shape: [usize; 4], shared: usize, views: &'a Views<T>, weighing: &'a Weighing) -> Self {
        let of_each = |view: &'a View<T>| view.matrices().flat_map(|head| core::iter::repeat_n(head, shared)).collect();
        Self {
            shape,
            scale: T::of(weighing.scale),
            causal: weighing.causal,
            bias: views.bias.as_ref().map(View::slice),
            padding: views.padding.as_deref(),
            dropout: weighing.dropout.as_ref(),
            query: views.query.matrices().collect(),
            key: of_each(&views.key),
            value: of_each(&views.value),
        }
    }

    /// Whether the heads are worth more than one thread.
    fn is_worth_it(&self) -> bool {
        let [batch_size, heads, queries, keys] = self.shape;
        let width = self.value.first().map_or(0, |value| value.sizes()[1]);
        batch_size * heads * queries * keys * width >= 2 * WORTH_A_THREAD
    }

    /// Tells of so many products of all pairs with rows of the keys' width, and of the values'; keys that a causal mask hides are
    /// none.
    fn count_work(&self, [of_keys, of_values]: [usize; 2]) {
        count_work(|| {
            let [batch_size, heads, queries, _] = self.shape;
            let seen: usize = (0..queries).map(|query| self.seen(query)).sum();
            let width = |matrices: &[Matrix<T>]| matrices.first().map_or(0, |matrix| matrix.sizes()[1]);
            let widths = of_keys * width(&self.key) + of_values * width(&self.value);
            2.0 * (batch_size * heads * seen * widths) as f64
        });
    }

    /// How many keys a query sees.
    #[inline(always)]
    fn seen(&self, query: usize) -> usize {
        let [.., queries, keys] = self.shape;
        if self.causal { (query + 1 + keys).saturating_sub(queries).min(keys) } else { keys }
    }

    /// The queries of a block.
    fn block_size(&self) -> usize {
        let most = (BLOCK / self.shape[3].max(1)).max(LEAST_QUERIES);
        if self.causal { most.min(CAUSAL_QUERIES) } else { most }
    }

    /// The queries of each part of a head.
    fn parts(&self) -> Vec<Range<usize>> {
        let ([batch_size, heads, queries, _], size) = (self.shape, self.block_size());
        let blocks = queries.div_ceil(size);
        let parts = TASKS.div_ceil((batch_size * heads).max(1)).min(blocks).max(1);
        let rows = blocks.div_ceil(parts).max(1) * size;
        (0..queries).step_by(rows).map(|first| first..(first + rows).min(queries)).collect()
    }

    /// The blocks of a part, the last one first: it sees the most keys.
    fn blocks(&self, part: &Part) -> impl Iterator<Item = Block> + use<'_, T> {
        let (size, head, queries) = (self.block_size(), part.head, part.queries.clone());
        queries.clone().step_by(size).rev().map(move |first| {
            let queries = size.min(queries.end - first);
            Block { head, first, queries, seen: self.seen(first + queries - 1) }
        })
    }

    /// Calls `f` with the transposed matrix of a part, in order where that pays.
    fn with_transposed<R>(&self, part: &Part, matrix: Matrix<'_, T>, f: impl FnOnce(Matrix<'_, T>) -> R) -> R {
        let [rows, columns] = matrix.sizes();
        if part.queries.len() < TRANSPOSED_FROM || !matrix.has_rows() {
            return f(matrix.transposed());
        }
        T::with_scratch(rows * columns, |scratch| {
            transpose_into(matrix.transposed(), scratch, 1);
            f(Matrix::new(&*scratch, [columns, rows]))
        })
    }

    /// The number of the row of scores of a query among those of all heads.
    fn row(&self, block: Block, query: usize) -> usize {
        block.head * self.shape[2] + block.first + query
    }

    /// The softmax of a block's scores, `[queries, seen]`; the keys are transposed.
    fn weigh(&self, block: Block, keys: Matrix<'_, T>, weights: &mut [T]) {
        let Block { head, first, queries, seen } = block;
        product(self.query[head].rows(first, queries), keys.columns(0, seen)).set(weights, 1);
        if seen > 0 {
            softmax(self, block, weights);
        }
    }

    /// Multiplies a block by the mask of dropout.
    fn apply_dropout(&self, block: Block, values: &mut [T]) {
        let Some(mask) = self.dropout.filter(|_| block.seen > 0) else { return };
        for (query, row) in values.chunks_exact_mut(block.seen).enumerate() {
            mask.apply_to_row(self.shape, self.row(block, query), row);
        }
    }

    /// What a query sees, and its bias and padding.
    #[inline(always)]
    fn adjust(&self, block: Block, query: usize) -> (usize, [Option<&[T]>; 2]) {
        let [_, heads, _, keys] = self.shape;
        let seen = self.seen(block.first + query);
        let bias = self.bias.map(|bias| {
            let first = self.row(block, query) * keys % bias.len();
            &bias[first..first + seen]
        });
        let padding = self.padding.map(|padding| {
            let first = block.head / heads * keys;
            &padding[first..first + seen]
        });
        (seen, [bias, padding])
    }

    /// The rows of the output that are a part's.
    fn forward(&self, part: &Part, mut output: Output<'_, T>) {
        self.with_transposed(part, self.key[part.head], |keys| {
            for block in self.blocks(part) {
                let Block { head, first, queries, seen } = block;
                T::with_scratch(queries * seen, |weights| {
                    self.weigh(block, keys, weights);
                    self.apply_dropout(block, weights);
                    let weights = Matrix::new(&*weights, [queries, seen]);
                    let rows = output.rows(first - part.queries.start, queries);
                    product(weights, self.value[head].rows(0, seen)).write_to(rows, 1);
                });
            }
        });
    }

    /// The gradients that a part gives. With the softmax p and its gradient h: ∂score = p (h − Σ h p).
    fn backward(&self, task: PartTask<'_, T>, grad: Matrix<'_, T>, mut of_bias: Option<&mut [T]>) {
        let PartTask { part, mut query, mut key, mut value } = task;
        let (head, keys) = (part.head, self.shape[3]);
        self.with_transposed(&part, self.key[head], |transposed_keys| {
            self.with_transposed(&part, self.value[head], |transposed_values| {
                for (index, block) in self.blocks(&part).enumerate() {
                    let Block { first, queries, seen, .. } = block;
                    let (grad, length) = (grad.rows(first, queries), queries * seen);
                    let in_part = first - part.queries.start;
                    T::with_scratch(2 * length, |both| {
                        let (weights, scores) = both.split_at_mut(length);
                        self.weigh(block, transposed_keys, weights);
                        product(grad, transposed_values.columns(0, seen)).set(scores, 1);
                        self.apply_dropout(block, scores);
                        if seen > 0 {
                            let of_bias = of_bias.as_mut().map(|rows| &mut rows[in_part * keys..][..queries * keys]);
                            softmax_backward(weights, scores, (seen, keys), of_bias, self.scale);
                        }
                        self.apply_dropout(block, weights);
                        let [weights, scores] = [weights, scores].map(|x| Matrix::new(&*x, [queries, seen]));
                        product(scores, self.key[head].rows(0, seen)).write_to(query.rows(in_part, queries), 1);
                        let of_key = product(scores.transposed(), self.query[head].rows(first, queries));
                        let of_value = product(weights.transposed(), grad);
                        if index == 0 {
                            of_key.write_to(key.rows(0, seen), 1);
                            of_value.write_to(value.rows(0, seen), 1);
                            // What no query of this part sees.
                            key.rows(seen, keys - seen).fill(T::ZERO);
                            value.rows(seen, keys - seen).fill(T::ZERO);
                        } else {
                            // SAFETY: the first block has written all rows.
                            unsafe { of_key.add_to_written(key.rows(0, seen), 1) };
                            // SAFETY: the same.
                            unsafe { of_value.add_to_written(value.rows(0, seen), 1) };
                        }
                    });
                }
            });
        });
    }
}

#[multiversion(targets = "simd")]
fn softmax<T: Real>(call: &Call<'_, T>, block: Block, scores: &mut [T]) {
    for (query, row) in scores.chunks_exact_mut(block.seen).enumerate() {
        let (seen, addends) = call.adjust(block, query);
        let (row, hidden) = row.split_at_mut(seen);
        hidden.fill(T::ZERO);
        row.iter_mut().for_each(|x| *x = *x * call.scale);
        for addend in addends.into_iter().flatten() {
            row.iter_mut().zip(addend).for_each(|(x, addend)| *x += *addend);
        }
        let largest = max_of(row);
        if largest == T::NEG_INFINITY {
            // No key is seen, or no score is a number.
            row.iter_mut().for_each(|x| *x = if *x == T::NEG_INFINITY { T::ZERO } else { *x });
            continue;
        }
        let inverse = T::ONE / map_sum(row, |x| (x - largest).exp());
        row.iter_mut().for_each(|x| *x = *x * inverse);
    }
}

/// The gradient of the weights becomes that of the products of queries and keys; that of the bias, of rows of so many keys, is
/// added up.
#[multiversion(targets = "simd")]
fn softmax_backward<T: Real>(
    weights: &[T],
    grad: &mut [T],
    (seen, keys): (usize, usize),
    mut of_bias: Option<&mut [T]>,
    scale: T,
) {
    for (query, (p, grad)) in weights.chunks_exact(seen).zip(grad.chunks_exact_mut(seen)).enumerate() {
        let along = sum_of(p, grad, |p, h| p * h);
        grad.iter_mut().zip(p).for_each(|(grad, p)| *grad = *p * (*grad - along));
        if let Some(of_bias) = &mut of_bias {
            of_bias[query * keys..][..seen].iter_mut().zip(&*grad).for_each(|(sum, grad)| *sum += *grad);
        }
        grad.iter_mut().for_each(|grad| *grad = *grad * scale);
    }
}

/// See [`attend`](super::scaled_dot_product::attend).
pub(super) fn forward<T: Real>(inputs: &Inputs, weighing: &Weighing) -> Tensor<4> {
    let ([batch_size, heads, queries, keys], [_, width]) = (inputs.pairs(), inputs.widths());
    let (device, dtype) = (inputs.query.device(), inputs.query.dtype());
    let views = Views::<T>::new(inputs, weighing);
    let call = Call::new([batch_size, heads, queries, keys], inputs.shared(), &views, weighing);
    call.count_work([1, 1]);
    let (shape, parts) = ([batch_size, queries, heads, width], call.parts());
    let mut output = Unwritten::<T>::new(shape.into_iter().product());
    let mut tasks = Vec::new();
    for (head, output) in interleaved(output.memory(), shape).into_iter().enumerate() {
        let rows = split_rows(output, &parts);
        tasks.extend(parts.iter().zip(rows).map(|(queries, rows)| (Part { head, queries: queries.clone() }, rows)));
    }
    host::each(call.is_worth_it(), tasks, |(part, rows)| call.forward(&part, rows));
    // SAFETY: the parts are all rows of all heads, and have written them.
    let output = unsafe { output.written() };
    cast(host::tensor(output, shape, &device), dtype).swap_dims(1, 2)
}

/// A part, and where its gradients go.
struct PartTask<'a, T> {
    part: Part,
    /// The part's rows.
    query: Output<'a, T>,
    /// All rows of the head, of this part alone.
    key: Output<'a, T>,
    value: Output<'a, T>,
}

/// The gradients of all inputs, that of the bias if it is asked for.
pub(super) fn backward<T: Real>(inputs: &Inputs, weighing: &Weighing, grad: Tensor<4>, asks_bias: bool) -> Gradients {
    let ([batch_size, heads, queries, keys], [depth, width]) = (inputs.pairs(), inputs.widths());
    let (device, dtype) = (grad.device(), grad.dtype());
    let bias = inputs.bias.as_ref().filter(|_| asks_bias);
    if queries == 0 || batch_size == 0 {
        let [query, key, value] = [&inputs.query, &inputs.key, &inputs.value].map(Tensor::zeros_like);
        return Gradients { query, key, value, bias: bias.map(Tensor::zeros_like) };
    }
    let views = Views::<T>::new(inputs, weighing);
    let grad = View::<T>::of_matrices(cast(grad, T::dtype()));
    let grads: Vec<Matrix<T>> = grad.matrices().collect();
    let call = Call::new([batch_size, heads, queries, keys], inputs.shared(), &views, weighing);
    call.count_work([3, 2]);
    let parts = call.parts();

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
    };
    let groups = match bias {
        Some(_) => Groups::new(batch_size, inputs.biased()),
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

/// Which sequences one thread takes after the other: of those that share a bias so many.
#[derive(Clone, Copy)]
struct Groups {
    /// After so many sequences the biases begin anew.
    biases: usize,
    size: usize,
}

impl Groups {
    fn new(batch_size: usize, biases: usize) -> Self {
        Self { biases, size: (batch_size / biases).div_ceil(TASKS.div_ceil(biases)) }
    }

    fn count(&self, batch_size: usize) -> usize {
        (batch_size / self.biases).div_ceil(self.size) * self.biases
    }

    /// The group of a sequence.
    fn of(&self, sequence: usize) -> usize {
        sequence / self.biases / self.size * self.biases + sequence % self.biases
    }
}

/// Where the gradients of queries go, by head and part; those of keys, and of values, by part and head.
struct Outputs<'a, T> {
    query: Vec<Vec<Output<'a, T>>>,
    key: Vec<Output<'a, T>>,
    value: Vec<Output<'a, T>>,
}

/// All tasks.
fn tasks<'a, T: Real>(
    call: &Call<'_, T>,
    parts: &[Range<usize>],
    groups: Groups,
    outputs: Outputs<'a, T>,
    mut of_bias: &'a mut [T],
) -> Vec<GroupTask<'a, T>> {
    let [batch_size, heads, _, keys] = call.shape;
    let (count, has_bias) = (groups.count(batch_size) * heads, !of_bias.is_empty());
    let mut tasks: Vec<GroupTask<'a, T>> = Vec::new();
    for _ in 0..count {
        for queries in parts {
            let rows = has_bias.then(|| {
                let (rows, rest) = core::mem::take(&mut of_bias).split_at_mut(queries.len() * keys);
                of_bias = rest;
                rows
            });
            tasks.push((Vec::new(), rows));
        }
    }
    let by_head = |outputs: Vec<Output<'a, T>>| {
        let mut outputs: Vec<_> = outputs.into_iter().map(Some).collect();
        move |part: usize, head: usize| outputs[part * batch_size * heads + head].take().expect("one for each part")
    };
    let (mut key, mut value) = (by_head(outputs.key), by_head(outputs.value));
    for (head, rows) in outputs.query.into_iter().enumerate() {
        let (sequence, of_sequence) = (head / heads, head % heads);
        for (index, (queries, query)) in parts.iter().zip(rows).enumerate() {
            let part = Part { head, queries: queries.clone() };
            let task = PartTask { part, query, key: key(index, head), value: value(index, head) };
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
