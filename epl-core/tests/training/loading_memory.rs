//! Loading takes the memory of what a rank keeps, and of one tensor more.

use burn::optim::AdamWConfig;
use burn::tensor::Tensor;
use epl_core::config::Config;
use epl_core::{Engine, MicroBatch, launch};

use crate::ALLOCATOR;
use crate::layers::chain;

const LAYERS: usize = 6;
const WIDTH: usize = 1024;
const RANKS: usize = 2;
/// One parameter.
const TENSOR: i64 = (4 * WIDTH * WIDTH) as i64;
/// A block of the file that is read; headers and names.
const SMALL: i64 = (1 << 20) + (1 << 18);

fn config(level: &str) -> Config {
    Config::new().with("dist.data_parallel_size", RANKS).unwrap().with("zero.level", level).unwrap()
}

/// The most that all ranks held while they loaded, above what they held before, and what they hold more afterwards.
fn loaded(level: &str, saved_by: &str) -> (i64, i64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoint");
    let build = |epl: &epl_core::Epl| Engine::build(epl, |at| chain(LAYERS, WIDTH, at), &AdamWConfig::new());
    launch(&config(saved_by), |epl| {
        let mut engine = build(&epl)?;
        let rows = Tensor::<2>::ones([2, WIDTH], epl.place().device());
        let first = 2 * epl.context().world().rank() as u64;
        engine.step(vec![MicroBatch::new(rows, [first, first + 1])], 0.01)?;
        engine.save(&path)
    })
    .unwrap();
    let ranks = launch(&config(level), |epl| {
        let mut engine = build(&epl)?;
        let world = epl.context().world();
        world.barrier()?;
        let before = ALLOCATOR.live();
        world.barrier()?;
        ALLOCATOR.look_anew();
        world.barrier()?;
        engine.load(&path)?;
        world.barrier()?;
        let most = ALLOCATOR.most() - before;
        let after = ALLOCATOR.live() - before;
        world.barrier()?;
        drop(engine);
        Ok((most, after))
    });
    ranks.unwrap().remove(0)
}

#[test]
fn a_rank_needs_room_for_its_shards_and_for_one_tensor() {
    epl_testing::alone(|| {
        // The first run also sets up what a process needs once.
        let _ = loaded("", "");
        for (level, saved_by) in [("", ""), ("", "v3"), ("v1", ""), ("v3", "v0"), ("v3", "v3")] {
            let (most, after) = loaded(level, saved_by);
            // Moments, which there were none of before: of every rank, or one of all.
            let copies = if level.is_empty() { RANKS as i64 } else { 1 };
            let state = copies * 2 * LAYERS as i64 * TENSOR;
            println!("{level:?} from {saved_by:?}: {most} bytes at most, {after} more afterwards, state {state}");
            assert!(after >= state && after <= state + SMALL, "{level:?}: {after} bytes more, state {state}");
            let allowed = state + RANKS as i64 * (TENSOR + SMALL);
            assert!(most <= allowed, "{level:?} from {saved_by:?}: {most} bytes at most, {allowed} allowed");
        }
    });
}
