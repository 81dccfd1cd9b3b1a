//! The global norm of the gradients, from the plan's records: each element counts once, on the rank that owns it.
//!
//! Burn's own `grad_clipping` clips each parameter by its own norm, before any reduction; a clipped global norm
//! needs the reduced gradients of all ranks.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Tensor};

use super::gradients::GradientStore;
use crate::offload;
use crate::plan::Plan;

/// This rank's share of the squared norm.
pub(crate) fn squared(plan: &Plan, store: &GradientStore) -> f64 {
    let counted = plan.params.records.iter().filter(|record| record.counted);
    counted.filter_map(|record| store.own(record)).map(sum_of_squares).sum()
}

/// The factor that brings `norm` down to `limit`, as PyTorch's `clip_grad_norm_` defines it; 1 when it is below.
pub(crate) fn clip_factor(norm: f64, limit: f64) -> f64 {
    (limit / (norm + 1e-6)).min(1.0)
}

/// The sum of squares in f64, on the host in the same order as of an array that lies there.
pub(crate) fn sum_of_squares(tensor: Tensor<1>) -> f64 {
    match tensor.clone().try_into_primitive::<Flex>() {
        Ok(flex) => match flex.dtype() {
            DType::F32 => squares_in_place::<f32>(flex),
            DType::F64 => squares_in_place::<f64>(flex),
            _ => tensor.into_data().iter::<f64>().map(|x| x * x).sum(),
        },
        // On an accelerator the sum runs there, and one number comes back.
        Err(_) => (tensor.clone() * tensor).sum().into_data().iter::<f64>().sum(),
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
        assert_eq!(sum_of_squares(tensor), expected);
    }

    #[test]
    fn clips_only_above_the_limit() {
        assert_eq!(clip_factor(0.5, 1.0), 1.0);
        assert!((clip_factor(4.0, 1.0) - 0.25).abs() < 1e-6);
    }
}
