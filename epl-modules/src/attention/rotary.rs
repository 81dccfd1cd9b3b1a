//! Rotary positions: queries and keys are turned by angles that grow with their position, so that a score depends on the
//! distance between them.

use burn::config::Config;
use burn::tensor::{DType, Device, Tensor, TensorData};
use epl_comm::custom_vjp;
use epl_core::model::precision::{cast, widen};
use multiversion::multiversion;

use crate::host::{self, HostFloat, Owned, Real, View, host_float};
use crate::invalid::refuse;

/// How queries and keys are turned by their positions.
///
/// Feature i of a head and feature `i + head_dim / 2` are turned as a pair, by the angle `position · theta^(-2i / head_dim)`.
/// As described in [RoFormer](https://arxiv.org/abs/2104.09864), with the pairs as Llama's weights have them. Angles, and their
/// sines and cosines, are computed in f32, as the published models were trained.
#[derive(Config, Debug, Copy, PartialEq)]
pub struct RotaryConfig {
    /// The base of the angles: the larger, the longer the longest wave. Default: 10000
    #[config(default = 10_000.0)]
    pub theta: f64,
    /// How angles are changed for longer sequences than a model was first trained on. Default: not at all
    pub scaling: Option<RotaryScaling>,
}

/// How the angles of [`RotaryConfig`] are changed for longer sequences.
#[derive(Config, Debug, Copy, PartialEq)]
pub enum RotaryScaling {
    /// All angles are divided by the factor ([arXiv:2306.15595](https://arxiv.org/abs/2306.15595)).
    Linear {
        /// How many times longer sequences become.
        factor: f64,
    },
    /// Long waves are stretched by the factor, short ones stay, those between are mixed: Llama 3.1
    /// ([arXiv:2407.21783](https://arxiv.org/abs/2407.21783)).
    Llama3 {
        /// How many times longer sequences become.
        factor: f64,
        /// Waves that fit into the first length fewer times than this are stretched.
        low_frequency_factor: f64,
        /// Waves that fit into it more often than this stay.
        high_frequency_factor: f64,
        /// The positions that the model was first trained on.
        original_positions: usize,
    },
}

impl RotaryConfig {
    /// What is wrong with the numbers, for heads of a size.
    pub(super) fn fault(&self, head_dim: usize) -> Option<String> {
        let positive = |number: f64| number.is_finite() && number > 0.0;
        if !head_dim.is_multiple_of(2) {
            return Some(format!("a head of {head_dim} features, which are no pairs; give an even head_dim"));
        }
        if !positive(self.theta) {
            return Some(format!("theta {}; it should be finite and positive, 10000 is usual", self.theta));
        }
        match self.scaling? {
            RotaryScaling::Linear { factor } | RotaryScaling::Llama3 { factor, .. } if !positive(factor) => {
                Some(format!("a scaling factor {factor}; it should be finite and positive"))
            }
            RotaryScaling::Llama3 { low_frequency_factor: low, high_frequency_factor: high, .. }
                if !(positive(low) && positive(high) && low < high) =>
            {
                Some(format!(
                    "a low frequency factor {low} and a high one {high}; the low one should be the smaller one"
                ))
            }
            RotaryScaling::Llama3 { original_positions: 0, .. } => {
                Some("0 original positions; it should be at least 1".to_string())
            }
            _ => None,
        }
    }

    /// The angle of position 1, for each pair of a head's features.
    fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        let exponents = (0..head_dim).step_by(2).map(|feature| feature as f32 / head_dim as f32);
        let plain = exponents.map(|exponent| 1.0 / (self.theta as f32).powf(exponent));
        plain.map(|frequency| self.scaling.map_or(frequency, |scaling| scaling.apply(frequency))).collect()
    }
}

impl RotaryScaling {
    fn apply(self, frequency: f32) -> f32 {
        let (factor, low, high, first) = match self {
            Self::Linear { factor } => return frequency / factor as f32,
            Self::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_positions } => {
                (factor as f32, low_frequency_factor as f32, high_frequency_factor as f32, original_positions as f32)
            }
        };
        // How many times the wave fits into the first length.
        let waves = first * frequency / (2.0 * core::f32::consts::PI);
        let kept = ((waves - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 - kept) * frequency / factor + kept * frequency
    }
}

/// The frequencies of a layer's heads.
#[derive(Clone, Debug)]
pub(super) struct Rotary {
    frequencies: Vec<f32>,
}

/// The sines and cosines of some positions that follow each other, each `[positions, head_dim / 2]` in f32.
#[derive(Clone, Debug)]
pub(super) struct Angles {
    sines: Tensor<2>,
    cosines: Tensor<2>,
}

impl Rotary {
    /// For heads of a size.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the numbers cannot be.
    pub fn new(config: &RotaryConfig, head_dim: usize, path: &str) -> Self {
        if let Some(fault) = config.fault(head_dim) {
            refuse(format!("{path}: rotary positions of {fault}"));
        }
        Self { frequencies: config.frequencies(head_dim) }
    }

