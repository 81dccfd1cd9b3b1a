//! Residual connections, whose sums are made on all threads in host memory.
//!
//! Burn adds on one thread: the output to the input, and in backward the two gradients of the input. Here both are made by nodes of
//! their own, whose ways part at a [trunk](Trunk):
//!
//! ```text
//!              ┌──▶ input ──▶ f ──┐
//! x ──▶ trunk ─┤                  ├──▶ sum
//!              └──────────────────┘
//! ```

use core::ops::Add;

use burn::tensor::{Tensor, bf16, f16};
use epl_comm::custom_vjp;
use epl_core::model::precision::cast;
use multiversion::multiversion;

use crate::host::{self, ProductElement, ProductType, product_type};
use crate::invalid::refuse;
use crate::trunk::Trunk;

/// `x + f(x)`: a residual connection ([arXiv:1512.03385](https://arxiv.org/abs/1512.03385)). What the function gives is added in the
/// type of its input.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use epl_modules::residual;
///
/// let x = Tensor::<2>::ones([2, 3], &Device::flex().autodiff()).require_grad();
/// let y = residual(x.clone(), |x| x * 4.0);
/// assert_eq!(y.clone().sum().into_scalar::<f32>(), 30.0);
/// let gradient = x.grad(&y.backward()).unwrap();
/// assert_eq!(gradient.sum().into_scalar::<f32>(), 30.0);
/// ```
///
/// What `f` makes of its input is of one graph with the sum: it has one backward pass, with that of the sum.
///
/// # Shapes
///
/// - x, input and output of `f`, output: `[..., any]`
///
/// # Errors
///
/// Unwinds with an error when `f` gives another shape.
pub fn residual<const D: usize>(x: Tensor<D>, f: impl FnOnce(Tensor<D>) -> Tensor<D>) -> Tensor<D> {
    let (shape, dtype) = (x.dims(), x.dtype());
    let f = |x| {
        let output = cast(f(x), dtype);
        if output.dims() != shape {
            refuse(format!(
                "a residual connection adds what a function gives, of shape {:?}, to its input, of shape {shape:?}: let the \
                 function keep the shape, or bring the input to the other one and add the two",
                output.dims()
            ));
        }
        output
    };
    match product_type(&x) {
        Some(ProductType::F32) => on_host::<f32, D>(x, f),
        Some(ProductType::F64) => on_host::<f64, D>(x, f),
        Some(ProductType::F16) => on_host::<f16, D>(x, f),
        Some(ProductType::Bf16) => on_host::<bf16, D>(x, f),
        None => x.clone() + f(x),
    }
}

fn on_host<T: Addend, const D: usize>(x: Tensor<D>, f: impl FnOnce(Tensor<D>) -> Tensor<D>) -> Tensor<D> {
    let grads = Trunk::<D>::new(2);
    let [of_sum, of_input] = [0, 1].map(|way| {
        let grads = grads.clone();
        move |grad| grads.leave(way, grad)
    });
    let mut value = None;
    let trunk = custom_vjp(
        (x,),
        |(x,)| {
            value = Some(x.clone());
            (Trunk::<D>::value(&x), ())
        },
        move |(), _| (grads.take().into_iter().flatten().reduce(added::<T, D>),),
    );
    let value = value.expect("the forward function has run");
    let input = |_| (value.clone(), ());
    let output = f(custom_vjp((trunk.clone(),), input, move |(), grad| (Some(of_input(grad)),)));
    let sum = |(_, output)| (added::<T, D>(output, value.clone()), ());
    custom_vjp((trunk, output), sum, move |(), grad: Tensor<D>| (Some(of_sum(grad.clone())), Some(grad)))
}

/// What is added, element by element.
trait Addend: ProductElement + Add<Output = Self> {}
impl<T: ProductElement + Add<Output = T>> Addend for T {}

/// The sum, over the first.
fn added<T: Addend, const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
    host::over_first(a, b, add::<T>)
}

#[multiversion(targets = "simd")]
fn add<T: Addend>(a: &mut [T], b: &[T]) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a = *a + *b);
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device};

    use super::*;

    type Function = fn(Tensor<2>) -> Tensor<2>;

    fn numbers(shape: [usize; 2], dtype: DType, device: &Device) -> Tensor<2> {
        let values: Vec<f64> = (0..shape[0] * shape[1]).map(|i| (i as f64 * 0.7).sin()).collect();
        Tensor::from_data(burn::tensor::TensorData::new(values, shape), (device, dtype))
    }

    fn values<const D: usize>(x: Tensor<D>) -> Vec<f64> {
        x.into_data().iter().collect()
    }

    /// One that reads its input, one that does not, the identity: with each of two gradients there is one sum at most, of one order.
    const FUNCTIONS: [Function; 3] = [|x| x.sin(), |x| x.zeros_like().detach(), |x| x];

    #[test]
    fn a_sum_and_its_gradients_are_burns() {
        let device = Device::flex().autodiff();
        for shape in [[0, 3], [1, 1], [5, 7], [130, 257]] {
            for (dtype, f) in [DType::F64, DType::F32, DType::BF16, DType::F16]
                .into_iter()
                .flat_map(|dtype| FUNCTIONS.map(|f| (dtype, f)))
            {
                let grads = |sum: &dyn Fn(Tensor<2>) -> Tensor<2>| {
                    let x = numbers(shape, dtype, &device).require_grad();
                    // Of other values than ones, and of an input that is no leaf.
                    let y = sum(x.clone() * 3.0);
                    let grad = x.grad(&(y.clone() * numbers(shape, dtype, &device).sin()).sum().backward());
                    (values(y), values(grad.unwrap()))
                };
                assert_eq!(grads(&|x| residual(x, f)), grads(&|x| x.clone() + f(x)), "{shape:?} of {dtype:?}");
            }
        }
    }

    #[test]
    fn what_is_not_contiguous_or_not_tracked_is_added() {
        for device in [Device::flex(), Device::flex().autodiff()] {
            let x = numbers([40, 7], DType::F32, &device);
            let sum = residual(x.clone().transpose(), |x| x * 2.0);
            assert_eq!(values(sum), values(x.clone().transpose() * 3.0));
            assert_eq!(values(residual(x.clone(), |x| x.transpose().cos().transpose())), values(x.clone() + x.cos()));
        }
    }

    #[test]
    fn one_way_alone_has_its_gradient() {
        let device = Device::flex().autodiff();
        let grad = |of_sum: bool| {
            let x = numbers([3, 4], DType::F64, &device).require_grad();
            let mut inside = None;
            let sum = residual(x.clone(), |x| {
                inside = Some(x.clone() * 5.0);
                x.detach()
            });
            values(x.grad(&if of_sum { sum } else { inside.unwrap() }.sum().backward()).unwrap())
        };
        assert_eq!(grad(true), [1.0; 12]);
        assert_eq!(grad(false), [5.0; 12]);
    }

    #[test]
    fn another_type_is_cast_and_another_shape_refused() {
        let x = || numbers([3, 4], DType::BF16, &Device::flex());
        let sum = residual(x(), |x| x.cast(DType::F64) * 2.0);
        assert_eq!((sum.dtype(), values(sum)), (DType::BF16, values(x() + x() * 2.0)));
        let told = epl_comm::catch(|| residual(x(), |x| x.narrow(0, 0, 1))).unwrap_err().to_string();
        assert!(told.contains("of shape [1, 4], to its input, of shape [3, 4]"), "{told}");
    }
}
