//! Random numbers that belong to a sample, not to a rank.
//!
//! Rule 3 of the design: a mask depends on (seed, step, global sample number, layer, call number in the forward,
//! element inside the unsplit, unpadded sample), and on nothing else. So there is no generator with a state:
//! every number is a hash of where it stands.
//!
//! ```text
//! Noise   = hash(seed, step, layer, call)      one call of one layer in one step
//! Row     = hash(Noise, sample, coordinates)   one row of one sample: all coordinates but the last
//! number  = hash(Row, last coordinate)         32 bits
//! ```
//!
//! An element is named by its coordinates, never by an offset into a buffer, so a longer padding, another cut of
//! the batch and a slice of the heads name the same elements in the same way.
//!
//! Keys are chained through the finalizer of SplitMix64 (Steele, Lea, Flood, 2014). The last step is the 32-bit
//! permutation `triple32` (Wellons, 2018) over a counter, keyed twice; it has no 64-bit product, so that
//! a loop over a row is vectorised. This is the counter-based scheme of Salmon et al. (2011) with a cheaper
//! mixer: meant for masks and noise, not for cryptography.

use core::f64::consts::TAU;

use burn::tensor::{DType, FloatDType, Int, Tensor, TensorData};
use epl_core::Context;
use multiversion::multiversion;

use crate::host::Real;

/// The random numbers of one call of one layer in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise(u64);

/// The random numbers of one row of one sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row(u64);

/// The finalizer of SplitMix64: a permutation of 64 bits.
#[inline(always)]
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[inline(always)]
fn bits(key: u64, element: u32) -> u32 {
    let mut x = element.wrapping_mul(0x9e37_79b9) ^ key as u32;
    x = (x ^ (x >> 17)).wrapping_mul(0xed5a_d4bb) ^ (key >> 32) as u32;
    x = (x ^ (x >> 11)).wrapping_mul(0xac4c_1b51);
    x = (x ^ (x >> 15)).wrapping_mul(0x3184_8bab);
    x ^ (x >> 14)
}

/// The lower half of 64 bits.
const HALF: i64 = 0xffff_ffff;

/// [`bits`] of the elements `first..` of rows. Numbers of 32 bits lie in 64, and no product passes 2^63: a device may
/// wrap, saturate or check.
///
/// # Shapes
///
/// - rows: `[rows]`, in 64 bits
/// - output: `[rows, length]`
fn bits_on_device(rows: Tensor<1, Int>, first: usize, length: usize) -> Tensor<2, Int> {
    let ([count], device) = (rows.dims(), rows.device());
    let element = |index: usize| i64::from((first as u32).wrapping_add(index as u32).wrapping_mul(0x9e37_79b9));
    let elements = TensorData::new((0..length).map(element).collect::<Vec<_>>(), [1, length]);
    let elements = Tensor::<2, Int>::from_data(elements, (&device, DType::I64)).expand([count, length]);
    let key = |shift: i64| {
        let half = rows.clone().bitwise_right_shift_scalar(shift).bitwise_and_scalar(HALF);
        half.unsqueeze_dim::<2>(1).expand([count, length])
    };
    let shifted = |x: Tensor<2, Int>, by: i64| x.clone().bitwise_xor(x.bitwise_right_shift_scalar(by));
    let times = |x: Tensor<2, Int>, factor: u32| {
        let [low, high] = [factor & 0xffff, factor >> 16].map(|part| x.clone() * i64::from(part));
        (low + high.bitwise_and_scalar(0xffffi64).bitwise_left_shift_scalar(16i64)).bitwise_and_scalar(HALF)
    };
    let x = elements.bitwise_xor(key(0));
    let x = times(shifted(x, 17), 0xed5a_d4bb).bitwise_xor(key(32));
    let x = times(shifted(x, 11), 0xac4c_1b51);
    shifted(times(shifted(x, 15), 0x3184_8bab), 14)
}

/// [`Row::uniform`] of the elements `first..` of rows, in f32.
///
/// # Shapes
///
/// - rows: `[rows]`, [numbers](Row::to_number) in 64 bits
/// - output: `[rows, length]`
pub(crate) fn uniforms_on_device(rows: Tensor<1, Int>, first: usize, length: usize) -> Tensor<2> {
    bits_on_device(rows, first, length).cast(FloatDType::F32) * 4_294_967_296.0_f64.recip()
}

impl Noise {
    /// The numbers that belong to these four.
    pub fn new(seed: u64, step: u64, layer: u64, call: u64) -> Self {
        Self([step, layer, call].into_iter().fold(mix(seed), |key, part| mix(key ^ part)))
    }

    /// The numbers of the layer's next call in the current forward pass. It counts the call.
    pub fn next_call(context: &Context, layer: u64) -> Self {
        Self::new(context.seed(), context.step(), layer, context.call_number(layer))
    }

