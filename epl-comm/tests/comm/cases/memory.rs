//! Memory is flat: thousands of steps of mixed collectives leave as much as some hundred.

use burn::tensor::{DType, Device, Tensor};
use epl_comm::{ProcessGroup, ReduceOp, Result};

use crate::ALLOCATOR;
use crate::cases::table::Need;
use crate::cases::world::World;

const RANKS: usize = 3;
const LOOKS: usize = 10;
/// A leak of eight bytes a step and rank would leave 216,000 on threads, and 18,000 elsewhere. What may differ without one:
/// the blocks of the queues of started calls, which hold 31 calls each.
const ALLOWED: i64 = 16 << 10;

fn x(len: usize) -> Tensor<2> {
    Tensor::ones([len, 4], (&Device::flex(), DType::F32))
}

/// Every collective, small and of `large` rows, blocking and started, on two groups.
fn step(world: &ProcessGroup, half: &ProcessGroup, large: usize) -> Result<()> {
    let (me, op) = (world.rank(), ReduceOp::Sum);
    let (next, last) = ((me + 1) % RANKS, (me + RANKS - 1) % RANKS);
    let (rows, sizes) = ([me + 1, 0, 2], [1, 0, 3]);
    let receive: Vec<usize> = (0..RANKS).map(|from| [from + 1, 0, 2][me]).collect();
    let started = world.start_all_reduce(x(large), op)?;
    let other = half.start_all_gather(x(700), 0)?;
    let sent = world.start_send(x(5), next)?;
    world.receive(x(5), last)?;
    let kept = x(20);
    world.all_reduce(kept.clone(), ReduceOp::Max)?;
    world.reduce(x(1000), op, 1)?;
    world.all_gather_uneven(x(sizes[me]), 0, &sizes)?;
    world.all_gather(x(large), 1)?;
    world.gather(x(40), 0, 2)?;
    world.reduce_scatter_uneven(x(4), 0, &sizes, op)?;
    world.scatter(x(RANKS * 600), 0, 0)?;
    world.all_to_all(x(RANKS * 600), 0, 0)?;
    world.all_to_all_uneven(x(rows.iter().sum()), &rows, &receive)?;
    world.broadcast(kept, 1)?;
    half.all_reduce_values(&[1.0, 2.0], op)?;
    world.all_gather_counts(&[1])?;
    drop(half.start_barrier()?);
    started.wait()?;
    other.wait()?;
    sent.wait()
}

/// What is alive while all ranks stand still, after the step of some that leaves least: what a helper thread has not yet
/// given back after one, it has after another.
fn live(world: &ProcessGroup, half: &ProcessGroup, large: usize) -> Result<i64> {
    let look = || {
        step(world, half, large)?;
        world.barrier()?;
        let live = ALLOCATOR.live();
        world.barrier()?;
        Ok(live)
    };
    let looks = (0..LOOKS).map(|_| look()).collect::<Result<Vec<_>>>()?;
    Ok(looks.into_iter().min().unwrap())
}

pub fn is_flat_over_many_steps(world: &World) {
    let (warm, steps) = world.kind.steps();
    // The memory of large results is kept for as many as were alive at once, which differs from step to step where a call is
    // made of those of smaller groups: there, none is large.
    let large = if world.has(Need::OneStage) { 3000 } else { 1000 };
    let life = |world: ProcessGroup| -> Result<i64> {
        let half = world.split("half", usize::from(world.rank() == 0), 0)?;
        // As a run of many steps is after its first.
        world.warmed_up();
        let mut before = 0;
        for number in 0..steps {
            if number == warm {
                before = live(&world, &half, large)?;
            }
            step(&world, &half, large)?;
            if number % 50 == 0 {
                // A group of its own, with a thread of its own, and away.
                let short = world.split("short", 0, 0)?;
                short.start_barrier()?.wait()?;
            }
        }
        Ok(live(&world, &half, large)? - before)
    };
    // What is counted is a whole process's.
    world.alone(|| {
        let grown: Vec<i64> = world.run(RANKS, |world| life(world).unwrap());
        assert!(grown.iter().all(|grown| grown.abs() < ALLOWED), "{grown:?} bytes more after {} steps", steps - warm);
    });
}
