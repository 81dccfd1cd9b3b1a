//! Products of one input with several weights, such as that of queries, keys and values.
//!
//! Apart, each has a gradient of the input of its own, which Burn adds up on one thread. In host memory all gradients are made at once,
//! and those of the input as one sum, to which each product is added; in 16 bits, where such a sum would be rounded with each, apart.
//! The products part at a [trunk](Trunk):
//!
//! ```text
//!               ┌──▶ x W₀
//! x, W₀, W₁ ──▶ trunk
//!               └──▶ x W₁
//! ```

use burn::tensor::Tensor;
use epl_comm::{custom_vjp, custom_vjp_needed};
use epl_core::model::precision::cast;

use super::affine::{Factors, Saved, Weight, affine, bias_gradient, shaped};
use crate::host::product::Multiply;
use crate::host::{HostFloat, host_float};
use crate::trunk::Trunk;

/// The products of one layer, of two or of three with one input: each as [`affine`] gives it.
///
/// # Shapes
///
/// - x: `[..., d_input]`, weights: `[d_input, d_output]` or as they lie, biases: `[d_output]`
/// - outputs: `[..., d_output]`
pub(crate) fn affine_each<const D: usize, const N: usize>(
    x: Tensor<D>,
    layers: [(Weight, Option<Tensor<1>>); N],
) -> [Tensor<D>; N] {
    const { assert!(1 <= N && N <= 3, "a trunk has no more weights than three") };
    let first = layers[0].0.tensor();
    let are_alike = layers.iter().all(|(weight, bias)| {
        let dtypes = [Some(weight.tensor().dtype()), bias.as_ref().map(Tensor::dtype)];
        dtypes.into_iter().flatten().all(|dtype| dtype == first.dtype())
    });
    match host_float(first).filter(|_| are_alike && N > 1) {
        Some(HostFloat::Single) => on_host::<f32, D, N>(x, layers),
        Some(HostFloat::Double) => on_host::<f64, D, N>(x, layers),
        // An input of another type is cast by each: its gradients are added in its own.
        None => layers.map(|(weight, bias)| affine(x.clone(), weight, bias)),
    }
}

fn on_host<T: Multiply, const D: usize, const N: usize>(
    x: Tensor<D>,
    layers: [(Weight, Option<Tensor<1>>); N],
) -> [Tensor<D>; N] {
    let shape = x.dims();
    let rows = shape[..D - 1].iter().product();
    let x = shaped(cast(x, layers[0].0.tensor().dtype()), [rows, shape[D - 1]]);
    let grads = Trunk::<2>::new(N);
    let (weights, biases): (Vec<_>, Vec<_>) = layers.into_iter().unzip();
    let (trunk, factors) = trunk::<T>(x, weights, grads.clone());
    let mut outputs = biases.into_iter().enumerate().map(|(index, bias)| {
        let grads = grads.clone();
        let leave = move |grad| grads.leave(index, grad);
        let forward = |bias| (factors.product::<T>(index, bias), ());
        let y = match bias {
            None => custom_vjp((trunk.clone(),), |_| forward(None), move |(), grad| (Some(leave(grad)),)),
            Some(bias) => custom_vjp_needed(
                (trunk.clone(), bias),
                |(_, bias), _| forward(Some(bias)),
                move |(), grad: Tensor<2>, [asks_trunk, asks_bias]| {
                    let of_bias = asks_bias.then(|| bias_gradient(&grad));
                    (asks_trunk.then(|| leave(grad)), of_bias)
                },
            ),
        };
        let mut shape = shape;
        shape[D - 1] = y.dims()[1];
        shaped(y, shape)
    });
    core::array::from_fn(|_| outputs.next().expect("one for each bias, or for none"))
}

