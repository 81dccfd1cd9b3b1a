//! Mean and variance of every channel, over the rows of one rank or of all.
//!
//! Each rank takes the mean mᵣ of its nᵣ values and the squares around it, Mᵣ = Σ (x − mᵣ)². One all-gather brings
//! these together, and every rank merges them in the same order (Chan, Golub and LeVeque):
//!
//! ```text
//! n = Σ nᵣ        m = Σ nᵣ mᵣ / n        M = Σ (Mᵣ + nᵣ (mᵣ − m)²)
//! ```
//!
//! Only positive numbers are added to M. The other ways lose digits: an all-reduce of Σ x and Σ x² leaves a variance
//! that is the difference of two large numbers, which in f32 is noise once the mean is some thousand times the
//! deviation; shifted by the running mean it is no better until that mean has come near. The price is a gathered row
//! of 2 · channels + 1 numbers a rank instead of one sum of them.

use burn::tensor::{Tensor, TensorData};
use epl_comm::{ProcessGroup, ReduceOp, unwind};
use epl_core::model::precision::wide;
use multiversion::multiversion;

use crate::host::{self, HostFloat, Real, View, sum_of};

/// What is known of the rows of a batch, in f32 at least, without a graph.
#[derive(Clone, Debug)]
pub(super) struct Moments {
    /// How many values each channel has, `[1]`; in f32 exact up to 2^24, and then to seven digits.
    pub count: Tensor<1>,
    /// Their mean, `[channels]`.
    pub mean: Tensor<1>,
    /// Σ (x − mean)², `[channels]`.
    pub squares: Tensor<1>,
}

impl Moments {
    /// Of a plain tensor.
    ///
    /// # Shapes
    ///
    /// - x: `[rows, channels, inner]`
    pub fn of(x: &Tensor<3>) -> Self {
        let [rows, channels, inner] = x.dims();
        let values = rows * inner;
        if values == 0 {
            return Self::none(x);
        }
        let device = x.device();
        let options = (&device, wide(x.dtype()));
        let count = Tensor::full([1], values as f64, options);
        let given = |numbers: Vec<f64>| Tensor::from_data(TensorData::new(numbers, [channels]), options);
        match host::host_float(x) {
            Some(kind) => {
                let (mean, squares) = match kind {
                    HostFloat::Single => on_host::<f32>(x).unzip(),
                    HostFloat::Double => on_host::<f64>(x).unzip(),
                };
                Self { count, mean: given(mean), squares: given(squares) }
            }
            None => {
                let x = x.clone().cast(options.1);
                let mean = sum_of_channels(x.clone()) / values as f64;
                let squares = sum_of_channels((x - a_channel(mean.clone())).square());
                Self { count, mean, squares }
            }
        }
    }

    /// Of no row of such a tensor.
    pub fn none(x: &Tensor<3>) -> Self {
        let device = x.device();
        let options = (&device, wide(x.dtype()));
        let zeros = Tensor::zeros([x.dims()[1]], options);
        Self { count: Tensor::zeros([1], options), mean: zeros.clone(), squares: zeros }
    }

    /// Of the rows of all members, the same bits on each. Collective.
    pub fn over(self, group: &ProcessGroup) -> Self {
        let (members, channels) = (group.size(), self.mean.dims()[0]);
        if members == 1 {
            return self;
        }
        let row = Tensor::cat(vec![self.count, self.mean, self.squares], 0).unsqueeze::<2>();
        let rows = group.all_gather(row, 0).unwrap_or_else(|error| unwind(error));
        let counts = rows.clone().slice([0..members, 0..1]);
        let means = rows.clone().slice([0..members, 1..1 + channels]);
        let squares = rows.slice([0..members, 1 + channels..1 + 2 * channels]);
        let count = counts.clone().sum_dim(0);
        // The means of no row at all are zeros.
        let shares = counts.clone() / count.clone().clamp_min(1.0);
        let mean = (means.clone() * shares).sum_dim(0);
        let squares = (squares + (means - mean.clone()).square() * counts).sum_dim(0);
        Self { count: count.reshape([1]), mean: mean.reshape([channels]), squares: squares.reshape([channels]) }
    }

    /// The variance; with `unbiased` the estimate of that of the values' source. A single value has variance 0.
    pub fn variance(&self, unbiased: bool) -> Tensor<1> {
        let divisor = if unbiased { self.count.clone() - 1.0 } else { self.count.clone() };
        self.squares.clone() / divisor.clamp_min(1.0)
    }
}

/// The count of all members' rows, and the means of their means and variances weighted by their counts. Collective.
///
/// # Shapes
///
/// - count: `[1]`
/// - mean, variance, and both results: `[channels]`
pub(super) fn weighted_mean(
    count: Tensor<1>,
    [mean, variance]: [Tensor<1>; 2],
    group: &ProcessGroup,
) -> (Tensor<1>, [Tensor<1>; 2]) {
    let channels = mean.dims()[0];
    let row = Tensor::cat(vec![count.clone(), mean * count.clone(), variance * count], 0);
    let sums = group.all_reduce(row, ReduceOp::Sum).unwrap_or_else(|error| unwind(error));
    let count = sums.clone().slice([0..1]);
    let divisor = count.clone().clamp_min(1.0);
    let of = |first: usize| sums.clone().slice([first..first + channels]) / divisor.clone();
    (count, [of(1), of(1 + channels)])
}

