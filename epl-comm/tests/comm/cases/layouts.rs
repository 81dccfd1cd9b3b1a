//! Every conversion between layouts: value and gradient on 1 to 4 ranks against the whole computation.
//!
//! The loss is Σ w · y² over everything that the ranks hold of y, once each, so its gradient is 2 w · y taken back
//! through the conversion.

use burn::tensor::{DType, Device, Tensor};
use epl_comm::differentiable::all_to_all_uneven;
use epl_comm::{Error, Partial, ProcessGroup, Split, catch, copied, first_term, shard_range, sliced};

use crate::cases::world::World;
use crate::model::Array;

fn device() -> Device {
    Device::flex().autodiff()
}

fn tensor(array: &Array) -> Tensor<3> {
    array.tensor(DType::F64, &device())
}

/// Checks local values, and the gradient that Σ w · y² sends to the leaf.
fn check(leaf: &Tensor<3>, y: Tensor<3>, weight: &Array, value: &Array, gradient: &Array) {
    assert_eq!(&Array::of(y.clone()), value);
    let loss = (y.clone() * y * tensor(weight)).sum();
    let grads = loss.backward();
    assert_eq!(&Array::of(leaf.grad(&grads).unwrap()), gradient);
}

fn own(whole: &Array, dim: usize, group: &ProcessGroup) -> Array {
    let range = shard_range(whole.shape[dim], group.size(), group.rank());
    whole.part(dim, range.start, range.len())
}

fn double(w: &Array, y: &Array) -> Array {
    w.zip(y, |w, y| 2.0 * w * y)
}

/// For every dim, extents that divide evenly, that do not, and that leave ranks without anything.
fn everywhere(world: &World, f: impl Fn(&ProcessGroup, usize, [usize; 3]) + Sync) {
    for ranks in 1..=4 {
        world.run(ranks, |group| {
            for dim in 0..3 {
                for extent in [4 * ranks, 5, 7, 3] {
                    let mut shape = [2, 3, 4];
                    shape[dim] = extent;
                    f(&group, dim, shape);
                }
            }
        });
    }
}

pub fn replicated_to_copied(world: &World) {
    everywhere(world, |group, _, shape| {
        let x = Array::sample(1, &shape);
        let weights: Vec<_> = (0..group.size()).map(|member| Array::sample(10 + member, &shape)).collect();
        let leaf = tensor(&x).require_grad();
        let gradients: Vec<_> = weights.iter().map(|w| double(w, &x)).collect();
        let gradient = Array::reduce(&gradients, epl_comm::ReduceOp::Sum);
        check(&leaf, copied(leaf.clone(), group).local(), &weights[group.rank()], &x, &gradient);
    });
}

pub fn replicated_to_split(world: &World) {
    everywhere(world, |group, dim, shape| {
        let (x, w) = (Array::sample(1, &shape), Array::sample(2, &shape));
        let leaf = tensor(&x).require_grad();
        let split = sliced(leaf.clone(), dim, group);
        assert_eq!((split.dim(), split.size()), (dim, shape[dim]));
        assert_eq!(split.range(), shard_range(shape[dim], group.size(), group.rank()));
        check(&leaf, split.local(), &own(&w, dim, group), &own(&x, dim, group), &double(&w, &x));
    });
}

pub fn partial_to_replicated(world: &World) {
    everywhere(world, |group, _, shape| {
        let terms: Vec<_> = (0..group.size()).map(|member| Array::sample(member, &shape)).collect();
        let (sum, w) = (Array::reduce(&terms, epl_comm::ReduceOp::Sum), Array::sample(9, &shape));
        let leaf = tensor(&terms[group.rank()]).require_grad();
        let y = Partial::from_local(leaf.clone(), group).all_reduce();
        check(&leaf, y, &w, &sum, &double(&w, &sum));
    });
}

pub fn partial_to_split(world: &World) {
    everywhere(world, |group, dim, shape| {
        let terms: Vec<_> = (0..group.size()).map(|member| Array::sample(member, &shape)).collect();
        let (sum, w) = (Array::reduce(&terms, epl_comm::ReduceOp::Sum), Array::sample(9, &shape));
        let leaf = tensor(&terms[group.rank()]).require_grad();
        let y = Partial::from_local(leaf.clone(), group).reduce_scatter(dim);
        assert_eq!((y.dim(), y.size()), (dim, shape[dim]));
        check(&leaf, y.local(), &own(&w, dim, group), &own(&sum, dim, group), &double(&w, &sum));
    });
}