/// What all products depend on, whose gradients are made of theirs; and the input and the weights without graph.
fn trunk<T: Multiply>(x: Tensor<2>, weights: Vec<Weight>, grads: Trunk<2>) -> (Tensor<1>, Factors) {
    let layouts: Vec<_> = weights.iter().map(Weight::layout_of).collect();
    let mut plain = None;
    let mut forward = |x: Tensor<2>, weights: Vec<Tensor<2>>, needed: &[bool]| {
        let value = Trunk::<2>::value(&x);
        let weights = weights.into_iter().zip(&layouts).map(|(weight, layout)| layout(weight)).collect();
        let factors = Factors { x, weights };
        plain = Some(factors.clone());
        (value, factors.saved(needed))
    };
    let backward = move |saved: Saved, needed: &[bool]| {
        let (of_x, of_weights) = saved.backward::<T>(grads.take(), needed);
        (of_x, of_weights.into_iter())
    };
    let mut weights = weights.into_iter().map(Weight::into_tensor);
    let mut next = || weights.next().expect("two weights, or three");
    let trunk = match layouts.len() {
        2 => custom_vjp_needed(
            (x, next(), next()),
            |(x, a, b), needed| forward(x, vec![a, b], &needed),
            move |saved, _: Tensor<1>, needed| {
                let (of_x, mut of) = backward(saved, &needed);
                let mut next = || of.next().flatten();
                (of_x, next(), next())
            },
        ),
        _ => custom_vjp_needed(
            (x, next(), next(), next()),
            |(x, a, b, c), needed| forward(x, vec![a, b, c], &needed),
            move |saved, _: Tensor<1>, needed| {
                let (of_x, mut of) = backward(saved, &needed);
                let mut next = || of.next().flatten();
                (of_x, next(), next(), next())
            },
        ),
    };
    (trunk, plain.expect("the forward function has run"))
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device, TensorData};

    use super::*;

    fn numbers<const D: usize>(shape: [usize; D], step: f64, (device, dtype): (&Device, DType)) -> Tensor<D> {
        let values: Vec<f64> = (0..shape.iter().product()).map(|i: usize| (i as f64 * step).sin()).collect();
        Tensor::from_data(TensorData::new(values, shape), (device, dtype))
    }

    fn values<const D: usize>(x: Tensor<D>) -> Vec<f64> {
        x.into_data().iter().collect()
    }

    /// All outputs and gradients of three layers, of which one has no bias and one lies by columns; of outputs that are used.
    fn all(is_one: bool, used: [bool; 3], rows: [usize; 2], dtype: DType) -> Vec<Vec<f64>> {
        let device = Device::flex().autodiff();
        let at = (&device, dtype);
        let x = numbers([rows[0], rows[1], 5], 0.7, at).require_grad();
        let weights = [[5, 3], [4, 5], [5, 3]].map(|shape| numbers(shape, 1.3, at).require_grad());
        let biases = [3, 4].map(|size| numbers([size], 0.4, at).require_grad());
        let [a, b, c] = weights.clone();
        let layers = [
            (Weight::Row(a), Some(biases[0].clone())),
            (Weight::Col(b), Some(biases[1].clone())),
            (Weight::Row(c), None),
        ];
        let outputs = match is_one {
            true => affine_each(x.clone(), layers),
            false => layers.map(|(weight, bias)| affine(x.clone(), weight, bias)),
        };
        let mut found: Vec<_> = outputs.iter().cloned().map(values).collect();
        let used = outputs.into_iter().zip(used).filter(|(_, used)| *used);
        let loss = used.map(|(y, _)| (y.clone() * y.cos()).sum()).reduce(|sum, loss| sum + loss).unwrap();
        let grads = loss.backward();
        let of = |grad: Option<Vec<f64>>| grad.unwrap_or_default();
        found.push(of(x.grad(&grads).map(values)));
        found.extend(weights.iter().map(|weight| of(weight.grad(&grads).map(values))));
        found.extend(biases.iter().map(|bias| of(bias.grad(&grads).map(values))));
        found
    }

    #[test]
    fn they_are_the_products_apart_and_their_gradients() {
        for rows in [[0, 3], [1, 1], [2, 7], [30, 20]] {
            for used in [[true; 3], [true, false, true], [false, true, false]] {
                for (dtype, limit) in [(DType::F64, 1e-12), (DType::F32, 2e-5), (DType::BF16, 0.0)] {
                    let [ours, apart] = [true, false].map(|is_one| all(is_one, used, rows, dtype));
                    for (index, (ours, apart)) in ours.iter().zip(&apart).enumerate() {
                        assert_eq!(ours.len(), apart.len(), "{index} of {rows:?}, used {used:?}");
                        let size = apart.iter().fold(1.0_f64, |size, x| size.max(x.abs()));
                        let far = epl_testing::largest(ours.iter().zip(apart).map(|(a, b)| (a - b).abs()));
                        assert!(far <= limit * size, "{index} of {rows:?}, used {used:?}, {dtype:?}: {far:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn gradients_of_an_input_of_a_wider_type_are_added_in_its_own() {
        let device = Device::flex().autodiff();
        let one = |value: f64, dtype: DType| Tensor::<2>::from_data([[value]], (&device, dtype));
        let x = one(1.0, DType::F32).require_grad();
        let [a, b] = affine_each(x.clone(), [256.0, 1.0].map(|w| (Weight::Row(one(w, DType::BF16)), None)));
        let grads = (a.sum().cast(DType::F32) + b.sum().cast(DType::F32)).backward();
        // In 16 bits it would be 256.
        assert_eq!(x.grad(&grads).map(values), Some(vec![257.0]));
    }

    #[test]
    fn what_is_not_tracked_has_no_gradient() {
        let at = (&Device::flex().autodiff(), DType::F64);
        let (x, weight) = (numbers([4, 5], 0.7, at), || numbers([5, 3], 1.3, at));
        let trained = weight().require_grad();
        let [a, b] = affine_each(x.clone(), [(Weight::Row(trained.clone()), None), (Weight::Row(weight()), None)]);
        let grads = (a + b).sum().backward();
        assert!(x.grad(&grads).is_none() && trained.grad(&grads).is_some());
        let at = (&Device::flex(), DType::F64);
        let [a, b] = [3, 2].map(|columns| (Weight::Row(numbers([5, columns], 1.3, at)), None));
        let [a, b] = affine_each(numbers([2, 4, 5], 0.7, at), [a, b]);
        assert_eq!((a.dims(), b.dims()), ([2, 4, 3], [2, 4, 2]));
    }
}
