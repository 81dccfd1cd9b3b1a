//! Memory is flat: ten thousand steps of mixed collectives leave as much as a thousand.
//!
//! A binary of its own, since an allocator is that of a whole process.
#![allow(clippy::unwrap_used)]

use burn::tensor::{DType, Device, Tensor};
use epl_comm::CountingAllocator;
use epl_comm::testing::run_ranks;
use epl_comm::{ProcessGroup, ReduceOp, Result};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const RANKS: usize = 3;
const STEPS: usize = 10_000;
const WARM: usize = 1_000;
/// A leak of eight bytes a step and rank would leave 216,000. What may differ without one: the blocks of the queues of
/// started calls, which hold 31 calls each.
const ALLOWED: i64 = 16 << 10;

fn x(len: usize) -> Tensor<2> {
    Tensor::ones([len, 4], (&Device::flex(), DType::F32))
}

/// Every collective, small and large, blocking and started, on two groups.
fn step(world: &ProcessGroup, half: &ProcessGroup) -> Result<()> {
    let (me, op) = (world.rank(), ReduceOp::Sum);
    let (next, last) = ((me + 1) % RANKS, (me + RANKS - 1) % RANKS);
    let (rows, sizes) = ([me + 1, 0, 2], [1, 0, 3]);
    let receive: Vec<usize> = (0..RANKS).map(|from| [from + 1, 0, 2][me]).collect();
    let started = world.start_all_reduce(x(3000), op)?;
    let other = half.start_all_gather(x(700), 0)?;
    let sent = world.start_send(x(5), next)?;
    world.receive(x(5), last)?;
    let kept = x(20);
    world.all_reduce(kept.clone(), ReduceOp::Max)?;
    world.reduce(x(1000), op, 1)?;
    world.all_gather_uneven(x(sizes[me]), 0, &sizes)?;
    world.all_gather(x(3000), 1)?;
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

/// What is alive while all ranks stand still.
fn live(world: &ProcessGroup) -> Result<i64> {
    world.barrier()?;
    let live = ALLOCATOR.live();
    world.barrier()?;
    Ok(live)
}

#[test]
fn is_flat_over_ten_thousand_steps() {
    let grown = run_ranks(RANKS, |world| {
        let half = world.split("half", usize::from(world.rank() == 0), 0).unwrap();
        let mut before = 0;
        for number in 0..STEPS {
            if number == WARM {
                before = live(&world).unwrap();
            }
            step(&world, &half).unwrap();
            if number % 50 == 0 {
                // A group of its own, with a thread of its own, and away.
                let short = world.split("short", 0, 0).unwrap();
                short.start_barrier().unwrap().wait().unwrap();
            }
        }
        live(&world).unwrap() - before
    });
    assert!(grown.iter().all(|grown| grown.abs() < ALLOWED), "{grown:?} bytes more after {} steps", STEPS - WARM);
}
