//! A call, as its heads see it: what one thread does.

use core::mem::MaybeUninit;

use burn::tensor::{Bool, Tensor};
use epl_comm::count_work;
use epl_core::model::precision::cast;

use super::cut::{Block, Cut, Part};
use super::softmax::Softmax;
use crate::attention::heads::Inputs;
use crate::attention::weighing::Weighing;
use crate::dropout::Mask;
use crate::host::matrix::{Matrix, Output};
use crate::host::product::{WORTH_A_THREAD, product};
use crate::host::transpose::transpose_into;
use crate::host::unwritten::written;
use crate::host::{Real, View, zeroed};

/// From so many queries on a part transposes the keys of its head once, for all of them; in backward the values, too. A head's
/// keys are in the core's cache, so that pays with fewer rows than where a whole weight is transposed.
const TRANSPOSED_FROM: usize = 4;

/// The tensors of a call.
pub(super) struct Views<T> {
    query: View<T>,
    key: View<T>,
    value: View<T>,
    /// `[biases, heads, queries, keys]`, begun anew after so many sequences
    bias: Option<View<T>>,
    /// 0 or -∞, `[batch_size, keys]`
    padding: Option<Vec<T>>,
}

impl<T: Real> Views<T> {
    pub fn new(inputs: &Inputs, weighing: &Weighing) -> Self {
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

/// The heads of a call.
pub(super) struct Call<'a, T> {
    pub cut: Cut,
    softmax: Softmax<'a, T>,
    dropout: Option<&'a Mask>,
    /// Of each head of each sequence; of keys and values those that it shares.
    query: Vec<Matrix<'a, T>>,
    key: Vec<Matrix<'a, T>>,
    value: Vec<Matrix<'a, T>>,
}

/// A part, and where its gradients go.
pub(super) struct PartTask<'a, T> {
    pub part: Part,
    /// The part's rows.
    pub query: Output<'a, T>,
    /// All rows of the head, of this part alone.
    pub key: Output<'a, T>,
    pub value: Output<'a, T>,
    /// The part's weights, where forward has kept them.
    pub weights: Option<&'a mut [T]>,
}

impl<'a, T: Real> Call<'a, T> {
    pub fn new(shape: [usize; 4], shared: usize, views: &'a Views<T>, weighing: &'a Weighing) -> Self {
        let of_each = |view: &'a View<T>| view.matrices().flat_map(|head| core::iter::repeat_n(head, shared)).collect();
        let cut = Cut { shape, sight: weighing.sight };
        Self {
            cut,
            softmax: Softmax {
                cut,
                scale: T::of(weighing.scale),
                softcap: weighing.softcap,
                bias: views.bias.as_ref().map(View::slice),
                padding: views.padding.as_deref(),
            },
            dropout: weighing.dropout.as_ref(),
            query: views.query.matrices().collect(),
            key: of_each(&views.key),
            value: of_each(&views.value),
        }
    }

    /// Whether the heads are worth more than one thread.
    pub fn is_worth_it(&self) -> bool {
        let [batch_size, heads, queries, keys] = self.cut.shape;
        let width = self.value.first().map_or(0, |value| value.sizes()[1]);
        batch_size * heads * queries * keys * width >= 2 * WORTH_A_THREAD
    }

    /// Tells of so many products of all pairs with rows of the keys' width, and of the values'; keys that no query of a
    /// causal call sees are none.
    pub fn count_work(&self, [of_keys, of_values]: [usize; 2]) {
        count_work(|| {
            let [batch_size, heads, queries, _] = self.cut.shape;
            let seen: usize = (0..queries).map(|query| self.cut.seen(query).len()).sum();
            let width = |matrices: &[Matrix<T>]| matrices.first().map_or(0, |matrix| matrix.sizes()[1]);
            let widths = of_keys * width(&self.key) + of_values * width(&self.value);
            2.0 * (batch_size * heads * seen * widths) as f64
        });
    }

