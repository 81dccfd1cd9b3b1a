//! T5's relative position bias.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::Initializer;
use burn::tensor::{Int, Tensor, TensorData};
use epl_comm::custom_vjp;
use epl_core::topology::cluster::Axis;
use epl_core::{Context, Place};

use super::checks::check_heads;
use crate::host::{self, HostFloat, Real, View, host_float, map_rows, new_blocks, rows_a_task};
use crate::invalid::refuse;
use crate::placement;

/// Configuration to create a [`RelativeBias`] layer using the [init function](RelativeBiasConfig::init).
#[derive(Config, Debug)]
pub struct RelativeBiasConfig {
    /// The number of heads, over all ranks.
    pub n_heads: usize,
    /// The number of buckets of distances. Default: 32
    #[config(default = 32)]
    pub n_buckets: usize,
    /// All distances from here on share the last bucket. Default: 128
    #[config(default = 128)]
    pub max_distance: usize,
    /// Whether keys to the right have buckets of their own (an encoder), or all share one (a decoder).
    /// Default: true
    #[config(default = true)]
    pub bidirectional: bool,
    /// How the biases get their first values. Default: normal with mean 0 and deviation 1
    #[config(default = "Initializer::Normal{mean:0.0, std:1.0}")]
    pub initializer: Initializer,
}

/// A learned bias on the scores of each head, by the bucket of the distance between query and key.
///
/// See [Exploring the limits of transfer learning](https://arxiv.org/abs/1910.10683), section 2.1: half of the
/// buckets hold one distance each, the others grow logarithmically. The table is split by heads over the tensor axis.
/// Its gradient is a sum over all pairs of a bucket: under mixed precision it stays in f32.
///
/// ```
/// use epl_core::testing;
/// use epl_modules::RelativeBiasConfig;
///
/// testing::run((1, 2, 1), |epl| {
///     let bias = RelativeBiasConfig::new(4).init(&epl.place().child("bias"));
///     // Of this rank's two heads, for `AttentionInput::with_bias`: all queries; the sixth alone, as with a cache of five keys.
///     assert_eq!(bias.forward(6, 6, 0).dims(), [1, 2, 6, 6]);
///     assert_eq!(bias.forward(1, 6, 5).dims(), [1, 2, 1, 6]);
///     Ok(())
/// });
/// ```
///
/// Should be created with [`RelativeBiasConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct RelativeBias {
    /// This rank's columns of `[n_buckets, n_heads]`
    pub weight: Param<Tensor<2>>,
    /// The number of heads, over all ranks.
    pub n_heads: usize,
    /// The number of buckets of distances.
    pub n_buckets: usize,
    /// All distances from here on share the last bucket.
    pub max_distance: usize,
    /// Whether keys to the right have buckets of their own.
    pub bidirectional: bool,
    #[module(skip)]
    context: Context,
}

impl RelativeBiasConfig {
    /// Initializes a new [`RelativeBias`] layer.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the heads do not divide over the tensor axis, or the buckets are too few for the
    /// largest distance.
    pub fn init(&self, place: &Place) -> RelativeBias {
        check_heads(place.context().tensor(), place.path(), self.n_heads);
        let one_side = if self.bidirectional { self.n_buckets / 2 } else { self.n_buckets };
        if one_side < 2 || self.max_distance <= one_side / 2 {
            refuse(format!(
                "{}: {} buckets for distances up to {} leave no logarithmic bucket; use at least {} buckets and a \
                 max_distance above {}",
                place.path(),
                self.n_buckets,
                self.max_distance,
                if self.bidirectional { 4 } else { 2 },
                one_side / 2
            ));
        }
        let shape = [self.n_buckets, self.n_heads];
        RelativeBias {
            weight: place.full_precision(place.split_param(shape, &[(Axis::Tensor, 1)], self.initializer.clone())),
            n_heads: self.n_heads,
            n_buckets: self.n_buckets,
            max_distance: self.max_distance,
            bidirectional: self.bidirectional,
            context: place.context().clone(),
        }
    }
}

