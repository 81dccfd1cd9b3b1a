//! Random sequences of collectives over random groups, some started, against the model: the same in all processes.

use epl_comm::mpi;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use crate::failing::run_ranks;
use crate::program::programs;

const CASES: u32 = 150;

#[test]
fn give_what_the_model_gives() {
    if !mpi::is_launched() {
        // In the suite.
        return;
    }
    let config = ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]));
    let result = runner.run(&programs(1..=4), |program| {
        run_ranks(program.ranks, |world| program.check(&world).unwrap());
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}
