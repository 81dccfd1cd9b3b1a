//! Copies of a parameter that are no longer equal are found by name.

use burn::module::Module;
use burn::optim::SgdConfig;
use epl_core::testing::{config, run};
use epl_core::{Engine, EngineSettings, Epl, Result, launch};

use crate::engine::chain::{Chain, micro_batches};

/// Two steps, of which the last rank makes the second with a rate of its own. Only the tied layer is trained.
fn drift(epl: &Epl, rate_of_last: f64) -> Result<()> {
    let freeze = |chain: Chain| Chain {
        first: chain.first.no_grad(),
        up: chain.up.no_grad(),
        down: chain.down.no_grad(),
        head: chain.head.no_grad(),
        ..chain
    };
    let built = epl.build(Chain::new)?.try_map(|chain, _| Ok(freeze(chain)))?;
    let mut engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;
    engine.check_replicas()?;
    engine.step(micro_batches(epl, 1), 0.1)?;
    engine.check_replicas()?;
    let world = epl.context().world();
    let rate = if world.rank() + 1 == world.size() { rate_of_last } else { 0.1 };
    engine.step(micro_batches(epl, 1), rate)?;
    engine.check_replicas()
}

#[test]
fn the_parameter_and_the_ranks_are_named() {
    // Copies over replicas, and over ranks that share split layers.
    for (sizes, ranks) in [((3, 1, 1), "rank 2 differs from rank 0"), ((1, 2, 1), "rank 1 differs from rank 0")] {
        let failed = launch(&config(sizes.0, sizes.1, sizes.2), |epl| drift(&epl, 0.11));
        let text = failed.unwrap_err().to_string();
        assert!(text.contains("parameter `tied.weight`: its copies are not equal after step 2"), "{sizes:?}: {text}");
        assert!(text.contains(ranks), "{sizes:?}: {text}");
    }
}

#[test]
fn equal_copies_pass_under_every_layout() {
    for sizes in [(1, 1, 1), (3, 1, 1), (1, 2, 1), (2, 2, 1)] {
        run(sizes, |epl| drift(&epl, 0.1));
        run_sharded(sizes, 0.1).unwrap();
    }
}

/// The same with parameters in shards over the replicas, of which the ranks that share split layers have copies.
fn run_sharded((data, tensor, expert): (usize, usize, usize), rate_of_last: f64) -> Result<()> {
    let config = config(data, tensor, expert).with("zero.level", "v3")?;
    launch(&config, |epl| drift(&epl, rate_of_last)).map(drop)
}

#[test]
fn shards_are_compared_with_those_of_ranks_that_share_split_layers() {
    // Each rank updates its own shard, so over replicas alone there is nothing to compare.
    run_sharded((3, 1, 1), 0.11).unwrap();
    for sizes in [(1, 2, 1), (2, 2, 1)] {
        let text = run_sharded(sizes, 0.11).unwrap_err().to_string();
        assert!(text.contains("parameter `tied.weight`: its copies are not equal after step 2"), "{sizes:?}: {text}");
    }
}
