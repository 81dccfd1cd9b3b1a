//! Numbers that depend on names alone: the same on every rank, and nothing is drawn for them.

use core::convert::Infallible;

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};

use crate::model::carry::{Carry, CarryMapper};
use crate::params::ParamRecord;
use crate::params::walk::{self, At, Change};
use crate::stable_hash::stable_hash;

/// So many numbers between −1 and 1.
pub(super) fn numbers(seed: u64, len: usize) -> Vec<f64> {
    // SplitMix64.
    let mix = |index: usize| {
        let mut mixed = seed.wrapping_add((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    (0..len).map(|index| (mix(index) >> 11) as f64 / 2.0_f64.powi(52) - 1.0).collect()
}

/// A tensor of such numbers, in f64 and without a graph.
pub(super) fn tensor<const D: usize>(name: (&str, u64), scale: f64, shape: &[usize], device: &Device) -> Tensor<D> {
    let len = shape.iter().product();
    let values: Vec<f64> = numbers(stable_hash(&name), len).into_iter().map(|number| number * scale).collect();
    let device = device.clone().without_autodiff();
    Tensor::from_data(TensorData::new(values, Shape::from(shape.to_vec())), (&device, DType::F64))
}

/// The same values on a device, as a leaf that asks for a gradient if that is so, and the device has any.
pub(super) fn leaf<const D: usize>(values: Tensor<D>, device: &Device, asks: bool) -> Tensor<D> {
    let leaf = Tensor::from_data(values.into_data(), (device, DType::F64));
    if device.is_autodiff() { leaf.set_require_grad(asks) } else { leaf }
}

/// The model with numbers for the parameters of one segment, cut as the records say, and nothing in the place of others that have
/// no values. All ask for gradients, also what is not trained: these show whether it counts. Products of them with what they
/// enter are of about the size that `scale` is.
pub(super) fn with_numbers<M: Module>(
    model: M,
    records: &[ParamRecord],
    segment: usize,
    (number, scale): (u64, f64),
) -> M {
    struct PutNumbers {
        segment: usize,
        number: u64,
        scale: f64,
    }
    impl Change for PutNumbers {
        type Error = Infallible;

        fn float<const D: usize>(
            &mut self,
            At { record, .. }: At<'_>,
            param: Param<Tensor<D>>,
        ) -> Result<Param<Tensor<D>>, Infallible> {
            let (is_own, device) = (record.segments.contains(&self.segment), param.lazy_device());
            if !is_own {
                let nothing = || Tensor::empty([0; D], (&device, record.dtype));
                return Ok(if param.is_initialized() { param } else { Param::initialized(param.id, nothing()) });
            }
            let fan = match &record.global_shape[..] {
                [.., rows, _] => (3.0 / *rows as f64).sqrt(),
                _ => 1.0,
            };
            let name = (&*record.name, self.number);
            let mut values = tensor::<D>(name, self.scale * fan, &record.global_shape, &device);
            for (dim, range) in record.ranges().into_iter().enumerate() {
                values = values.slice_dim(dim, range);
            }
            Ok(Param::initialized(param.id, leaf(values, &device, true)))
        }
    }
    let Ok(model) = walk::change(model, records, &mut PutNumbers { segment, number, scale });
    model
}

/// A carry as leaves in f64: with its own values, or with numbers of this scale.
pub(super) fn entrance<C: Carry>(carry: C, number: u64, scale: Option<f64>) -> C {
    struct Enter {
        number: u64,
        scale: Option<f64>,
        tensors: u64,
    }
    impl CarryMapper for Enter {
        fn float<const D: usize>(&mut self, own: Tensor<D>) -> Tensor<D> {
            self.tensors += 1;
            let values = match self.scale {
                None => if own.is_autodiff() { own.clone().inner() } else { own.clone() }.cast(DType::F64),
                Some(scale) => {
                    let seed = stable_hash(&("carry", self.number, self.tensors));
                    tensor::<D>(("carry", seed), scale, &own.dims(), &own.device())
                }
            };
            leaf(values, &own.device(), true)
        }
    }
    carry.map(&mut Enter { number, scale, tensors: 0 })
}
