//! The global norm of the gradients, from the plan's records: each element counts once, on the rank that owns it.
//!
//! Burn's own `grad_clipping` clips each parameter by its own norm, before any reduction; a clipped global norm
//! needs the reduced gradients of all ranks.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Tensor, TensorData};

use super::gradients::GradientStore;
use crate::model::context::Context;
use crate::model::flat::Flat;
use crate::model::precision::widen;
use crate::offload;
use crate::plan::Plan;

/// A sum of squares: what is known of it, and numbers on a device that are still to be read.
#[derive(Default)]
pub(crate) struct Squares {
    known: f64,
    on_device: Vec<Tensor<1>>,
}

impl Squares {
    /// This rank's share of the squared norm.
    pub fn of_gradients(plan: &Plan, store: &GradientStore) -> Self {
        let counted = plan.params.records.iter().filter(|record| record.counted);
        counted.filter_map(|record| store.own(record)).collect()
    }

    /// The sum, with what else is read at the same time: numbers, those of each tensor one after the other, and whole tensors.
    pub fn read_with(
        mut self,
        mut numbers: Vec<Tensor<1>>,
        whole: Vec<Flat>,
        context: &Context,
    ) -> (f64, Vec<f64>, Vec<TensorData>) {
        let count = numbers.iter().map(|tensor| tensor.dims()[0]).sum();
        numbers.append(&mut self.on_device);
        let (mut numbers, whole) = context.read_numbers_with(numbers, whole);
        let squares: f64 = numbers.split_off(count).into_iter().sum();
        (self.known + squares, numbers, whole)
    }

    /// The sum.
    pub fn read(self, context: &Context) -> f64 {
        self.read_with(Vec::new(), Vec::new(), context).0
    }
}

/// On the host the sum is in f64, in the same order as of an array that lies there; on a device it runs there.
impl FromIterator<Tensor<1>> for Squares {
    fn from_iter<I: IntoIterator<Item = Tensor<1>>>(tensors: I) -> Self {
        let mut squares = Self::default();
        for tensor in tensors {
            match tensor.clone().try_into_primitive::<Flex>() {
                Ok(flex) => {
                    squares.known += match flex.dtype() {
                        DType::F32 => squares_in_place::<f32>(flex),
                        DType::F64 => squares_in_place::<f64>(flex),
                        _ => tensor.into_data().iter::<f64>().map(|x| x * x).sum(),
                    }
                }
                Err(_) => squares.on_device.push(squares_on_device(tensor)),
            }
        }
        squares
    }
}

/// The factor that brings `norm` down to `limit`, as PyTorch's `clip_grad_norm_` defines it; 1 when it is below.
pub(crate) fn clip_factor(norm: f64, limit: f64) -> f64 {
    (limit / (norm + 1e-6)).min(1.0)
}

/// Elements that are added one after the other.
const ROW: usize = 1024;

/// Of rows first: the sum of all elements at once keeps only a part of a device busy. In f32 at least: the largest number of
/// f16 is no more than the square of 256.
fn squares_on_device(tensor: Tensor<1>) -> Tensor<1> {
    let (elements, tensor) = (tensor.dims()[0], widen(tensor));
    let squares = tensor.clone() * tensor;
    match elements.is_multiple_of(ROW) && elements > ROW * ROW {
        true => squares.reshape([elements / ROW, ROW]).sum_dim(1).sum(),
        false => squares.sum(),
    }
}

/// A gradient is a view of its bucket's buffer, which is not copied.
fn squares_in_place<E: offload::Number>(flex: FlexTensor) -> f64 {
    offload::sum_of_squares::<E>(offload::contiguous(flex).as_slice().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn sums_squares_of_views_and_odd_lengths() {
        let values: Vec<f32> = (0..100_003).map(|i| (i % 7) as f32 - 3.0).collect();
        let expected: f64 = values[5..].iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        let tensor = Tensor::<1>::from_floats(values.as_slice(), &Device::flex()).slice([5..100_003]);
        assert_eq!(Squares::from_iter([tensor]).known, expected);
    }

    #[test]
    fn a_device_sums_rows_first() {
        for elements in [0, 3, ROW * ROW, ROW * (ROW + 1), ROW * (ROW + 1) + 1] {
            let tensor = Tensor::<1>::ones([elements], &Device::flex()) * 2.0;
            let sum: f32 = squares_on_device(tensor).into_scalar();
            assert!((f64::from(sum) - 4.0 * elements as f64).abs() <= 4.0, "{elements}: {sum}");
        }
    }

    #[test]
    fn a_device_squares_16_bits_in_32() {
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            let tensor = Tensor::<1>::from_floats([300.0, 400.0], &Device::flex()).cast(dtype);
            assert_eq!(squares_on_device(tensor).into_scalar::<f32>(), 250_000.0, "{dtype:?}");
        }
    }

    #[test]
    fn clips_only_above_the_limit() {
        assert_eq!(clip_factor(0.5, 1.0), 1.0);
        assert!((clip_factor(4.0, 1.0) - 0.25).abs() < 1e-6);
    }
}
