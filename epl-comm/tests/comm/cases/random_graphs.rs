//! Random chains of differentiable collectives over random groups: values and gradients, against one thread that
//! holds the tensors of all ranks and computes the same with Burn's own operations.

use burn::tensor::{DType, Device, Tensor};
use epl_comm::{ProcessGroup, differentiable};
use proptest::prelude::*;

use crate::cases::world::World;
use crate::model::Array;

const MOST: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Kind {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    AllToAllRows,
    Broadcast,
    Scatter,
}

/// A collective, and the groups that make it: the color of each rank.
#[derive(Clone, Debug)]
struct Link {
    kind: Kind,
    salt: usize,
    colors: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Chain {
    ranks: usize,
    links: Vec<Link>,
}

fn chains() -> impl Strategy<Value = Chain> {
    let kinds = vec![
        Kind::AllReduce,
        Kind::AllGather,
        Kind::ReduceScatter,
        Kind::AllToAll,
        Kind::AllToAllRows,
        Kind::Broadcast,
        Kind::Scatter,
    ];
    let link = (prop::sample::select(kinds), 0..100usize, prop::collection::vec(0..2usize, MOST))
        .prop_map(|(kind, salt, colors)| Link { kind, salt, colors });
    (1..=MOST, prop::collection::vec(link, 1..5)).prop_map(|(ranks, links)| Chain { ranks, links })
}

impl Link {
    /// Extents of the members, which differ, one of them nothing.
    fn sizes(&self, members: usize) -> Vec<usize> {
        (0..members).map(|member| (self.salt + 2 * member) % 4).collect()
    }

    fn rows(&self, from: usize, to: usize) -> usize {
        (self.salt + from + 2 * to) % 3
    }

    /// The shape that a member must bring.
    fn input(&self, member: usize, members: usize) -> [usize; 2] {
        match self.kind {
            Kind::AllGather => [self.sizes(members)[member], 3],
            Kind::ReduceScatter | Kind::Scatter => [self.sizes(members).iter().sum(), 2],
            Kind::AllToAll => [2 * members, 3],
            Kind::AllToAllRows => [(0..members).map(|to| self.rows(member, to)).sum(), 2],
            Kind::AllReduce | Kind::Broadcast => [2, 1 + self.salt % 5],
        }
    }

    /// This rank's result.
    fn run(&self, x: Tensor<2>, group: &ProcessGroup) -> Tensor<2> {
        let (members, me) = (group.size(), group.rank());
        let (sizes, root) = (self.sizes(members), self.salt % members);
        match self.kind {
            Kind::AllReduce => differentiable::all_reduce(x, group),
            Kind::AllGather => differentiable::all_gather_uneven(x, 0, &sizes, group),
            Kind::ReduceScatter => differentiable::reduce_scatter_uneven(x, 0, &sizes, group),
            Kind::AllToAll => differentiable::all_to_all(x, 0, 1, group),
            Kind::AllToAllRows => {
                let send: Vec<_> = (0..members).map(|to| self.rows(me, to)).collect();
                let receive: Vec<_> = (0..members).map(|from| self.rows(from, me)).collect();
                differentiable::all_to_all_uneven(x, &send, &receive, group)
            }
            Kind::Broadcast => differentiable::broadcast(x, root, group),
            Kind::Scatter => differentiable::scatter_uneven(x, 0, &sizes, root, group),
        }
    }