    /// The numbers of one sample, named by its global number.
    pub fn sample(self, sample: u64) -> Row {
        Row(mix(self.0 ^ sample))
    }
}

impl Row {
    /// The row at a further coordinate.
    #[inline]
    pub fn at(self, coordinate: usize) -> Self {
        Self(mix(self.0 ^ coordinate as u64))
    }

    /// The row as a number that can be sent to another rank.
    pub(crate) fn to_number(self) -> i64 {
        self.0 as i64
    }

    /// The inverse of [`to_number`](Self::to_number).
    pub(crate) fn from_number(number: i64) -> Self {
        Self(number as u64)
    }

    /// 32 random bits for an element of the row. The element number must be below 2^32.
    #[inline]
    pub fn bits(self, element: usize) -> u32 {
        bits(self.0, element as u32)
    }

    /// A number in `[0, 1)` for an element of the row, a multiple of 2^-32.
    #[inline]
    pub fn uniform(self, element: usize) -> f64 {
        f64::from(self.bits(element)) / 4_294_967_296.0
    }
}

/// A number in `[0, 1)` for the element of a sample with these coordinates: the last one counts along a row.
///
/// For a loop over a row, take `noise.sample(sample).at(..)` once, then [`Row::uniform`].
pub fn uniform(noise: Noise, sample: u64, coordinates: &[usize]) -> f64 {
    let (element, prefix) = coordinates.split_last().map_or((0, &[][..]), |(last, prefix)| (*last, prefix));
    prefix.iter().fold(noise.sample(sample), |row, coordinate| row.at(*coordinate)).uniform(element)
}

/// A number of the standard normal distribution for an element, from those of two rows: the method of Box and Muller (1958).
pub(crate) fn normal([radius, angle]: [Row; 2], element: usize) -> f64 {
    // In (0, 1], as zero has no logarithm.
    let uniform = 1.0 - radius.uniform(element);
    (-2.0 * uniform.ln()).sqrt() * (TAU * angle.uniform(element)).cos()
}

/// Keeps an element with probability 1 - `prob` and multiplies it by 1 / (1 - `prob`); the others become zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    /// An element is dropped when its bits are below this.
    threshold: u32,
    /// The factor of the elements that are kept.
    scale: f64,
}

impl Keep {
    pub(crate) fn new(prob: f64) -> Self {
        Self { threshold: (prob * 4_294_967_296.0) as u32, scale: 1.0 / (1.0 - prob) }
    }

    /// What the elements `first..` of rows are multiplied by, in f32: what [`apply`](Self::apply) does, on a device.
    ///
    /// # Shapes
    ///
    /// - rows: `[rows]`, [numbers](Row::to_number) in 64 bits
    /// - output: `[rows, length]`
    pub(crate) fn factors(self, rows: Tensor<1, Int>, first: usize, length: usize) -> Tensor<2> {
        let is_kept = bits_on_device(rows, first, length).greater_equal_elem(i64::from(self.threshold));
        is_kept.float().cast(DType::F32) * self.scale
    }

    /// Applies itself to the elements `first..` of a row.
    pub(crate) fn apply<T: Real>(self, row: Row, first: usize, values: &mut [T]) {
        keep(row.0, first as u32, self.threshold, T::of(self.scale), values);
    }
}