impl RelativeBias {
    /// The bias of queries at the positions `offset..offset + queries` on keys at `0..keys`.
    ///
    /// # Shapes
    ///
    /// - output: `[1, local heads, queries, keys]`
    pub fn forward(&self, queries: usize, keys: usize, offset: usize) -> Tensor<4> {
        self.context.count_flops(Some(self.weight.id), 0.0);
        biases(self.weight.val(), self.buckets(queries, keys, offset), [queries, keys]).unsqueeze()
    }

    /// The buckets of all distances, from that of the last query and the first key on.
    fn buckets(&self, queries: usize, keys: usize, offset: usize) -> Vec<usize> {
        let distances = (queries + keys).saturating_sub(1);
        let of_first = (offset + queries) as i64 - 1;
        (0..distances as i64).map(|distance| self.bucket(distance - of_first)).collect()
    }

    /// The bucket of a key's position minus a query's.
    fn bucket(&self, distance: i64) -> usize {
        let (buckets, first, distance) = match self.bidirectional {
            true => {
                let half = self.n_buckets / 2;
                (half, if distance > 0 { half } else { 0 }, distance.unsigned_abs() as usize)
            }
            false => (self.n_buckets, 0, usize::try_from(-distance).unwrap_or(0)),
        };
        let exact = buckets / 2;
        if distance < exact {
            return first + distance;
        }
        // In f32, as the published models were trained: a rounding decides at the edges.
        let ratio = (distance as f32 / exact as f32).ln() / (self.max_distance as f32 / exact as f32).ln();
        let bucket = exact + (ratio * (buckets - exact) as f32) as usize;
        first + bucket.min(buckets - 1)
    }
}

/// For each head the bias of each query and key, of the bucket of the distance between them: the first distance is that of the
/// last query and the first key.
///
/// # Shapes
///
/// - table: `[n_buckets, heads]`, buckets: `[queries + keys - 1]`
/// - output: `[heads, queries, keys]`
fn biases(table: Tensor<2>, buckets: Vec<usize>, [queries, keys]: [usize; 2]) -> Tensor<3> {
    match host_float(&table) {
        Some(HostFloat::Single) => biases_on_host::<f32>(table, buckets, [queries, keys]),
        Some(HostFloat::Double) => biases_on_host::<f64>(table, buckets, [queries, keys]),
        None => biases_on_device(table, buckets, [queries, keys]),
    }
}

/// As tensor operations, whose number is the same for all positions.
fn biases_on_device(table: Tensor<2>, buckets: Vec<usize>, [queries, keys]: [usize; 2]) -> Tensor<3> {
    let of_query = |query: usize| buckets[queries - 1 - query..][..keys].iter().map(|bucket| *bucket as i64);
    let (of_pairs, n_buckets) = ((0..queries).flat_map(of_query).collect(), table.dims()[0]);
    gathered_biases(table, of_pairs, [queries, keys], move |grad| bucket_sums(diagonal_sums(grad), &buckets, n_buckets))
}

/// One gather of the heads' rows: the result is contiguous, as attention wants it. `backward` makes the gradient of the table of
/// that of the biases.
///
/// The gradient of a gather would be a scatter: on a device one that adds atomically, in no order, or a few threads that walk
/// all pairs one after the other.
///
/// # Shapes
///
/// - table: `[n_buckets, heads]`, buckets of all pairs: `[queries * keys]`
/// - output: `[heads, queries, keys]`
pub(super) fn gathered_biases(
    table: Tensor<2>,
    of_pairs: Vec<i64>,
    [queries, keys]: [usize; 2],
    backward: impl FnOnce(Tensor<3>) -> Tensor<2> + Send + 'static,
) -> Tensor<3> {
    let forward = |(table,): (Tensor<2>,)| {
        let (dims, heads, device) = (table.dims(), table.dims()[1], table.device());
        let of_pairs = Tensor::<1, Int>::from_data(TensorData::new(of_pairs, [queries * keys]), &device);
        (table.transpose().select(1, of_pairs).reshape([heads, queries, keys]), dims)
    };
    custom_vjp((table,), forward, |dims, grad| match grad.dims().contains(&0) {
        true => (Some(Tensor::zeros(dims, (&grad.device(), grad.dtype()))),),
        false => (Some(backward(grad)),),
    })
}

