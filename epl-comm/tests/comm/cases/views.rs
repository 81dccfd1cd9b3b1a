//! Tensors that show a part of their memory, or show it in another order.

use burn::tensor::{DType, Device, Float, Tensor};
use epl_comm::{Pending, ProcessGroup, ReduceOp, Result};

use crate::cases::world::World;
use crate::model::Array;

type View = fn(Tensor<2>) -> Tensor<2>;

/// All of an even number of rows and columns.
const VIEWS: [(&str, View); 7] = [
    ("first rows", |x| x.slice_dim(0, 0..4)),
    ("last rows", |x| x.slice_dim(0, 2..6)),
    ("columns", |x| x.slice_dim(1, 2..6)),
    ("transposed", |x| x.swap_dims(0, 1)),
    ("first rows, transposed", |x| x.slice_dim(0, 0..2).swap_dims(0, 1)),
    ("one row again and again", |x| x.slice_dim(0, 1..2).expand([4, 8])),
    ("backwards", |x| x.flip([0])),
];

fn base(member: usize) -> Tensor<2> {
    Array::sample(member, &[6, 8]).tensor::<2, Float>(DType::F32, &Device::flex())
}

type Blocking = fn(&ProcessGroup, Tensor<2>) -> Result<Tensor<2>>;
type Started = fn(&ProcessGroup, Tensor<2>) -> Result<Pending<Tensor<2>>>;

const COLLECTIVES: [(&str, Blocking, Started); 11] = [
    ("all_reduce", |g, x| g.all_reduce(x, ReduceOp::Sum), |g, x| g.start_all_reduce(x, ReduceOp::Sum)),
    ("all_gather 0", |g, x| g.all_gather(x, 0), |g, x| g.start_all_gather(x, 0)),
    ("all_gather 1", |g, x| g.all_gather(x, 1), |g, x| g.start_all_gather(x, 1)),
    (
        "reduce_scatter 0",
        |g, x| g.reduce_scatter(x, 0, ReduceOp::Sum),
        |g, x| g.start_reduce_scatter(x, 0, ReduceOp::Sum),
    ),
    (
        "reduce_scatter 1",
        |g, x| g.reduce_scatter(x, 1, ReduceOp::Max),
        |g, x| g.start_reduce_scatter(x, 1, ReduceOp::Max),
    ),
    ("all_to_all 0 0", |g, x| g.all_to_all(x, 0, 0), |g, x| g.start_all_to_all(x, 0, 0)),
    ("all_to_all 0 1", |g, x| g.all_to_all(x, 0, 1), |g, x| g.start_all_to_all(x, 0, 1)),
    ("all_to_all 1 0", |g, x| g.all_to_all(x, 1, 0), |g, x| g.start_all_to_all(x, 1, 0)),
    (
        "all_to_all_uneven",
        |g, x| {
            let (send, receive) = rows(g, &x);
            g.all_to_all_uneven(x, &send, &receive)
        },
        |g, x| {
            let (send, receive) = rows(g, &x);
            g.start_all_to_all_uneven(x, &send, &receive)
        },
    ),
    ("broadcast 0", |g, x| g.broadcast(x, 0), |g, x| g.start_broadcast(x, 0)),
    ("broadcast 1", |g, x| g.broadcast(x, 1), |g, x| g.start_broadcast(x, 1)),
];

/// One row to member 0, the others to member 1.
fn rows(group: &ProcessGroup, x: &Tensor<2>) -> ([usize; 2], [usize; 2]) {
    let send = [1, x.dims()[0] - 1];
    (send, [send[group.rank()]; 2])
}

/// What is shown is what counts, and the rest of the memory stays as it was.
pub fn of_all_kinds_in_all_collectives(world: &World) {
    world.kind.eager_limits().iter().for_each(|limit| of_all_kinds_with(world, *limit));
}

fn of_all_kinds_with(world: &World, limit: usize) {
    world.ranks(2).eager_limit(limit).run(|group| {
        for (view_name, view) in VIEWS {
            for (name, blocking, started) in COLLECTIVES {
                let whole = || Array::of(view(base(group.rank()))).tensor::<2, Float>(DType::F32, &Device::flex());
                let expected = Array::of(blocking(&group, whole()).unwrap());
                let held = base(group.rank());
                let results = [
                    blocking(&group, view(held.clone())).unwrap(),
                    started(&group, view(held.clone())).unwrap().wait().unwrap(),
                    // The view is the only handle of the larger memory.
                    blocking(&group, view(base(group.rank()))).unwrap(),
                    started(&group, view(base(group.rank()))).unwrap().wait().unwrap(),
                ];
                for result in results {
                    assert_eq!(Array::of(result), expected, "{name} of {view_name}");
                }
                assert_eq!(Array::of(held), Array::of(base(group.rank())), "{name} of {view_name} writes past it");
            }
        }
    });
}
