//! Custom operations against finite differences, and what they keep alive.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use burn::tensor::{DType, Device, Tensor};
use epl_comm::{Error, catch, custom_vjp, custom_vjp_needed};

use crate::model::Array;

fn devices() -> [Device; 2] {
    [Device::flex().autodiff(), Device::flex().autodiff().gradient_checkpointing()]
}

fn leaf<const D: usize>(seed: usize, shape: [usize; D], device: &Device) -> Tensor<D> {
    Array::sample(seed, &shape).map(|value| value / 10.0 + 0.05).tensor::<D, _>(DType::F64, device).require_grad()
}

/// Compares gradients of a sum with central differences. `f` maps arrays (on the device given) to a scalar.
fn check(arrays: &[Array], gradients: &[Array], f: impl Fn(&[Array]) -> f64) {
    const STEP: f64 = 1e-5;
    for (which, gradient) in gradients.iter().enumerate() {
        for i in 0..gradient.values.len() {
            let mut moved = arrays.to_vec();
            moved[which].values[i] += STEP;
            let above = f(&moved);
            moved[which].values[i] -= 2.0 * STEP;
            let difference = (above - f(&moved)) / (2.0 * STEP);
            let error = (difference - gradient.values[i]).abs();
            assert!(
                error < 1e-6 * (1.0 + difference.abs()),
                "input {which}, element {i}: {difference} and {}",
                gradient.values[i]
            );
        }
    }
}

fn scalar(x: Tensor<1>) -> f64 {
    x.into_data().iter::<f64>().sum()
}

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
            let y = (a.clone() * b.clone().reshape([1, m])).sum_dim(1).reshape([n]);
            (y, (a, b))
        },
        |(a, b), g| {
            let [n, m] = a.dims();
            let g = g.reshape([n, 1]);
            (Some(g.clone() * b.reshape([1, m])), Some((g * a).sum_dim(0).reshape([m])))
        },
    )
}

/// a · b + c, element by element, in two dims
fn fused(a: Tensor<1>, b: Tensor<2>, c: Tensor<3>) -> Tensor<2> {
    custom_vjp(
        (a, b, c),
        |(a, b, c)| {
            let [n, m] = b.dims();
            (a.clone().reshape([n, 1]) * b.clone() + c.reshape([n, m]), (a, b))
        },
        |(a, b), g| {
            let [n, m] = b.dims();
            let a_gradient = (g.clone() * b).sum_dim(1).reshape([n]);
            (Some(a_gradient), Some(g.clone() * a.reshape([n, 1])), Some(g.reshape([1, n, m])))
        },
    )
}

/// a · b + c · d
fn four(a: Tensor<1>, b: Tensor<1>, c: Tensor<1>, d: Tensor<1>) -> Tensor<1> {
    custom_vjp(
        (a, b, c, d),
        |(a, b, c, d)| (a.clone() * b.clone() + c.clone() * d.clone(), [a, b, c, d]),
        |[a, b, c, d], g| (Some(g.clone() * b), Some(g.clone() * a), Some(g.clone() * d), Some(g * c)),
    )
}

#[test]
fn one_input() {
    for device in devices() {
        let x = leaf(1, [3, 4], &device);
        let grads = cube(x.clone() * 0.5).exp().sum().backward();
        let gradient = Array::of(x.grad(&grads).unwrap());
        let inner = Device::flex();
        check(&[Array::of(x)], &[gradient], |x| {
            scalar(cube(x[0].tensor::<2, _>(DType::F64, &inner) * 0.5).exp().sum())
        });
    }
}

#[test]
fn two_inputs_of_different_numbers_of_dims() {
    for device in devices() {
        let (a, b) = (leaf(1, [3, 4], &device), leaf(2, [4], &device));
        let y = product(a.clone(), b.clone() * 3.0);
        let grads = (y.clone() * y).sum().backward();
        let gradients = [Array::of(a.grad(&grads).unwrap()), Array::of(b.grad(&grads).unwrap())];
        let inner = Device::flex();
        check(&[Array::of(a), Array::of(b)], &gradients, |x| {
            let y = product(x[0].tensor(DType::F64, &inner), x[1].tensor::<1, _>(DType::F64, &inner) * 3.0);
            scalar((y.clone() * y).sum())
        });
    }
}