/// The sums of the diagonals of matrices, from that of the last row and the first column to that of the first row and the last
/// column, without atomic additions: the order is that of the device's sum along a dim.
///
/// Upside down and beside a square of zeros, a matrix is read again in rows that are shorter by one: each begins one further to
/// the right.
///
/// ```text
/// a b c      d e f 0 0      d e f 0
/// d e f  ->  a b c 0 0  ->  0 a b c  (0 0 is left over)
/// ```
///
/// # Shapes
///
/// - x: `[matrices, rows, columns]`, none of which is 0
/// - output: `[matrices, rows + columns - 1]`
pub(super) fn diagonal_sums(x: Tensor<3>) -> Tensor<2> {
    /// Elements of a block: 64 MiB of f32.
    const BLOCK: usize = 1 << 24;
    diagonal_sums_by(x, BLOCK)
}

/// The same of so many matrices at a time that what is written beside them has at most `block` elements, or of one.
fn diagonal_sums_by(x: Tensor<3>, block: usize) -> Tensor<2> {
    let [matrices, rows, columns] = x.dims();
    let diagonals = rows + columns - 1;
    let height = (block / (rows * (diagonals + 1))).clamp(1, matrices);
    let sums = x.split(height, 0).into_iter().map(|x| {
        let matrices = x.dims()[0];
        let zeros = Tensor::zeros([matrices, rows, rows], (&x.device(), x.dtype()));
        let beside = Tensor::cat(vec![x.flip([1]), zeros], 2).reshape([matrices, rows * (diagonals + 1)]);
        let shifted = beside.narrow(1, 0, rows * diagonals).reshape([matrices, rows, diagonals]);
        shifted.sum_dim(1).reshape([matrices, diagonals])
    });
    Tensor::cat(sums.collect(), 0)
}

/// The sums over the distances of each bucket. No product with ones and zeros, which a device may compute with fewer bits.
///
/// # Shapes
///
/// - of_distances: `[heads, distances]`
/// - output: `[n_buckets, heads]`
fn bucket_sums(of_distances: Tensor<2>, buckets: &[usize], n_buckets: usize) -> Tensor<2> {
    let ([heads, distances], device) = (of_distances.dims(), of_distances.device());
    let buckets: Vec<i64> = buckets.iter().map(|bucket| *bucket as i64).collect();
    let buckets = Tensor::<1, Int>::from_data(TensorData::new(buckets, [distances]), &device);
    let each = Tensor::<1, Int>::arange(0..n_buckets as i64, &device).reshape([n_buckets, 1]);
    let others = buckets.reshape([1, distances]).expand([n_buckets, distances]);
    let others = others.not_equal(each.expand([n_buckets, distances]));
    let dims = [heads, n_buckets, distances];
    let of_buckets = of_distances.reshape([heads, 1, distances]).expand(dims);
    let of_buckets = of_buckets.mask_fill(others.reshape([1, n_buckets, distances]).expand(dims), 0.0);
    of_buckets.sum_dim(2).reshape([heads, n_buckets]).transpose()
}

