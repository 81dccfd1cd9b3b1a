//! The product of a linear layer, with its bias.

use burn::module::ParamId;
use burn::tensor::{Tensor, bf16, f16};
use epl_comm::{count_work, custom_vjp_needed};
use epl_core::Context;
use epl_core::model::precision::{cast, widen};

use crate::host::product::{Multiply, Product, product};
use crate::host::{self, ProductType, Real, View, column_sums, product_type};
use crate::over_rows::sum_over_rows;

/// The weight of a linear layer, as it lies: its gradient is made in the same layout, which is the parameter's.
#[derive(Clone, Debug)]
pub(crate) enum Weight {
    /// `[d_input, d_output]`
    Row(Tensor<2>),
    /// `[d_output, d_input]`
    Col(Tensor<2>),
}

impl From<Tensor<2>> for Weight {
    fn from(weight: Tensor<2>) -> Self {
        Self::Row(weight)
    }
}

impl Weight {
    /// As `[d_input, d_output]`.
    pub(crate) fn row_major(self) -> Tensor<2> {
        match self {
            Self::Row(weight) => weight,
            Self::Col(weight) => weight.transpose(),
        }
    }

    /// `d_input` and `d_output`.
    fn sizes(&self) -> [usize; 2] {
        let [first, second] = self.tensor().dims();
        if self.is_col() { [second, first] } else { [first, second] }
    }

    fn is_col(&self) -> bool {
        matches!(self, Self::Col(_))
    }

    pub(super) fn tensor(&self) -> &Tensor<2> {
        match self {
            Self::Row(weight) | Self::Col(weight) => weight,
        }
    }

    pub(super) fn into_tensor(self) -> Tensor<2> {
        match self {
            Self::Row(weight) | Self::Col(weight) => weight,
        }
    }

    /// Another tensor, in the layout of this one.
    pub(super) fn layout_of(&self) -> fn(Tensor<2>) -> Self {
        if self.is_col() { Self::Col } else { Self::Row }
    }
}

/// x W + b along the last dim, as one product of two matrices, in the type of the weight. The layer has looked at the last
/// dim before.
///
/// # Shapes
///
/// - x: `[..., d_input]`, weight: `[d_input, d_output]`, bias: `[d_output]`
/// - output: `[..., d_output]`
pub(crate) fn affine<const D: usize>(x: Tensor<D>, weight: impl Into<Weight>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let weight = weight.into();
    let dtype = weight.tensor().dtype();
    let mut shape = x.dims();
    let [d_input, d_output] = weight.sizes();
    let rows = shape[..D - 1].iter().product();
    shape[D - 1] = d_output;
    let x = shaped(cast(x, dtype), [rows, d_input]);
    let kind = product_type(weight.tensor());
    // A bias of another type is added to what is rounded.
    let (inside, after) = match (kind, bias) {
        (Some(_), Some(bias)) if bias.dtype() == dtype => (Some(bias), None),
        (_, bias) => (None, bias),
    };
    let y = match kind {
        Some(ProductType::F16) => on_host::<f16>(x, weight, inside),
        Some(ProductType::Bf16) => on_host::<bf16>(x, weight, inside),
        Some(ProductType::F32) => on_host::<f32>(x, weight, inside),
        Some(ProductType::F64) => on_host::<f64>(x, weight, inside),
        None => x.matmul(weight.row_major()),
    };
    let y = match after {
        Some(bias) => add_to_rows(y, bias),
        None => y,
    };
    shaped(y, shape)
}

/// A reshape, which is nothing in the graph where there is none to be made.
pub(super) fn shaped<const A: usize, const B: usize>(x: Tensor<A>, shape: [usize; B]) -> Tensor<B> {
    if x.dims()[..] == shape[..] { Tensor::from_bridge(x.into_bridge()) } else { x.reshape(shape) }
}