    /// Calls `f` with the transposed matrix of a part, in order where that pays.
    fn with_transposed<R>(&self, part: &Part, matrix: Matrix<'_, T>, f: impl FnOnce(Matrix<'_, T>) -> R) -> R {
        let [rows, columns] = matrix.sizes();
        if part.queries.len() < TRANSPOSED_FROM || !matrix.has_rows() {
            return f(matrix.transposed());
        }
        T::with_scratch(rows * columns, |scratch| {
            f(Matrix::new(transpose_into(matrix.transposed(), scratch, 1), [columns, rows]))
        })
    }

    /// The softmax of a block's scores, `[queries, keys]`, and the slopes of their softcap, if there is place for them; the keys
    /// are transposed.
    fn weigh<'o>(
        &self,
        block: Block,
        keys: Matrix<'_, T>,
        weights: &'o mut [MaybeUninit<T>],
        slopes: &mut [MaybeUninit<T>],
    ) -> &'o mut [T] {
        let queries = self.query[block.head].rows(block.first, block.queries);
        let weights = product(queries, keys.columns(block.first_key, block.keys)).write(weights, 1);
        self.softmax.forward(block, weights, slopes);
        weights
    }

    /// Multiplies a block by the mask of dropout.
    fn apply_dropout(&self, block: Block, values: &mut [T]) {
        let Some(mask) = self.dropout.filter(|_| block.keys > 0) else { return };
        for (query, row) in values.chunks_exact_mut(block.keys).enumerate() {
            mask.apply_to_row(self.cut.shape, (self.cut.row(block, query), block.first_key), row);
        }
    }

    /// The rows of the output that are a part's. Where there is room for the part's rows of all keys, the weights are kept there, those
    /// of a block behind each other.
    pub fn forward(&self, part: &Part, mut output: Output<'_, T>, mut room: Option<&mut [MaybeUninit<T>]>) {
        self.with_transposed(part, self.key[part.head], |keys| {
            for block in self.cut.blocks(part) {
                let Block { first, queries, keys: seen, .. } = block;
                let (in_part, length) = (first - part.queries.start, queries * seen);
                let rows = output.rows(in_part, queries);
                let room = room.as_deref_mut().map(|room| {
                    let (own, rest) = room[self.cut.kept(in_part, queries)].split_at_mut(length);
                    zeroed(rest);
                    own
                });
                match room {
                    Some(room) if self.dropout.is_none() => {
                        self.weighted(block, self.weigh(block, keys, room, &mut []), rows);
                    }
                    room => T::with_scratch(length, |scratch| {
                        let weights = self.weigh(block, keys, scratch, &mut []);
                        if let Some(room) = room {
                            room.write_copy_of_slice(weights);
                        }
                        self.apply_dropout(block, weights);
                        self.weighted(block, weights, rows);
                    }),
                }
            }
        });
    }

    /// The weighted sums of a block's values.
    fn weighted(&self, block: Block, weights: &[T], output: Output<'_, T>) {
        let weights = Matrix::new(weights, [block.queries, block.keys]);
        product(weights, self.value[block.head].rows(block.first_key, block.keys)).write_to(output, 1);
    }

    /// The gradients that a part gives.
    pub fn backward(&self, task: PartTask<'_, T>, grad: Matrix<'_, T>, mut of_bias: Option<&mut [T]>) {
        let PartTask { part, query, key, value, weights } = task;
        let keys = self.cut.shape[3];
        let mut grads = PartGrads { query, key, value };
        self.with_transposed(&part, self.value[part.head], |values| {
            let mut block = |index: usize, block: Block, [weights, slopes]: [&mut [T]; 2]| {
                let in_part = block.first - part.queries.start;
                let of_bias = of_bias.as_mut().map(|rows| &mut rows[in_part * keys..][..block.queries * keys]);
                let place = (index == 0, in_part);
                self.block_backward((block, place), [weights, slopes], (values, grad), &mut grads, of_bias);
            };
            let blocks = self.cut.blocks(&part).enumerate();
            match weights {
                Some(weights) => blocks.for_each(|(index, own)| {
                    let kept = self.cut.kept(own.first - part.queries.start, own.queries);
                    block(index, own, [&mut weights[kept][..own.queries * own.keys], &mut []]);
                }),
                None => self.with_transposed(&part, self.key[part.head], |keys| {
                    blocks.for_each(|(index, own)| {
                        let length = own.queries * own.keys;
                        let slopes = if self.softmax.softcap.is_some() { length } else { 0 };
                        T::with_scratch(length + slopes, |scratch| {
                            let (weights, slopes) = scratch.split_at_mut(length);
                            let weights = self.weigh(own, keys, weights, slopes);
                            // SAFETY: the softmax has written all of them, where it has a softcap; else there is none.
                            block(index, own, [weights, unsafe { written(slopes) }]);
                        });
                    });
                }),
            }
        });
    }

    /// The gradients that a block gives, which are a part's first or are added to what others gave; the values are transposed, and of the
    /// weights is written over.
    fn block_backward(
        &self,
        (block, (is_first, in_part)): (Block, (bool, usize)),
        [weights, slopes]: [&mut [T]; 2],
        (values, grad): (Matrix<'_, T>, Matrix<'_, T>),
        grads: &mut PartGrads<'_, T>,
        of_bias: Option<&mut [T]>,
    ) {
        let Block { head, first, queries, first_key, keys: seen } = block;
        let (grad, keys) = (grad.rows(first, queries), self.cut.shape[3]);
        T::with_scratch(queries * seen, |scores| {
            let scores = product(grad, values.columns(first_key, seen)).write(scores, 1);
            self.apply_dropout(block, scores);
            self.softmax.backward(block, [&*weights, &*slopes], scores, of_bias);
            self.apply_dropout(block, weights);
            let [weights, scores] = [&*weights, &*scores].map(|x| Matrix::new(x, [queries, seen]));
            let of_query = product(scores, self.key[head].rows(first_key, seen));
            of_query.write_to(grads.query.rows(in_part, queries), 1);
            let of_key = product(scores.transposed(), self.query[head].rows(first, queries));
            let of_value = product(weights.transposed(), grad);
            if is_first {
                of_key.write_to(grads.key.rows(first_key, seen), 1);
                of_value.write_to(grads.value.rows(first_key, seen), 1);
                // What no query of this block sees.
                for (first, unseen) in [(0, first_key), (first_key + seen, keys - first_key - seen)] {
                    grads.key.rows(first, unseen).fill(T::ZERO);
                    grads.value.rows(first, unseen).fill(T::ZERO);
                }
            } else {
                // SAFETY: the first block has written all rows.
                unsafe { of_key.add_to_written(grads.key.rows(first_key, seen), 1) };
                // SAFETY: the same.
                unsafe { of_value.add_to_written(grads.value.rows(first_key, seen), 1) };
            }
        });
    }
}

/// Where the gradients of a part go.
struct PartGrads<'a, T> {
    query: Output<'a, T>,
    key: Output<'a, T>,
    value: Output<'a, T>,
}