#[test]
fn three_inputs() {
    for device in devices() {
        let (a, b, c) = (leaf(1, [3], &device), leaf(2, [3, 2], &device), leaf(3, [1, 3, 2], &device));
        let y = fused(a.clone(), b.clone(), c.clone());
        let grads = (y.clone() * y).sum().backward();
        let gradients = [
            Array::of(a.grad(&grads).unwrap()),
            Array::of(b.grad(&grads).unwrap()),
            Array::of(c.grad(&grads).unwrap()),
        ];
        let inner = Device::flex();
        check(&[Array::of(a), Array::of(b), Array::of(c)], &gradients, |x| {
            let d = DType::F64;
            let y = fused(x[0].tensor(d, &inner), x[1].tensor(d, &inner), x[2].tensor(d, &inner));
            scalar((y.clone() * y).sum())
        });
    }
}

#[test]
fn four_inputs_one_of_them_used_twice() {
    for device in devices() {
        let inputs = [1, 2, 3].map(|seed| leaf(seed, [5], &device));
        let [a, b, c] = inputs.clone();
        let grads = four(a.clone(), b, c, a).exp().sum().backward();
        let gradients = inputs.each_ref().map(|input| Array::of(input.grad(&grads).unwrap()));
        let inner = Device::flex();
        check(&inputs.map(Array::of), &gradients, |x| {
            let [a, b, c] = [0, 1, 2].map(|i| x[i].tensor::<1, _>(DType::F64, &inner));
            scalar(four(a.clone(), b, c, a).exp().sum())
        });
    }
}

#[test]
fn a_missing_gradient_is_none_for_a_leaf_and_zero_before_other_operations() {
    for device in devices() {
        let (a, b, c) = (leaf(1, [3], &device), leaf(2, [3], &device), leaf(3, [3], &device));
        let y = custom_vjp((a.clone(), b.clone() * 2.0, c.clone()), |(_, _, c)| (c, ()), |(), g| (None, None, Some(g)));
        let grads = y.sum().backward();
        assert!(a.grad(&grads).is_none());
        assert_eq!(Array::of(b.grad(&grads).unwrap()).values, [0.0; 3]);
        assert_eq!(Array::of(c.grad(&grads).unwrap()).values, [1.0; 3]);
    }
}

#[test]
fn tracked_untracked_and_plain_inputs_mix() {
    for device in devices() {
        let tracked = leaf(1, [3, 2], &device);
        let untracked: Tensor<1> = Array::sample(2, &[2]).tensor(DType::F64, &device);
        let plain: Tensor<1> = Array::sample(2, &[2]).tensor(DType::F64, &Device::flex());
        let results = [untracked, plain].map(|b| {
            let y = product(tracked.clone(), b);
            assert!(y.is_tracked());
            assert_eq!(y.gradient_checkpointing_strategy(), device.gradient_checkpointing_strategy());
            let grads = y.clone().sum().backward();
            (Array::of(y), Array::of(tracked.grad(&grads).unwrap()))
        });
        assert_eq!(results[0], results[1]);
        // The other way round: the tracked input is not the one that decides.
        let (a, b) = (Array::sample(3, &[3, 2]).tensor::<2, _>(DType::F64, &Device::flex()), leaf(4, [2], &device));
        let grads = product(a.clone(), b.clone()).sum().backward();
        assert_eq!(Array::of(b.grad(&grads).unwrap()), Array::of(a.sum_dim(0).reshape([2])));
    }
}

#[test]
fn without_a_tracked_input_nothing_is_tracked() {
    for device in devices() {
        let x: Tensor<2> = Array::sample(1, &[2, 2]).tensor(DType::F64, &device);
        let y = cube(x.clone());
        assert!(y.is_autodiff() && !y.is_tracked());
        assert_eq!(Array::of(y), Array::of(x.clone() * x.clone() * x));
    }
    let plain: Tensor<2> = Array::sample(1, &[2, 2]).tensor(DType::F64, &Device::flex());
    assert!(!cube(plain).is_autodiff());
}

#[test]
fn the_default_element_type_and_f32_work() {
    let device = Device::flex().autodiff();
    let x = Tensor::<2>::ones([2, 2], &device).require_grad();
    let grads = cube(x.clone()).sum().backward();
    assert_eq!(Array::of(x.grad(&grads).unwrap()).values, [3.0; 4]);
    let x = Tensor::<2>::ones([2, 2], (&device, DType::F32)).require_grad();
    assert_eq!(x.grad(&cube(x.clone()).sum().backward()).unwrap().dtype(), DType::F32);
}

#[test]
fn different_checkpointing_is_an_error() {
    let [a, b] = devices();
    let error = catch(|| product(leaf(1, [3, 2], &a), leaf(2, [2], &b))).unwrap_err();
    assert!(matches!(&error, Error::Invalid { message } if message.contains("gradient checkpointing")), "{error}");
}

#[test]
fn a_gradient_of_another_shape_is_an_error() {
    let x = leaf(1, [3], &devices()[0]);
    let y = custom_vjp((x,), |(x,)| (x, ()), |(), _| (Some(Tensor::ones([2], (&Device::flex(), DType::F64))),));
    let error = catch(|| drop(y.sum().backward())).unwrap_err();
    assert!(error.to_string().contains("a gradient of shape [2] for an input of shape [3]"), "{error}");
}