/// Along a query lie the biases of neighbouring distances: rows are copied, and their gradients added up, as a whole.
fn biases_on_host<T: Real>(table: Tensor<2>, buckets: Vec<usize>, [queries, keys]: [usize; 2]) -> Tensor<3> {
    let [n_buckets, heads] = table.dims();
    let pairs = queries * keys;
    let first_of = move |query: usize| queries - 1 - query;
    let forward = |(table,): (Tensor<2>,)| {
        let (device, table, height) = (table.device(), View::<T>::new(table), rows_a_task(pairs));
        let table = table.slice();
        let biases = new_blocks(heads * pairs, (height * pairs).max(1), |block, biases| {
            for (at, biases) in biases.chunks_mut(pairs).enumerate() {
                let head = block * height + at;
                let of_distances: Vec<T> = buckets.iter().map(|bucket| table[bucket * heads + head]).collect();
                for (query, biases) in biases.chunks_mut(keys).enumerate() {
                    biases.copy_from_slice(&of_distances[first_of(query)..][..keys]);
                }
            }
        });
        (host::tensor(biases, [heads, queries, keys], &device), buckets)
    };
    custom_vjp((table,), forward, move |buckets, grad: Tensor<3>| {
        let (device, grad) = (grad.device(), View::<T>::new(grad));
        let grad = grad.slice();
        let of_head = |head: usize| {
            let mut of_distances = vec![T::ZERO; buckets.len()];
            for (query, grad) in grad[head * pairs..][..pairs].chunks(keys.max(1)).enumerate() {
                let own = &mut of_distances[first_of(query)..][..keys];
                own.iter_mut().zip(grad).for_each(|(sum, grad)| *sum += *grad);
            }
            of_distances
        };
        let mut sums = vec![T::ZERO; n_buckets * heads];
        for (head, of_distances) in map_rows(heads, pairs, of_head).into_iter().enumerate() {
            buckets.iter().zip(of_distances).for_each(|(bucket, sum)| sums[bucket * heads + head] += sum);
        }
        (Some(host::tensor(sums, [n_buckets, heads], &device)),)
    })
}

impl ModuleDisplay for RelativeBias {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("n_heads", &self.n_heads)
            .add("n_buckets", &self.n_buckets)
            .add("max_distance", &self.max_distance)
            .add("bidirectional", &self.bidirectional)
            .add("placement", placement::split(self.context.tensor(), "head", self.n_heads).as_str())
            .optional()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use burn::tensor::{DType, Device, Distribution};

    use super::*;

    /// The biases of a table, and its gradient where that of the biases is `factors`.
    pub(in crate::attention) fn with_gradient(
        table: &Tensor<2>,
        factors: &Tensor<3>,
        biases: impl FnOnce(Tensor<2>) -> Tensor<3>,
    ) -> [TensorData; 2] {
        let table = table.clone().autodiff().require_grad();
        let biases = biases(table.clone());
        let gradients = (biases.clone() * factors.clone().autodiff()).sum().backward();
        [biases.into_data(), table.grad(&gradients).expect("it is tracked").into_data()]
    }

    /// As Burn gathers them, and the gradient that it has of that.
    pub(in crate::attention) fn gathered(table: &Tensor<2>, factors: &Tensor<3>, of_pairs: &[i64]) -> [TensorData; 2] {
        with_gradient(table, factors, |table| {
            let of_pairs = Tensor::<1, Int>::from_ints(of_pairs, &table.device());
            table.transpose().select(1, of_pairs).reshape(factors.dims())
        })
    }

    /// Equal biases, and gradients that are equal but for the order of sums in f64.
    pub(in crate::attention) fn assert_same([values, gradient]: &[TensorData; 2], expected: &[TensorData; 2]) {
        values.assert_eq(&expected[0], true);
        gradient.assert_approx_eq::<f64>(&expected[1], burn::tensor::Tolerance::absolute(1e-12));
    }