    /// The results of all members.
    fn model(&self, inputs: &[Tensor<2>]) -> Vec<Tensor<2>> {
        let members = inputs.len();
        let (sizes, root) = (self.sizes(members), self.salt % members);
        let sum = || inputs[1..].iter().fold(inputs[0].clone(), |sum, x| sum + x.clone());
        let part = |x: Tensor<2>, me: usize| rows(x, sizes[..me].iter().sum(), sizes[me]);
        let result = |me: usize| match self.kind {
            Kind::AllReduce => sum(),
            Kind::AllGather => concat(inputs.to_vec(), 0),
            Kind::ReduceScatter => part(sum(), me),
            Kind::AllToAll => concat(inputs.iter().map(|x| rows(x.clone(), 2 * me, 2)).collect(), 1),
            Kind::AllToAllRows => {
                let before = |from: usize| (0..me).map(|to| self.rows(from, to)).sum();
                let piece = |from: usize| rows(inputs[from].clone(), before(from), self.rows(from, me));
                concat((0..members).map(piece).collect(), 0)
            }
            Kind::Broadcast => inputs[root].clone(),
            Kind::Scatter => part(inputs[root].clone(), me),
        };
        (0..members).map(result).collect()
    }
}

#[cfg(not(feature = "ndarray"))]
fn device() -> Device {
    Device::flex().autodiff()
}

#[cfg(feature = "ndarray")]
#[allow(deprecated, reason = "the only other backend that runs without a device")]
fn device() -> Device {
    Device::ndarray().autodiff()
}

fn sample(seed: usize, shape: [usize; 2]) -> Tensor<2> {
    Array::sample(seed, &shape).map(|value| value / 16.0).tensor(DType::F64, &device())
}

fn rows(x: Tensor<2>, start: usize, len: usize) -> Tensor<2> {
    x.slice([start..start + len])
}

/// Burn's own does not take tensors without elements in every case.
fn concat(parts: Vec<Tensor<2>>, dim: usize) -> Tensor<2> {
    let some: Vec<_> = parts.iter().filter(|part| part.dims()[dim] > 0).cloned().collect();
    if some.is_empty() { parts[0].clone() } else { Tensor::cat(some, dim) }
}

/// What a rank makes of a result before the next collective: something that is not linear, in the shape that is due.
fn between(x: Tensor<2>, seed: usize, shape: [usize; 2]) -> Tensor<2> {
    let sum = x.clone().sin().sum().reshape([1, 1]);
    sample(seed, shape) * (sum + 1.0)
}

/// Σ w · x, the rank's own loss, and a little of the leaf, as x may have no elements.
fn loss(x: Tensor<2>, leaf: &Tensor<2>, rank: usize) -> Tensor<1> {
    let weight = sample(7000 + rank, x.dims());
    (x * weight).sum() + leaf.clone().cos().sum()
}

fn seed(step: usize, rank: usize) -> usize {
    100 * step + rank
}

fn of_color(link: &Link, ranks: usize, color: usize) -> Vec<usize> {
    (0..ranks).filter(|rank| link.colors[*rank] == color).collect()
}

/// Values and gradients of all ranks, on one thread.
fn model(chain: &Chain) -> Vec<(Array, Array)> {
    let leaves: Vec<_> = (0..chain.ranks).map(|rank| sample(9000 + rank, [2, 2]).require_grad()).collect();
    let mut values = leaves.clone();
    for (step, link) in chain.links.iter().enumerate() {
        for color in 0..2 {
            let members = of_color(link, chain.ranks, color);
            let input = |(member, rank): (usize, &usize)| {
                between(values[*rank].clone(), seed(step, *rank), link.input(member, members.len()))
            };
            let inputs: Vec<_> = members.iter().enumerate().map(input).collect();
            if inputs.is_empty() {
                continue;
            }
            let results = link.model(&inputs);
            members.iter().zip(results).for_each(|(rank, result)| values[*rank] = result);
        }
    }
    let losses = values.iter().zip(&leaves).enumerate().map(|(rank, (x, leaf))| loss(x.clone(), leaf, rank));
    let grads = losses.reduce(|sum, loss| sum + loss).unwrap().backward();
    let gradient = |leaf: &Tensor<2>| Array::of(leaf.grad(&grads).unwrap());
    values.iter().zip(&leaves).map(|(value, leaf)| (Array::of(value.clone()), gradient(leaf))).collect()
}

/// Value and gradient of one rank.
fn real(chain: &Chain, world: &ProcessGroup) -> (Array, Array) {
    let rank = world.rank();
    let leaf = sample(9000 + rank, [2, 2]).require_grad();
    let mut x = leaf.clone();
    for (step, link) in chain.links.iter().enumerate() {
        let group = world.split("part", link.colors[rank], rank).unwrap();
        x = link.run(between(x, seed(step, rank), link.input(group.rank(), group.size())), &group);
    }
    let grads = loss(x.clone(), &leaf, rank).backward();
    (Array::of(x), Array::of(leaf.grad(&grads).unwrap()))
}

/// Whoever only listens has a gradient, too: of zeros.
pub fn leaves_that_are_not_sent_have_a_gradient_of_zeros(world: &World) {
    world.run(2, |group| {
        let leaf = || sample(1, [2, 3]).require_grad();
        for (x, y) in [leaf(), leaf(), leaf()].into_iter().zip(0..).map(|(x, way)| {
            let y = match way {
                0 => differentiable::broadcast(x.clone(), 0, &group),
                1 => differentiable::scatter(x.clone(), 0, 0, &group),
                _ => differentiable::scatter_uneven(x.clone(), 1, &[1, 2], 0, &group),
            };
            (x, y)
        }) {
            let gradient = Array::of(x.grad(&y.sum().backward()).unwrap());
            let (sent, listened) =
                (gradient.values.iter().all(|g| *g > 0.0), gradient.values.iter().all(|g| *g == 0.0));
            assert!(if group.rank() == 0 { sent } else { listened }, "{gradient:?}");
        }
    });
}

fn assert_close(what: &str, a: &Array, b: &Array) {
    assert_eq!(a.shape, b.shape, "{what}");
    let largest = a.values.iter().chain(&b.values).fold(1.0, |most: f64, value| most.max(value.abs()));
    for (a, b) in a.values.iter().zip(&b.values) {
        assert!((a - b).abs() <= 1e-11 * largest, "{what}: {a} and {b}");
    }
}

pub fn have_the_values_and_gradients_of_one_thread(world: &World) {
    let mut runner = world.kind.draws(1000, file!());
    let result = runner.run(&chains(), |chain| {
        let expected = model(&chain);
        let found = world.run(chain.ranks, |world| real(&chain, &world));
        for (rank, (value, gradient)) in world.here(chain.ranks).zip(&found) {
            let (expected, expected_gradient) = &expected[rank];
            assert_close(&format!("value of rank {rank}"), value, expected);
            assert_close(&format!("gradient of rank {rank}"), gradient, expected_gradient);
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}