#[test]
fn a_gradient_of_another_element_type_is_an_error() {
    let x = leaf(1, [3], &devices()[0]);
    let y = custom_vjp((x,), |(x,)| (x, ()), |(), g| (Some(g.cast(DType::F32)),));
    let error = catch(|| drop(y.sum().backward())).unwrap_err();
    assert!(error.to_string().ends_with("a gradient of f32 for an input of f64; cast() it to f64"), "{error}");
}

/// A saved value that counts how many of it live.
struct Counted(Arc<AtomicUsize>, Tensor<1>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>, x: Tensor<1>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone(), x)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn counted(x: Tensor<1>, count: &Arc<AtomicUsize>) -> Tensor<1> {
    custom_vjp((x,), |(x,)| (x.clone() * 2.0, Counted::new(count, x)), |saved, g| (Some(g * saved.1.clone()),))
}

#[test]
fn saved_state_goes_after_backward_or_with_the_output() {
    for device in devices() {
        let count = Arc::new(AtomicUsize::new(0));
        let live = || count.load(Ordering::SeqCst);
        let x = leaf(1, [4], &device);

        let y = counted(x.clone(), &count).sum();
        assert_eq!(live(), 1);
        let grads = y.backward();
        assert_eq!(live(), 0, "after backward");
        drop(grads);

        let y = counted(counted(x.clone(), &count), &count);
        assert_eq!(live(), 2);
        drop(y);
        // Burn sweeps graphs that were left when the next one is registered or run.
        let _ = counted(x.clone() * 1.0, &count).sum().backward();
        assert_eq!(live(), 0, "without backward");

        let untracked: Tensor<1> = Array::sample(1, &[4]).tensor(DType::F64, &device);
        let _y = counted(untracked, &count);
        assert_eq!(live(), 0, "without a graph");
        let _y = counted(x.inner(), &count);
        assert_eq!(live(), 0, "on the inner device");
    }
}

#[test]
fn a_thousand_steps_keep_nothing() {
    let device = Device::flex().autodiff();
    let count = Arc::new(AtomicUsize::new(0));
    let x = leaf(1, [4], &device);
    for step in 0..1000 {
        let y = counted(counted(x.clone(), &count), &count).sum();
        if step % 3 != 0 {
            let _ = y.backward();
        }
        assert!(count.load(Ordering::SeqCst) <= 6, "step {step}");
    }
}

#[test]
fn an_operation_inside_another_ones_backward() {
    let device = Device::flex().autodiff();
    let x = leaf(1, [3, 3], &device);
    // Recomputation: backward runs a graph of its own.
    let y = custom_vjp(
        (x.clone(),),
        |(x,)| (cube(x.clone()), x),
        |x, g| {
            let x = x.autodiff().require_grad();
            let grads = (cube(x.clone()) * Tensor::from_inner(g)).sum().backward();
            (x.grad(&grads),)
        },
    );
    let grads = y.sum().backward();
    let expected = x.clone().inner().powi_scalar(2) * 3.0;
    let error = (x.grad(&grads).unwrap() - expected).abs().max();
    assert!(scalar(error) < 1e-12);
}

/// So forward keeps nothing for gradients that nobody asks for.
#[test]
fn both_functions_are_told_of_which_inputs_a_gradient_is_asked() {
    let told = |inputs: [Tensor<1>; 2]| {
        let [a, b] = inputs;
        let (mut before, after) = (None, Arc::new(Mutex::new(None)));
        let told = after.clone();
        let y = custom_vjp_needed(
            (a, b),
            |(a, b), needed| {
                before = Some(needed);
                (a + b, ())
            },
            move |(), grad, needed| {
                *told.lock().unwrap() = Some(needed);
                (Some(grad.clone()), Some(grad))
            },
        );
        if y.is_tracked() {
            let _ = y.sum().backward();
        }
        (before.unwrap(), *after.lock().unwrap())
    };
    for device in devices() {
        let (plain, constant) = (leaf(1, [3], &device).inner(), Array::sample(1, &[3]).tensor(DType::F64, &device));
        let tracked = || leaf(1, [3], &device) * 2.0;
        assert_eq!(told([tracked(), constant.clone()]), ([true, false], Some([true, false])));
        assert_eq!(told([plain.clone(), tracked()]), ([false, true], Some([false, true])));
        assert_eq!(told([constant, plain.clone()]), ([false; 2], None));
        assert_eq!(told([plain.clone(), plain]), ([false; 2], None));
    }
}