    /// The angles of so many positions, of which `start` is the first. An element does not depend on the others: layouts whose
    /// rows are of other lengths have the same bits.
    pub fn angles(&self, start: usize, positions: usize, device: &Device) -> Angles {
        let (pairs, target) = (self.frequencies.len(), (&device.clone().without_autodiff(), DType::F32));
        let numbers: Vec<f32> = (start..start + positions).map(|position| position as f32).collect();
        let numbers = Tensor::<2>::from_data(TensorData::new(numbers, [positions, 1]), target);
        let frequencies = Tensor::<2>::from_data(TensorData::new(self.frequencies.clone(), [1, pairs]), target);
        let angles = numbers * frequencies;
        Angles { sines: angles.clone().sin(), cosines: angles.cos() }
    }
}

impl Angles {
    /// Turns the features of each head by the angles of their positions; computed in f32 at least.
    ///
    /// # Shapes
    ///
    /// - x, output: `[batch_size, positions, heads, head_dim]`
    pub fn turn(&self, x: Tensor<4>) -> Tensor<4> {
        custom_vjp(
            (x,),
            |(x,)| (turned(x, self, Direction::Forth), self.clone()),
            |angles, grad| (Some(turned(grad, &angles, Direction::Back)),),
        )
    }
}

/// A gradient is turned back.
#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Forth,
    Back,
}

fn turned(x: Tensor<4>, angles: &Angles, direction: Direction) -> Tensor<4> {
    let (dtype, x) = (x.dtype(), widen(x));
    let turned = match host_float(&x) {
        Some(HostFloat::Single) => turned_on_host::<f32>(x, angles, direction),
        Some(HostFloat::Double) => turned_on_host::<f64>(x, angles, direction),
        None => turned_tensors(x, angles, direction),
    };
    cast(turned, dtype)
}

fn turned_on_host<T: Real>(x: Tensor<4>, angles: &Angles, direction: Direction) -> Tensor<4> {
    let ([_, positions, heads, width], device) = (x.dims(), x.device());
    let sign = if direction == Direction::Back { T::ZERO - T::ONE } else { T::ONE };
    let table = |table: &Tensor<2>| View::<T>::new(cast(table.clone(), T::dtype()));
    let (sines, cosines, mut x) = (table(&angles.sines), table(&angles.cosines), Owned::<T>::take(x));
    let (sines, cosines) = (sines.slice(), cosines.slice());
    let (pairs, of_position) = (width / 2, heads * width);
    let block = host::rows_a_task(of_position);
    host::for_blocks(x.slice_mut(), (block * of_position).max(1), |index, rows| {
        for (row, heads) in rows.chunks_exact_mut(of_position).enumerate() {
            let first = (index * block + row) % positions * pairs;
            turn_heads(heads, &sines[first..first + pairs], &cosines[first..first + pairs], sign);
        }
    });
    x.into_tensor(&device)
}

/// All heads at one position.
#[multiversion(targets = "simd")]
fn turn_heads<T: Real>(heads: &mut [T], sines: &[T], cosines: &[T], sign: T) {
    let pairs = sines.len();
    for head in heads.chunks_exact_mut(2 * pairs) {
        let (first, second) = head.split_at_mut(pairs);
        for (((a, b), sine), cosine) in first.iter_mut().zip(second).zip(sines).zip(cosines) {
            let (old_a, old_b, sine) = (*a, *b, *sine * sign);
            *a = old_a * *cosine - old_b * sine;
            *b = old_b * *cosine + old_a * sine;
        }
    }
}

