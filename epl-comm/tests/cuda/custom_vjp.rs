//! Custom operations on CUDA tensors, whose operations are fused: the same gradients as on the host.

use burn::tensor::{Device, Tensor};
use epl_comm::custom_vjp;

use crate::model::Array;

/// x³
fn cube(x: Tensor<2>) -> Tensor<2> {
    custom_vjp((x,), |(x,)| (x.clone() * x.clone() * x.clone(), x), |x, g| (Some(g * x.clone() * x * 3.0),))
}

/// Σ over the last dim of a (n × m) times b (m)
fn product(a: Tensor<2>, b: Tensor<1>) -> Tensor<1> {
    custom_vjp(
        (a, b),
        |(a, b)| {
            let [n, m] = a.dims();
            ((a.clone() * b.clone().reshape([1, m])).sum_dim(1).reshape([n]), (a, b))
        },
        |(a, b), g| {
            let [n, m] = a.dims();
            let g = g.reshape([n, 1]);
            (Some(g.clone() * b.reshape([1, m])), Some((g * a).sum_dim(0).reshape([m])))
        },
    )
}

/// A loss with operations that fuse before, between and behind, and its gradients.
fn gradients(device: &Device, shape: [usize; 2]) -> [Array; 3] {
    let leaf = |seed: usize, shape: &[usize]| Array::sample(seed, shape).map(|value| value / 40.0);
    let dtype = burn::tensor::DType::F32;
    let a = leaf(1, &shape).tensor::<2, _>(dtype, device).require_grad();
    let b = leaf(2, &shape[1..]).tensor::<1, _>(dtype, device).require_grad();
    let before = (a.clone() * 0.5 + 0.1).exp();
    let between = (cube(before) - 1.0).tanh();
    let y = product(between.clone() * between, b.clone() * 2.0);
    let loss = (y.clone() * y + 3.0).log().sum();
    let gradients = loss.clone().backward();
    [Array::of(loss), Array::of(a.grad(&gradients).unwrap()), Array::of(b.grad(&gradients).unwrap())]
}

fn check(found: &Array, expected: &Array) {
    assert_eq!(found.shape, expected.shape);
    let most = expected.values.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
    let off = found.values.iter().zip(&expected.values).fold(0.0_f64, |most, (a, b)| most.max((a - b).abs()));
    assert!(off <= 1e-5 * most, "{off} of {most}");
}

#[test]
#[ignore = "needs a GPU"]
fn gradients_are_those_of_the_host() {
    for shape in [[3, 4], [64, 512], [1000, 33]] {
        let expected = gradients(&Device::flex().autodiff(), shape);
        for device in [Device::cuda(0).autodiff(), Device::cuda(0).autodiff().gradient_checkpointing()] {
            for _ in 0..5 {
                let found = gradients(&device, shape);
                found.iter().zip(&expected).for_each(|(found, expected)| check(found, expected));
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn nothing_stays_in_the_graph() {
    let device = Device::cuda(0).autodiff();
    for _ in 0..200 {
        gradients(&device, [16, 16]);
    }
}