/// [`add_bias`] of a bias of columns: on a device its gradient is a sum in blocks of rows.
pub(crate) fn add_to_rows<const D: usize>(y: Tensor<D>, bias: Tensor<1>) -> Tensor<D> {
    if product_type(&y).is_some() || bias.dtype() != y.dtype() {
        return add_bias(y, bias.unsqueeze());
    }
    let shape = y.dims();
    let rows = shape[..D - 1].iter().product();
    shaped(plus_bias(shaped(y, [rows, shape[D - 1]]), bias), shape)
}

/// `y + bias`, with the gradient of [`bias_gradient`].
///
/// # Shapes
///
/// - y and output: `[rows, columns]`
/// - bias: `[columns]`
fn plus_bias(y: Tensor<2>, bias: Tensor<1>) -> Tensor<2> {
    custom_vjp_needed(
        (y, bias),
        |(y, bias), _| (y + bias.unsqueeze(), ()),
        |(), grad, [_, needs_bias]| {
            let of_bias = needs_bias.then(|| bias_gradient(&grad));
            (Some(grad), of_bias)
        },
    )
}

/// `y + bias` in the type of y. A bias of another type, such as one that alone stays in f32 under mixed precision, is added in
/// f32 at least, and the sum is rounded.
pub(crate) fn add_bias<const D: usize>(y: Tensor<D>, bias: Tensor<D>) -> Tensor<D> {
    let dtype = y.dtype();
    if bias.dtype() == dtype {
        return y + bias;
    }
    let y = widen(y);
    let bias = cast(bias, y.dtype());
    cast(y + bias, dtype)
}

/// Tells the operations of [`affine`], of all slices of the layer: `x` is the whole input's shape.
pub(crate) fn count_affine<const D: usize>(context: &Context, weight: ParamId, x: [usize; D], d_output: usize) {
    context.count_flops(Some(weight), 2.0 * x.iter().product::<usize>() as f64 * d_output as f64);
}

/// The product in host memory, as one operation.
fn on_host<T: Multiply>(x: Tensor<2>, weight: Weight, bias: Option<Tensor<1>>) -> Tensor<2> {
    let layout = weight.layout_of();
    let forward = move |x, weight, bias, needed: [bool; 2]| {
        let factors = Factors { x, weights: vec![layout(weight)] };
        (factors.product::<T>(0, bias), factors.saved(&needed))
    };
    let backward = |saved: Saved, grad, needed: [bool; 2]| {
        let (of_x, mut of_weights) = saved.backward::<T>(vec![Some(grad)], &needed);
        (of_x, of_weights.pop().flatten())
    };
    weighted((x, weight.into_tensor(), bias), forward, backward, bias_gradient)
}

/// An operation of an input, a weight and perhaps a bias. Its gradients are those of input and weight, as far as they are asked
/// for, of which forward is told, too, and that of the bias, which the output's gives alone.
pub(crate) fn weighted<const D: usize, const W: usize, S: Send + 'static>(
    (x, weight, bias): (Tensor<D>, Tensor<W>, Option<Tensor<1>>),
    forward: impl FnOnce(Tensor<D>, Tensor<W>, Option<Tensor<1>>, [bool; 2]) -> (Tensor<D>, S),
    backward: fn(S, Tensor<D>, [bool; 2]) -> (Option<Tensor<D>>, Option<Tensor<W>>),
    bias_gradient: fn(&Tensor<D>) -> Tensor<1>,
) -> Tensor<D> {
    let Some(bias) = bias else {
        return custom_vjp_needed((x, weight), |(x, weight), needed| forward(x, weight, None, needed), backward);
    };
    custom_vjp_needed(
        (x, weight, bias),
        |(x, weight, bias), [of_x, of_weight, _]| forward(x, weight, Some(bias), [of_x, of_weight]),
        move |saved, grad, [x, weight, bias]| {
            let of_bias = bias.then(|| bias_gradient(&grad));
            let (of_x, of_weight) = backward(saved, grad, [x, weight]);
            (of_x, of_weight, of_bias)
        },
    )
}