pub fn split_to_replicated(world: &World) {
    everywhere(world, |group, dim, shape| {
        let (x, w) = (Array::sample(1, &shape), Array::sample(2, &shape));
        let leaf = tensor(&own(&x, dim, group)).require_grad();
        let y = Split::from_local(leaf.clone(), dim, shape[dim], group).all_gather();
        check(&leaf, y, &w, &x, &own(&double(&w, &x), dim, group));
    });
}

pub fn split_to_copied(world: &World) {
    everywhere(world, |group, dim, shape| {
        let x = Array::sample(1, &shape);
        let weights: Vec<_> = (0..group.size()).map(|member| Array::sample(10 + member, &shape)).collect();
        let gradients: Vec<_> = weights.iter().map(|w| double(w, &x)).collect();
        let gradient = Array::reduce(&gradients, epl_comm::ReduceOp::Sum);
        let leaf = tensor(&own(&x, dim, group)).require_grad();
        let y = Split::from_local(leaf.clone(), dim, shape[dim], group).all_gather_copied().local();
        check(&leaf, y, &weights[group.rank()], &x, &own(&gradient, dim, group));
    });
}

pub fn split_to_split_along_another_dim(world: &World) {
    everywhere(world, |group, dim, shape| {
        for other in 0..3 {
            let (x, w) = (Array::sample(1, &shape), Array::sample(2, &shape));
            let leaf = tensor(&own(&x, dim, group)).require_grad();
            let y = Split::from_local(leaf.clone(), dim, shape[dim], group).all_to_all(other);
            assert_eq!((y.dim(), y.size()), (other, shape[other]));
            let gradient = own(&double(&w, &x), dim, group);
            check(&leaf, y.local(), &own(&w, other, group), &own(&x, other, group), &gradient);
        }
    });
}

pub fn replicated_to_partial(world: &World) {
    everywhere(world, |group, _, shape| {
        let (x, w) = (Array::sample(1, &shape), Array::sample(2, &shape));
        let leaf = tensor(&x).require_grad();
        let y = first_term(leaf.clone(), group).all_reduce();
        check(&leaf, y, &w, &x, &double(&w, &x));
    });
}

pub fn split_to_partial(world: &World) {
    everywhere(world, |group, dim, shape| {
        let (x, w) = (Array::sample(1, &shape), Array::sample(2, &shape));
        let leaf = tensor(&own(&x, dim, group)).require_grad();
        let y = Split::from_local(leaf.clone(), dim, shape[dim], group).padded().all_reduce();
        check(&leaf, y, &w, &x, &own(&double(&w, &x), dim, group));
    });
}

/// The gradient of the local term itself, which is the same on every member.
pub fn to_a_term_of_a_sum(world: &World) {
    everywhere(world, |group, dim, shape| {
        let (x, w) = (Array::sample(1, &shape), Array::sample(2, &shape));
        let gradient =
            |leaf: &Tensor<3>, term: Tensor<3>| Array::of(leaf.grad(&(term * tensor(&w)).sum().backward()).unwrap());
        let leaf = tensor(&x).require_grad();
        assert_eq!(gradient(&leaf, first_term(leaf.clone(), group).local()), w);
        let leaf = tensor(&own(&x, dim, group)).require_grad();
        let part = Split::from_local(leaf.clone(), dim, shape[dim], group);
        assert_eq!(gradient(&leaf, part.padded().local()), own(&w, dim, group));
    });
}

pub fn a_sum_of_one_term_keeps_the_sign_of_zero(world: &World) {
    world.run(3, |group| {
        let x = || Tensor::<1>::from_floats([-0.0, 0.0, -1.5], &Device::flex());
        let bits = |y: Tensor<1>| y.into_data().iter::<f32>().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(first_term(x(), &group).all_reduce()), bits(x()));
        assert_eq!(bits(sliced(x(), 0, &group).padded().all_reduce()), bits(x()));
    });
}

pub fn rows_to_their_members_and_their_gradients_back(world: &World) {
    for ranks in 1..=4 {
        world.run(ranks, |group| {
            let (p, me) = (group.size(), group.rank());
            let rows = |from: usize, to: usize| (3 * from + to) % 4;
            let send = |from: usize| (0..p).map(|to| rows(from, to)).collect::<Vec<_>>();
            let receive: Vec<_> = (0..p).map(|from| rows(from, me)).collect();
            let inputs: Vec<_> = (0..p).map(|from| Array::sample(from, &[send(from).iter().sum(), 2, 3])).collect();
            let piece = |from: usize, to: usize| inputs[from].part(0, send(from)[..to].iter().sum(), rows(from, to));
            let value = Array::concat(&(0..p).map(|from| piece(from, me)).collect::<Vec<_>>(), 0);
            let weight = |to: usize, rows: usize| Array::sample(50 + to, &[rows, 2, 3]);
            let leaf = tensor(&inputs[me]).require_grad();
            let y = all_to_all_uneven(leaf.clone(), &send(me), &receive, &group);
            // The weight of what I sent to a member lies behind what others sent it before me.
            let sent: Vec<_> = (0..p)
                .map(|to| {
                    let all = weight(to, (0..p).map(|from| rows(from, to)).sum());
                    let before = (0..me).map(|from| rows(from, to)).sum();
                    double(&all.part(0, before, rows(me, to)), &piece(me, to))
                })
                .collect();
            check(&leaf, y, &weight(me, receive.iter().sum()), &value, &Array::concat(&sent, 0));
        });
    }
}