fn turned_tensors(x: Tensor<4>, angles: &Angles, direction: Direction) -> Tensor<4> {
    if x.dims().contains(&0) {
        // Burn cannot give an empty table more dims.
        return x;
    }
    let pairs = x.dims()[3] / 2;
    let table = |table: &Tensor<2>| cast(table.clone(), x.dtype()).unsqueeze_dim::<3>(1).unsqueeze_dim::<4>(0);
    let (sines, cosines) = (table(&angles.sines), table(&angles.cosines));
    let sines = if direction == Direction::Back { sines.neg() } else { sines };
    let (a, b) = (x.clone().narrow(3, 0, pairs), x.narrow(3, pairs, pairs));
    let first = a.clone() * cosines.clone() - b.clone() * sines.clone();
    Tensor::cat(vec![first, b * cosines + a * sines], 3)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Distribution;

    use super::*;

    const LLAMA_3: RotaryScaling = RotaryScaling::Llama3 {
        factor: 8.0,
        low_frequency_factor: 1.0,
        high_frequency_factor: 4.0,
        original_positions: 8192,
    };

    fn largest(x: Tensor<4>) -> f64 {
        epl_testing::largest(x.abs().into_data().iter::<f64>())
    }

    #[test]
    fn both_paths_agree_and_turning_back_undoes_it() {
        for (dtype, limit) in [(DType::F32, 1e-5), (DType::F64, 1e-6)] {
            let device = Device::default();
            for shape in [[2, 7, 3, 6], [1, 300, 2, 64], [0, 3, 1, 2], [2, 0, 1, 2]] {
                let x = Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), (&device, dtype));
                let angles = Rotary::new(&RotaryConfig::new(), shape[3], "layer").angles(3, shape[1], &device);
                let turned = turned(x.clone(), &angles, Direction::Forth);
                assert_eq!(turned.dims(), shape);
                let tensors = turned_tensors(x.clone(), &angles, Direction::Forth);
                assert!(largest(turned.clone() - tensors) < limit);
                assert!(largest(turned_tensors(turned.clone(), &angles, Direction::Back) - x.clone()) < limit);
                assert!(largest(super::turned(turned, &angles, Direction::Back) - x) < limit);
            }
        }
    }

    #[test]
    fn the_angles_of_a_position_do_not_depend_on_how_many_there_are() {
        let rotary = Rotary::new(&RotaryConfig::new(), 6, "layer");
        let at = |start, positions| rotary.angles(start, positions, &Device::default());
        let whole = at(0, 40);
        for (start, positions) in [(0, 1), (3, 5), (17, 20)] {
            let part = at(start, positions);
            for (part, whole) in [(part.sines, &whole.sines), (part.cosines, &whole.cosines)] {
                assert_eq!(part.into_data(), whole.clone().narrow(0, start, positions).into_data());
            }
        }
    }

    /// A query and a key further along keep their product.
    #[test]
    fn a_product_depends_on_the_distance_alone() {
        let device = Device::default();
        // Not drawn: some pairs have nearly the same product at two distances.
        let waves = (Tensor::<1, burn::tensor::Int>::arange(0..16, &device).float().cast(DType::F64) * 0.7)
            .reshape([1, 1, 1, 16]);
        let (query, key, rotary) = (waves.clone().sin(), waves.cos(), Rotary::new(&RotaryConfig::new(), 16, "layer"));
        let at = |x: &Tensor<4>, position| rotary.angles(position, 1, &device).turn(x.clone());
        let product = |a, b| (at(&query, a) * at(&key, b)).sum().into_scalar::<f64>();
        assert!((product(9, 4) - product(25, 20)).abs() < 1e-5);
        assert!((product(9, 4) - product(9, 5)).abs() > 1e-3);
    }

    /// Numbers of the formulas, computed by hand in f64.
    #[test]
    fn frequencies_are_those_of_the_papers() {
        let config = RotaryConfig::new().with_theta(500_000.0);
        let close = |a: f32, b: f64| assert!((f64::from(a) / b - 1.0).abs() < 1e-5, "{a} is not {b}");
        let plain = config.frequencies(128);
        assert_eq!((plain.len(), plain[0]), (64, 1.0));
        close(plain[1], 500_000_f64.powf(-2.0 / 128.0));
        let linear = config.with_scaling(Some(RotaryScaling::Linear { factor: 4.0 })).frequencies(128);
        assert!(linear.iter().zip(&plain).all(|(linear, plain)| *linear == plain / 4.0));
        let scaled = config.with_scaling(Some(LLAMA_3)).frequencies(128);
        // Waves of 2048 positions and fewer stay, those of more than 8192 are stretched.
        for (index, (scaled, plain)) in scaled.iter().zip(&plain).enumerate() {
            let wave = 2.0 * core::f64::consts::PI / f64::from(*plain);
            let kept = (8192.0 / wave - 1.0) / 3.0;
            match wave {
                wave if wave < 2048.0 => assert_eq!(scaled, plain, "{index}"),
                wave if wave > 8192.0 => close(*scaled, f64::from(*plain) / 8.0),
                _ => close(*scaled, (1.0 - kept) * f64::from(*plain) / 8.0 + kept * f64::from(*plain)),
            }
        }
        assert!(scaled[0] == plain[0] && scaled[63] < plain[63]);
    }

    #[test]
    fn numbers_that_cannot_be_are_named() {
        let fault = |config: RotaryConfig| config.fault(8).expect("it cannot be");
        assert!(RotaryConfig::new().fault(7).expect("odd").contains("a head of 7 features"));
        assert!(fault(RotaryConfig::new().with_theta(0.0)).contains("theta 0"));
        let scaled = |scaling| fault(RotaryConfig::new().with_scaling(Some(scaling)));
        assert!(scaled(RotaryScaling::Linear { factor: f64::NAN }).contains("factor NaN"));
        let llama = |low, high, original_positions| RotaryScaling::Llama3 {
            factor: 8.0,
            low_frequency_factor: low,
            high_frequency_factor: high,
            original_positions,
        };
        assert!(scaled(llama(4.0, 1.0, 10)).contains("factor 4 and a high one 1"));
        assert!(scaled(llama(1.0, 4.0, 0)).contains("0 original positions"));
        assert_eq!(RotaryConfig::new().with_scaling(Some(LLAMA_3)).fault(8), None);
    }
}
