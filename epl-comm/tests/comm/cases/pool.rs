//! Several communicators of one group.

use burn::tensor::{Device, Tensor};
use epl_comm::{Error, Event, EventKind, Operation, Pool, ProcessGroup, ReduceOp, Trace};

use crate::cases::world::World;

const NUMBERS: usize = 12;

/// What `NUMBERS` reductions, started together and waited for in the opposite order, give on every rank.
fn sums(pool: &Pool, rank: usize) -> Result<Vec<f32>, Error> {
    let x = |number: usize| Tensor::<1>::full([100 + number], (rank + number) as f32, &Device::flex());
    let start = |number| pool.communicator(number).start_all_reduce(x(number), ReduceOp::Sum);
    let started = (0..NUMBERS).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut sums = Vec::new();
    for sum in started.into_iter().rev() {
        sums.push(sum.wait()?.slice_dim(0, 0..1).into_scalar());
    }
    Ok(sums)
}

pub fn as_many_are_made_as_are_of_use_and_they_change_nothing(world: &World) {
    let ranks = 3;
    let expected: Vec<f32> = (0..NUMBERS).rev().map(|number| (3 + ranks * number) as f32).collect();
    for (lanes, size, groups) in [(1, 4, 1), (2, 4, 2), (8, 4, 4), (8, 1, 1), (8, 5, 5)] {
        let trace = Trace::new();
        let life = |world: ProcessGroup| {
            let pool = Pool::new(&world.traced(&trace), size).unwrap();
            for _ in 0..20 {
                assert_eq!(sums(&pool, world.rank()).unwrap(), expected);
            }
        };
        if world.ranks(ranks).lanes(lanes).run(life).is_empty() {
            continue;
        }
        let name = |event: Event| match event.kind {
            EventKind::Collective { group, operation: Operation::AllReduce(_), .. } => Some(group),
            _ => None,
        };
        let mut names: Vec<_> = trace.events().into_iter().filter_map(name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names, (0..groups).map(|number| format!("world {number}")).collect::<Vec<_>>());
    }
}