    /// In f64, where the order of a sum does not count.
    #[test]
    fn biases_and_their_gradient_are_those_of_a_gather_on_any_number_of_threads() {
        // One head a task, and several, the last task with fewer.
        for (n_buckets, heads, queries, keys) in
            [(1, 1, 1, 1), (8, 3, 5, 9), (8, 1, 9, 2), (32, 40, 70, 130), (32, 40, 20, 50)]
        {
            let device = Device::flex();
            let random = |shape: &[usize]| {
                Tensor::<1>::random([shape.iter().product::<usize>()], Distribution::Default, (&device, DType::F64))
            };
            let table = random(&[n_buckets, heads]).reshape([n_buckets, heads]);
            let factors = random(&[heads, queries, keys]).reshape([heads, queries, keys]);
            let buckets: Vec<usize> = (0..queries + keys - 1).map(|distance| distance * 7 % n_buckets).collect();
            let of_query = |query: usize| buckets[queries - 1 - query..][..keys].iter().map(|bucket| *bucket as i64);
            let of_pairs: Vec<i64> = (0..queries).flat_map(of_query).collect();
            let expected = gathered(&table, &factors, &of_pairs);
            let on_device = |table| biases_on_device(table, buckets.clone(), [queries, keys]);
            assert_same(&with_gradient(&table, &factors, on_device), &expected);
            let on_threads = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
                let biases = |table| biases(table, buckets.clone(), [queries, keys]);
                pool.install(|| with_gradient(&table, &factors, biases))
            };
            let on_host = on_threads(1);
            assert_same(&on_host, &expected);
            assert_eq!(on_threads(3), on_host, "bit by bit");
        }
    }

    /// In f64, as above.
    #[test]
    fn a_device_computes_what_the_host_computes_of_distances() {
        epl_core::testing::run((1, 1, 1), |epl| {
            let device = Device::flex();
            for (is_bidirectional, queries, keys, offset) in [
                (true, 5, 9, 0),
                (true, 9, 5, 0),
                (false, 40, 40, 0),
                (false, 1, 30, 29),
                (false, 3, 33, 30),
                (true, 1, 1, 0),
            ] {
                let config = RelativeBiasConfig::new(3).with_n_buckets(8).with_max_distance(20);
                let name = format!("{is_bidirectional} {queries} {keys} {offset}");
                let layer = config.with_bidirectional(is_bidirectional).init(&epl.place().child(&name));
                let buckets = layer.buckets(queries, keys, offset);
                let random = |shape| Tensor::<3>::random(shape, Distribution::Default, (&device, DType::F64));
                let (table, factors) = (random([1, 8, 3]).squeeze_dim::<2>(0), random([3, queries, keys]));
                let run = |biases: fn(Tensor<2>, Vec<usize>, [usize; 2]) -> Tensor<3>| {
                    with_gradient(&table, &factors, |table| biases(table, buckets.clone(), [queries, keys]))
                };
                assert_same(&run(biases_on_device), &run(biases_on_host::<f64>));
            }
            Ok(())
        });
    }

    /// Of a matrix whose sums tell which numbers are in them.
    #[test]
    fn diagonals_are_summed_from_the_last_row_on() {
        let x = Tensor::<3>::from_floats([[[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]], &Device::flex());
        assert_eq!(diagonal_sums(x).into_data().iter::<f32>().collect::<Vec<_>>(), [10.0, 21.0, 32.0, 3.0]);
        let x = Tensor::<1, Int>::arange(0..5 * 3 * 4, &Device::flex()).float().reshape([5, 3, 4]);
        let whole = diagonal_sums(x.clone()).into_data();
        // Two matrices at a time, and one, of which a block has no room.
        for block in [2 * 3 * 7, 1] {
            diagonal_sums_by(x.clone(), block).into_data().assert_eq(&whole, true);
        }
    }

    #[test]
    fn there_may_be_no_query_and_no_key() {
        for [queries, keys] in [[0_usize, 0], [0, 3], [3, 0]] {
            let table = Tensor::<2>::ones([4, 2], &Device::flex()).autodiff().require_grad();
            let biases = biases(table.clone(), vec![0; (queries + keys).saturating_sub(1)], [queries, keys]);
            assert_eq!(biases.dims(), [2, queries, keys]);
            let gradient = table.grad(&biases.sum().backward()).expect("it is tracked");
            assert_eq!(gradient.into_data().iter::<f32>().sum::<f32>(), 0.0);
        }
    }
}