/// What is multiplied: an input, with each of some weights.
#[derive(Clone)]
pub(super) struct Factors {
    pub x: Tensor<2>,
    pub weights: Vec<Weight>,
}

/// What the gradients of the products need.
pub(super) struct Saved {
    /// Of no weight that is trained none.
    x: Option<Tensor<2>>,
    weights: Vec<Weight>,
}

impl Factors {
    /// With one of the weights.
    pub fn product<T: Multiply>(&self, index: usize, bias: Option<Tensor<1>>) -> Tensor<2> {
        let (x, weight, bias) = (&self.x, &self.weights[index], bias.map(View::<T>::new));
        let (left, right) = (View::<T>::of_matrices(x.clone()), View::<T>::of_matrices(weight.tensor().clone()));
        let right = if weight.is_col() { right.matrix().transposed() } else { right.matrix() };
        let shape = [x.dims()[0], right.sizes()[1]];
        let product = product(left.matrix(), right).plus(bias.as_ref().map(View::slice));
        count_work(|| product.flops());
        host::tensor(product.values(), shape, &x.device())
    }

    /// For backward, where gradients are asked of these: of the input, then of the weights.
    pub fn saved(self, needed: &[bool]) -> Saved {
        Saved { x: needed[1..].contains(&true).then_some(self.x), weights: self.weights }
    }
}

impl Saved {
    /// From the gradients gᵢ of the products, those that came: `Σ gᵢ Wᵢᵀ`, and each `xᵀ gᵢ`, at the same time. Which are needed is
    /// said of the input, then of the weights.
    pub fn backward<T: Multiply>(
        self,
        grads: Vec<Option<Tensor<2>>>,
        needed: &[bool],
    ) -> (Option<Tensor<2>>, Vec<Option<Tensor<2>>>) {
        let Self { x, weights } = self;
        let layouts: Vec<_> = weights.iter().map(|weight| (weight.is_col(), weight.tensor().dims())).collect();
        let device = weights[0].tensor().device();
        let rows = grads.iter().flatten().map(|grad| grad.dims()[0]).next().unwrap_or_default();
        let shape = [rows, weights[0].sizes()[0]];
        let view = |weight: Weight| View::<T>::of_matrices(weight.into_tensor());
        let weights: Vec<_> = weights.into_iter().map(view).collect();
        let grads: Vec<_> = grads.into_iter().map(|grad| grad.map(View::<T>::of_matrices)).collect();
        let (view, [needs_x, needed @ ..]) = (x.map(View::<T>::of_matrices), needed) else {
            unreachable!("it is said of the input first")
        };
        let (mut of_x, mut of_weights) = (Vec::new(), Vec::new());
        for (((grad, weight), (is_col, _)), needs_weight) in grads.iter().zip(&weights).zip(&layouts).zip(needed) {
            let (grad, weight) = (grad.as_ref().map(View::matrix), weight.matrix());
            of_x.extend(
                grad.filter(|_| *needs_x).map(|grad| product(grad, if *is_col { weight } else { weight.transposed() })),
            );
            let x = view.as_ref().filter(|_| *needs_weight).map(View::matrix);
            of_weights.push(grad.zip(x).map(|(grad, x)| {
                let [left, right] = if *is_col { [grad, x] } else { [x, grad] };
                product(left.transposed(), right)
            }));
        }
        of_x.iter().chain(of_weights.iter().flatten()).for_each(|product| count_work(|| product.flops()));
        // One is as much work as the other.
        let is_worth_it =
            of_x.first().is_some_and(Product::is_worth_a_thread) && of_weights.iter().any(Option::is_some);
        // A thread that is done with its product takes over what is left of another one.
        let parts = 2 * rayon::current_num_threads();
        let sum = || {
            let mut products = of_x.into_iter();
            let mut sum = products.next()?.values_in(parts);
            products.for_each(|product| product.add_to(&mut sum, parts));
            Some(host::tensor(sum, shape, &device))
        };
        let each = || {
            let values = |(product, (_, shape)): (Option<Product<T>>, &(bool, [usize; 2]))| {
                product.map(|product| host::tensor(product.values_in(parts), *shape, &device))
            };
            of_weights.into_iter().zip(&layouts).map(values).collect()
        };
        host::both(is_worth_it, sum, each)
    }
}