/// A column-split and a row-split layer in a row, as in Megatron: the same loss and gradients as the whole.
pub fn a_split_pair_of_layers_equals_the_whole_one(world: &World) {
    let (x, a, b) = (Array::sample(1, &[1, 4, 6]), Array::sample(2, &[1, 6, 5]), Array::sample(3, &[1, 5, 3]));
    let whole = {
        let [x, a, b] = [&x, &a, &b].map(|array| tensor(array).require_grad());
        let loss = x.clone().matmul(a.clone()).powi_scalar(2).matmul(b.clone()).powi_scalar(2).sum();
        let grads = loss.backward();
        [x, a, b].map(|leaf| Array::of(leaf.grad(&grads).unwrap()))
    };
    for ranks in 1..=4 {
        world.run(ranks, |group| {
            let (columns, rows) = (own(&a, 2, &group), own(&b, 1, &group));
            let [x, a, b] = [&x, &columns, &rows].map(|array| tensor(array).require_grad());
            let hidden = copied(x.clone(), &group).local().matmul(a.clone()).powi_scalar(2);
            let y = Partial::from_local(hidden.matmul(b.clone()), &group).all_reduce();
            let grads = y.powi_scalar(2).sum().backward();
            let parts = [x, a, b].map(|leaf| Array::of(leaf.grad(&grads).unwrap()));
            let expected = [whole[0].clone(), own(&whole[1], 2, &group), own(&whole[2], 1, &group)];
            for ((part, expected), whole) in parts.iter().zip(&expected).zip(&whole) {
                let scale = whole.values.iter().fold(0.0, |scale: f64, value| scale.max(value.abs()));
                assert!(part.zip(expected, |a, b| (a - b).abs() / scale).values.iter().all(|error| *error < 1e-12));
            }
        });
    }
}

pub fn a_group_of_one_leaves_no_trace_in_the_graph(world: &World) {
    world.run(1, |group| {
        let x = tensor(&Array::sample(1, &[2, 3, 4])).require_grad();
        // A leaf is still a leaf: an operation's result could not be made to require its gradient.
        let same = |y: Tensor<3>| assert!(y.is_require_grad());
        same(copied(x.clone(), &group).local());
        same(sliced(x.clone(), 1, &group).local());
        same(Partial::from_local(x.clone(), &group).all_reduce());
        same(Partial::from_local(x.clone(), &group).reduce_scatter(2).local());
        let split = || Split::from_local(x.clone(), 1, 3, &group);
        same(split().all_gather());
        same(split().all_gather_copied().local());
        same(split().all_to_all(2).local());
        same(split().padded().local());
        same(first_term(x.clone(), &group).local());
        same(all_to_all_uneven(x.clone(), &[2], &[2], &group));
    });
}

pub fn on_an_inner_device_they_only_move(world: &World) {
    world.run(2, |group| {
        let x = Array::sample(1, &[2, 3, 4]);
        let local: Tensor<3> = own(&x, 1, &group).tensor(DType::F32, &Device::flex());
        let y = Split::from_local(local, 1, 3, &group).all_gather();
        assert!(!y.is_autodiff());
        assert_eq!(Array::of(y), x);
    });
}

pub fn what_does_not_fit_is_said_with_both_numbers(world: &World) {
    world.run(2, |group| {
        let x = || tensor(&Array::sample(1, &[2, 3, 4]));
        let message = |error: Error| error.to_string();
        let wrong = catch(|| Split::from_local(x(), 1, 9, &group)).map_err(message).unwrap_err();
        assert!(wrong.contains("holds 3 of 9 along dim 1, but its part of 2 parts is"), "{wrong}");
        for error in [
            catch(|| sliced(x(), 3, &group)).unwrap_err(),
            catch(|| Partial::from_local(x(), &group).reduce_scatter(5)).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Invalid { .. }), "{error}");
        }
    });
}
