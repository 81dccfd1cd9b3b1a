//! Random sequences of collectives over random groups, some started, against the model.

use crate::cases::world::World;
use crate::program::{MOST, programs};

pub fn give_what_the_model_gives(world: &World) {
    let mut runner = world.kind.draws(1000, file!());
    let result = runner.run(&programs(1..=MOST, world.kind.eager_limits()), |program| {
        let run = world.ranks(program.ranks).eager_limit(program.eager_limit).check_order();
        run.run(|world| program.check(&world).unwrap());
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}