/// Elements of 16 bits that are made f32 at once for a sum.
const WIDENED_AT_ONCE: usize = 1 << 20;

/// The sum over the rows, in f32 at least.
pub(super) fn bias_gradient(grad: &Tensor<2>) -> Tensor<1> {
    fn sums<T: Real>(grad: Tensor<2>) -> Tensor<1> {
        let (device, [_, columns]) = (grad.device(), grad.dims());
        host::tensor(column_sums(View::<T>::new(grad).slice(), columns), [columns], &device)
    }
    match product_type(grad) {
        Some(ProductType::F64) => sums::<f64>(grad.clone()),
        Some(ProductType::F32) => sums::<f32>(grad.clone()),
        None => cast(sum_over_rows(widen(grad.clone())), grad.dtype()),
        Some(ProductType::F16 | ProductType::Bf16) => {
            let [rows, columns] = grad.dims();
            let at_once = (WIDENED_AT_ONCE / columns.max(1)).max(1);
            let of_part = |first: usize| {
                let part = grad.clone().narrow(0, first, at_once.min(rows - first));
                sums::<f32>(widen(part))
            };
            let sum = (0..rows).step_by(at_once).map(of_part).reduce(|sum, part| sum + part);
            cast(sum.unwrap_or_else(|| sums::<f32>(widen(grad.clone()))), grad.dtype())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::over_rows::tests::{assert_near, numbers};

    #[test]
    fn a_bias_has_the_gradient_of_a_broadcast_sum() {
        let [y, seed] = [numbers([600, 5]), numbers([600, 5]) * 3.0].map(Tensor::inner);
        let bias = numbers([1, 5]).inner().reshape([5]);
        let through = |add: fn(Tensor<2>, Tensor<1>) -> Tensor<2>| {
            let y = Tensor::from_inner(y.clone()).require_grad();
            let bias = Tensor::from_inner(bias.clone()).require_grad();
            let sum = add(y.clone(), bias.clone());
            let grads = (sum.clone() * Tensor::from_inner(seed.clone())).sum().backward();
            let of_y = y.grad(&grads).expect("it takes part");
            [sum.inner().flatten(0, 1), of_y.flatten(0, 1), bias.grad(&grads).expect("it takes part")]
        };
        let ours = through(plus_bias);
        let exact = through(|y, bias| y + bias.unsqueeze());
        ours.into_iter().zip(exact).for_each(|(ours, exact)| assert_near(ours, exact));
    }

    /// A frozen layer holds no input for a gradient that nobody asks for.
    #[test]
    fn the_input_is_kept_for_a_weight_that_is_trained() {
        let (x, grad) = (numbers([7, 4]).inner(), numbers([7, 3]).inner());
        let weight = Weight::Row(numbers([4, 3]).inner());
        let saved = |needed: &[bool]| Factors { x: x.clone(), weights: vec![weight.clone()] }.saved(needed);
        assert!(saved(&[true, false]).x.is_none() && saved(&[false, true]).x.is_some());
        let gradients = |needed| saved(needed).backward::<f64>(vec![Some(grad.clone())], needed);
        let (of_x, of_weight) = gradients(&[true, false]);
        let (exact, of_both) = gradients(&[true, true]);
        assert!(of_weight[0].is_none() && of_both[0].is_some());
        assert_near(of_x.unwrap().flatten(0, 1), exact.unwrap().flatten(0, 1));
    }
}
