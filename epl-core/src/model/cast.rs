//! Casts between f32 and 16 bits. In host memory a cast is one loop over vectors on the threads of the pool; Flex's goes element by
//! element, on one thread.

use core::mem::MaybeUninit;

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::{Bytes, DType, Element, Tensor, bf16, f16};
use bytemuck::Pod;
use epl_comm::custom_vjp;
use half::slice::HalfFloatSliceExt;
use multiversion::multiversion;
use rayon::prelude::*;

use crate::offload::is_host;

/// The tensor with elements of this type, as [`Tensor::cast`] makes it; its gradient returns in the type that it had.
pub fn cast<const D: usize>(x: Tensor<D>, dtype: DType) -> Tensor<D> {
    let from = x.dtype();
    match loop_of(from, dtype) {
        None => x.cast(dtype),
        Some(_) if !is_host(&x.device()) => x.cast(dtype),
        Some(cast) => custom_vjp(
            (x,),
            move |(x,)| (of_flex(x, cast, dtype), ()),
            move |(), gradient| {
                let back = loop_of(dtype, from).expect("there and back");
                (Some(of_flex(gradient, back, from)),)
            },
        ),
    }
}

/// From the memory of one tensor to that of the other.
type Cast = fn(&FlexTensor) -> Bytes;

fn loop_of(from: DType, to: DType) -> Option<Cast> {
    match (from, to) {
        (DType::F32, DType::BF16) => Some(|x| each(x, narrow)),
        (DType::BF16, DType::F32) => Some(|x| each(x, widen)),
        (DType::F32, DType::F16) => Some(|x| each::<f32, f16>(x, |x, y| y.convert_from_f32_slice(x))),
        (DType::F16, DType::F32) => Some(|x| each::<f16, f32>(x, |x, y| x.convert_to_f32_slice(y))),
        _ => None,
    }
}

/// Casts a tensor of Flex, which keeps its layout where its memory holds no more than its elements.
fn of_flex<const D: usize>(x: Tensor<D>, cast: Cast, dtype: DType) -> Tensor<D> {
    let x = x.try_into_primitive::<Flex>().expect("in host memory, and without a graph");
    let stored = x.bytes().len() / x.dtype().size();
    let x = if stored <= x.layout().num_elements() { x } else { x.to_contiguous() };
    Tensor::from_primitive::<Flex>(FlexTensor::new(cast(&x), x.layout().clone(), dtype))
}

/// Elements of a task.
const BLOCK: usize = 1 << 13;

/// All that a tensor's memory holds, block by block.
fn each<A: Element + Pod, B: Element + Pod>(x: &FlexTensor, cast: impl Fn(&[A], &mut [B]) + Sync) -> Bytes {
    let from = x.storage::<A>();
    let mut to = Vec::with_capacity(from.len());
    let of_block = |to: &mut [MaybeUninit<B>], from: &[A]| {
        // A block that is zeroed here is in the core's cache when it is written again; all of it at once would not be.
        to.fill(MaybeUninit::zeroed());
        // SAFETY: its elements are zeros, which all plain types have.
        cast(from, unsafe { core::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<B>(), to.len()) });
    };
    let memory = &mut to.spare_capacity_mut()[..from.len()];
    match from.len() > BLOCK {
        true => memory.par_chunks_mut(BLOCK).zip(from.par_chunks(BLOCK)).for_each(|(to, from)| of_block(to, from)),
        false => of_block(memory, from),
    }
    // SAFETY: the blocks are all of it, and each was written.
    unsafe { to.set_len(from.len()) };
    Bytes::from_elems(to)
}

#[multiversion(targets = "simd")]
fn widen(from: &[bf16], to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| {
        let bits = u32::from(from.to_bits()) << 16;
        let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
        *to = f32::from_bits(if is_nan { bits | 0x40_0000 } else { bits });
    });
}

/// To the nearest, of two the even one; what is no number stays none.
#[multiversion(targets = "simd")]
fn narrow(from: &[f32], to: &mut [bf16]) {
    to.iter_mut().zip(from).for_each(|(to, from)| {
        let bits = from.to_bits();
        let nearest = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet = (bits >> 16) | 0x40;
        *to = bf16::from_bits(if from.is_nan() { quiet } else { nearest } as u16);
    });
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn bits(x: &Tensor<2>) -> Vec<u8> {
        x.clone().into_data().as_bytes().to_vec()
    }

    /// All kinds of numbers: signs, exponents, halves between two of 16 bits, infinities, NaNs.
    fn values() -> Vec<f32> {
        let of = |number: u32| f32::from_bits(number.wrapping_mul(0x9e37_79b9) ^ (number << 15 & 0xffff_8000));
        (0..200_000)
            .map(of)
            .chain([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-45, 65_519.9, 65_520.0])
            .collect()
    }

    #[test]
    fn bits_are_those_of_burns_cast_whatever_the_layout() {
        let values = values();
        let x = Tensor::<1>::from_floats(values.as_slice(), &Device::flex()).reshape([8, values.len() / 8]);
        let shapes = [x.clone(), x.clone().transpose(), x.clone().narrow(1, 3, 7), x.clone().narrow(0, 1, 2).flip([1])];
        let expanded = x.narrow(0, 2, 1).expand([3, values.len() / 8]);
        for x in shapes.into_iter().chain([expanded, Tensor::zeros([0, 4], &Device::flex())]) {
            for dtype in [DType::BF16, DType::F16] {
                let (ours, burns) = (cast(x.clone(), dtype), x.clone().cast(dtype));
                assert_eq!((ours.dims(), ours.dtype()), (x.dims(), dtype));
                assert!(bits(&ours) == bits(&burns), "{:?} to {dtype:?}", x.dims());
                assert!(
                    bits(&cast(ours, DType::F32)) == bits(&burns.cast(DType::F32)),
                    "{:?} from {dtype:?}",
                    x.dims()
                );
            }
        }
    }

    #[test]
    fn all_sixteen_bits_are_widened_as_burn_does() {
        let patterns = || 0..=u16::MAX;
        let halves: [Tensor<1>; 2] = [
            Tensor::from_data(
                patterns().map(bf16::from_bits).collect::<Vec<_>>().as_slice(),
                (&Device::flex(), DType::BF16),
            ),
            Tensor::from_data(
                patterns().map(f16::from_bits).collect::<Vec<_>>().as_slice(),
                (&Device::flex(), DType::F16),
            ),
        ];
        for x in halves.map(|x| x.reshape([256, 256])) {
            assert!(bits(&cast(x.clone(), DType::F32)) == bits(&x.clone().cast(DType::F32)), "{:?}", x.dtype());
        }
    }

    #[test]
    fn a_gradient_returns_in_the_type_of_its_input() {
        let device = Device::flex().autodiff();
        let x = Tensor::<2>::from_floats([[1.0, 2.0], [3.0, 4.0]], &device).require_grad();
        let y = cast(cast(x.clone().transpose(), DType::BF16), DType::F32) * 3.0;
        let gradient = x.grad(&y.sum().backward()).unwrap();
        assert_eq!((gradient.dtype(), gradient.into_data().iter::<f32>().collect()), (DType::F32, vec![3.0; 4]));
    }
}