/// One number a channel, beside `[rows, channels, inner]`.
pub(super) fn a_channel(x: Tensor<1>) -> Tensor<3> {
    let channels = x.dims()[0];
    x.reshape([1, channels, 1])
}

/// `[rows, channels, inner]` to `[channels]`.
pub(super) fn sum_of_channels(x: Tensor<3>) -> Tensor<1> {
    let channels = x.dims()[1];
    x.sum_dim(2).sum_dim(0).reshape([channels])
}

/// Mean and squares of each channel. Blocks of rows are merged in their order, whatever the number of threads.
fn on_host<T: Real>(x: &Tensor<3>) -> impl Iterator<Item = (f64, f64)> {
    let [_, channels, inner] = x.dims();
    let rows = host::rows_a_task(channels * inner);
    let x = View::<T>::new(x.clone());
    let (values, block) = (x.slice(), (rows * channels * inner).max(1));
    let of = |index: usize| {
        let own = &values[index * block..((index + 1) * block).min(values.len())];
        if is_narrow(inner) { of_narrow_block(own, channels, inner) } else { of_block(own, channels, inner) }
    };
    let partials: Vec<Vec<Sample>> = host::map_blocks(values.len().div_ceil(block), of);
    let whole = partials.into_iter().reduce(|mut all, block| {
        all.iter_mut().zip(block).for_each(|(all, sample)| all.merge(sample));
        all
    });
    whole.unwrap_or_default().into_iter().map(|sample| (sample.mean, sample.squares))
}

/// Mean and squares of a run of values.
#[derive(Clone, Copy, Default)]
struct Sample {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Sample {
    fn merge(&mut self, other: Self) {
        let count = self.count + other.count;
        let (apart, share) = (other.mean - self.mean, other.count / count);
        self.mean += apart * share;
        self.squares += other.squares + apart * apart * self.count * share;
        self.count = count;
    }
}

/// Whether a channel's run in a row is so short that loops go along whole rows instead, element by element.
pub(super) fn is_narrow(inner: usize) -> bool {
    inner < 64
}

/// Each number so many times.
pub(super) fn repeated<T: Copy>(numbers: &[T], times: usize) -> Vec<T> {
    numbers.iter().flat_map(|number| core::iter::repeat_n(*number, times)).collect()
}

/// One trip through memory: a run is read twice while it is in the cache.
#[multiversion(targets = "simd")]
fn of_block<T: Real>(block: &[T], channels: usize, inner: usize) -> Vec<Sample> {
    let mut samples = vec![Sample::default(); channels];
    let count = inner as f64;
    for row in block.chunks_exact(channels * inner) {
        for (sample, run) in samples.iter_mut().zip(row.chunks_exact(inner)) {
            let mean = sum_of(run, run, |a, _| a) / T::of(count);
            let squares = sum_of(run, run, |a, _| (a - mean) * (a - mean));
            sample.merge(Sample { count, mean: mean.wide(), squares: squares.wide() });
        }
    }
    samples
}

/// [`of_block`] along whole rows: the block is read twice.
#[multiversion(targets = "simd")]
fn of_narrow_block<T: Real>(block: &[T], channels: usize, inner: usize) -> Vec<Sample> {
    let width = channels * inner;
    let count = (block.len() / channels) as f64;
    let of_channels = |sums: &[T]| -> Vec<f64> {
        sums.chunks_exact(inner).map(|sums| sums.iter().map(|sum| sum.wide()).sum()).collect()
    };
    // Of the distances from the first row: a long sum of values whose mean is large beside σ would lose the digits of σ.
    let first = &block[..width];
    let mut sums = vec![T::ZERO; width];
    for row in block.chunks_exact(width) {
        sums.iter_mut().zip(row.iter().zip(first)).for_each(|(sum, (x, first))| *sum += *x - *first);
    }
    let [from, apart] = [first, &sums].map(of_channels);
    let means: Vec<f64> =
        from.into_iter().zip(apart).map(|(from, apart)| from / inner as f64 + apart / count).collect();
    let of_elements = repeated(&means.iter().map(|mean| T::of(*mean)).collect::<Vec<_>>(), inner);
    sums.fill(T::ZERO);
    for row in block.chunks_exact(width) {
        sums.iter_mut().zip(row.iter().zip(&of_elements)).for_each(|(sum, (x, mean))| {
            *sum += (*x - *mean) * (*x - *mean);
        });
    }
    let of_channel = |(mean, squares)| Sample { count, mean, squares };
    means.into_iter().zip(of_channels(&sums)).map(of_channel).collect()
}