#[multiversion(targets = "simd")]
fn keep<T: Real>(key: u64, first: u32, threshold: u32, scale: T, values: &mut [T]) {
    for (index, value) in values.iter_mut().enumerate() {
        let kept = bits(key, first.wrapping_add(index as u32)) >= threshold;
        *value = if kept { *value * scale } else { T::ZERO };
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn draws(n: usize, number: impl Fn(usize) -> f64) -> Vec<f64> {
        (0..n).map(number).collect()
    }

    /// Mean, variance and the correlation of neighbours, each in standard deviations of its estimate.
    fn scores(u: &[f64]) -> [f64; 3] {
        let n = u.len() as f64;
        let mean = u.iter().sum::<f64>() / n;
        let variance = u.iter().map(|x| (x - 0.5).powi(2)).sum::<f64>() / n;
        let serial = u.windows(2).map(|w| (w[0] - 0.5) * (w[1] - 0.5)).sum::<f64>() / n;
        let sd = (1.0f64 / 12.0).sqrt();
        [
            (mean - 0.5) / sd * n.sqrt(),
            (variance - 1.0 / 12.0) / (1.0f64 / 180.0).sqrt() * n.sqrt(),
            serial * 12.0 * n.sqrt(),
        ]
    }

    #[test]
    fn numbers_are_uniform_along_every_coordinate() {
        let n = 1 << 20;
        let noise = Noise::new(1, 2, 3, 4);
        let along = [
            draws(n, |i| noise.sample(7).uniform(i)),
            draws(n, |i| noise.sample(7).at(i).uniform(0)),
            draws(n, |i| noise.sample(i as u64).uniform(5)),
            draws(n, |i| Noise::new(1, i as u64, 3, 4).sample(7).uniform(5)),
            draws(n, |i| Noise::new(i as u64, 2, 3, 4).sample(7).uniform(5)),
            draws(n, |i| Noise::new(1, 2, 3, i as u64).sample(7).at(1).uniform(5)),
            draws(n, |i| noise.sample((i >> 8) as u64).at((i >> 4) & 15).uniform(i & 15)),
        ];
        for (which, u) in along.iter().enumerate() {
            assert!(scores(u).iter().all(|score| score.abs() < 4.5), "stream {which}: {:?}", scores(u));
        }
    }

    #[test]
    fn every_bit_and_every_byte_is_fair() {
        let row = Noise::new(9, 0, 0, 0).sample(0);
        let n = 1 << 20;
        let (mut ones, mut bytes) = ([0u64; 32], [[0u64; 256]; 4]);
        for i in 0..n {
            let x = row.bits(i);
            (0..32).for_each(|bit| ones[bit] += u64::from(x >> bit & 1));
            (0..4).for_each(|byte| bytes[byte][(x >> (8 * byte) & 255) as usize] += 1);
        }
        for (bit, count) in ones.iter().enumerate() {
            let score = (*count as f64 - n as f64 / 2.0) / (n as f64 / 4.0).sqrt();
            assert!(score.abs() < 4.5, "bit {bit}: {score}");
        }
        for counts in bytes {
            let expected = n as f64 / 256.0;
            let chi = counts.iter().map(|count| (*count as f64 - expected).powi(2) / expected).sum::<f64>();
            assert!((chi - 255.0).abs() < 4.5 * (2.0f64 * 255.0).sqrt(), "{chi}");
        }
    }

    #[test]
    fn neighbouring_rows_are_independent() {
        let noise = Noise::new(3, 1, 4, 1);
        let n = 1 << 18;
        for shift in 0..4 {
            let product = |i: usize| {
                let (a, b) = (noise.sample(0).at(5), noise.sample(0).at(6));
                (a.uniform(i) - 0.5) * (b.uniform(i + shift) - 0.5)
            };
            let score = (0..n).map(product).sum::<f64>() * 12.0 / (n as f64).sqrt();
            assert!(score.abs() < 4.5, "shift {shift}: {score}");
        }
    }

    #[test]
    fn the_kept_share_is_the_asked_one() {
        for prob in [0.0, 0.1, 0.5, 0.9] {
            let keep = Keep::new(prob);
            let mut values = vec![1.0f32; 1 << 20];
            keep.apply(Noise::new(0, 0, 0, 0).sample(1), 0, &mut values);
            let n = values.len() as f64;
            let kept = values.iter().filter(|x| **x != 0.0).count() as f64;
            assert!((kept - n * (1.0 - prob)).abs() <= 4.5 * (n * prob * (1.0 - prob)).sqrt(), "{prob}: {kept}");
            assert!(values.iter().all(|x| *x == 0.0 || *x == keep.scale as f32));
        }
    }

    #[test]
    fn a_device_draws_the_numbers_of_the_host() {
        let rows: Vec<Row> = (0..50).map(|sample| Noise::new(1, 2, 3, 4).sample(sample).at(7)).collect();
        let names: Vec<i64> = rows.iter().map(|row| row.to_number()).collect();
        let names = Tensor::<1, Int>::from_data(TensorData::new(names, [rows.len()]), (&Device::default(), DType::I64));
        for (first, length) in [(0, 67), (5, 1), (4_000_000_000, 3)] {
            let drawn: Vec<i64> = bits_on_device(names.clone(), first, length).into_data().iter().collect();
            let elements = || rows.iter().flat_map(|row| (first..first + length).map(|element| (*row, element)));
            assert_eq!(drawn, elements().map(|(row, element)| i64::from(row.bits(element))).collect::<Vec<_>>());
            let uniform: Vec<f32> = uniforms_on_device(names.clone(), first, length).into_data().iter().collect();
            assert_eq!(uniform, elements().map(|(row, element)| row.uniform(element) as f32).collect::<Vec<_>>());
            for prob in [0.0, 0.3, 0.999] {
                let mut ones = vec![1.0f32; rows.len() * length];
                let applied = ones.chunks_mut(length).zip(&rows);
                applied.for_each(|(values, row)| Keep::new(prob).apply(*row, first, values));
                let factors = Keep::new(prob).factors(names.clone(), first, length);
                assert_eq!(factors.into_data().iter::<f32>().collect::<Vec<_>>(), ones);
            }
        }
    }

    #[test]
    fn one_function_names_the_same_numbers() {
        let noise = Noise::new(1, 1, 1, 1);
        assert_eq!(uniform(noise, 3, &[4, 5, 6]), noise.sample(3).at(4).at(5).uniform(6));
        assert_eq!(uniform(noise, 3, &[6]), noise.sample(3).uniform(6));
    }
}
