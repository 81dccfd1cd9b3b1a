//! More ranks than cores.

use std::time::Instant;

use burn::tensor::{Device, Tensor};
use epl_comm::ReduceOp;

use crate::cases::world::World;

pub fn eight_ranks_take_turns_on_few_cores(world: &World) {
    world.run(8, |world| {
        let pair = world.split("pair", world.rank() / 2, world.rank()).unwrap();
        let begin = Instant::now();
        for round in 0..300 {
            let x = Tensor::<1>::full([100], world.rank() as f32, &Device::flex());
            let started = pair.start_all_reduce(x.clone(), ReduceOp::Sum).unwrap();
            let sum: f64 = world.all_reduce(x, ReduceOp::Sum).unwrap().into_data().iter::<f64>().sum();
            assert_eq!(sum, 2800.0, "round {round}");
            let pairs: f64 = started.wait().unwrap().into_data().iter::<f64>().sum();
            assert_eq!(pairs, 100.0 * (4 * (world.rank() / 2) + 1) as f64);
        }
        assert!(begin.elapsed().as_secs() < 30, "300 rounds took {:?}", begin.elapsed());
    });
}
