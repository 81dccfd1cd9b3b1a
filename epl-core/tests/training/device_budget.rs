//! A model whose training state is many times what the device may hold: what is said before the first step, and that it is
//! trained within the budget.

use std::fs;

use burn::optim::AdamWConfig;
use burn::tensor::Tensor;
use epl_core::config::Config;
use epl_core::{Engine, Error, MicroBatch, Result, launch};

use crate::ALLOCATOR;
use crate::layers::chain;

const RANKS: usize = 2;
const LAYERS: usize = 32;
const WIDTH: usize = 512;
/// Parameters, gradients and two moments in f32.
const STATE: u64 = (16 * LAYERS * WIDTH * WIDTH) as u64;
/// An eighth of it.
const BUDGET: u64 = STATE / 8;
/// What is mapped of files at a time.
const RESIDENT: u64 = 8 << 20;

fn config(settings: &[(&str, &str)]) -> Config {
    let config = Config::new().with("dist.data_parallel_size", RANKS).unwrap();
    let config = config.with("offload.device_bytes", BUDGET).unwrap();
    let in_files = settings.contains(&("offload.level", "v1"));
    let config = if in_files { config.with("offload.resident_bytes", RESIDENT).unwrap() } else { config };
    settings.iter().fold(config, |config, (key, value)| config.with(key, *value).unwrap())
}

/// Three steps; the losses, and the bytes in host memory of all ranks.
fn train(settings: &[(&str, &str)]) -> Result<(Vec<f64>, u64)> {
    let ranks = launch(&config(settings), |epl| {
        let mut engine = Engine::build(&epl, |at| chain(LAYERS, WIDTH, at), &AdamWConfig::new())?;
        let rank = epl.context().world().rank() as u64;
        let mut losses = Vec::new();
        for step in 0..3 {
            let rows = Tensor::<2>::ones([2, WIDTH], epl.place().device());
            let first = (step * RANKS as u64 + rank) * 2;
            losses.push(engine.step(vec![MicroBatch::new(rows, [first, first + 1])], 0.01)?.loss);
        }
        Ok((losses, engine.memory_usage().host))
    })?;
    let host = ranks.iter().map(|(_, host)| host).sum();
    Ok((ranks.into_iter().next().unwrap().0, host))
}

/// The most bytes that the process had in memory since they were last looked at; on Linux.
fn most_resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(1024 * line.trim().trim_end_matches(" kB").parse::<u64>().ok()?)
}

#[test]
fn what_does_not_fit_is_trained_in_shards_away_from_the_device() {
    epl_testing::alone(|| {
        // Without them it ends before anything is drawn.
        let before = ALLOCATOR.live();
        ALLOCATOR.look_anew();
        let refused = train(&[]).unwrap_err();
        let drawn = ALLOCATOR.most() - before;
        let text = match refused {
            Error::Rank { cause, .. } => cause.to_string(),
            other => other.to_string(),
        };
        println!("{text}");
        assert!(text.contains(&BUDGET.to_string()) && text.contains("offload.level"), "{text}");
        assert!(drawn < (STATE / 16) as i64, "{drawn} bytes were allocated for a plan");

        // In files, what is resident stays below what the device, and what is mapped, may take. First, as what was freed may
        // stay resident.

        let files = [("zero.level", "v3"), ("offload.level", "v1")];
        let before = fs::write("/proc/self/clear_refs", "5").ok().and_then(|()| most_resident());
        let (in_files, host) = train(&files).unwrap();
        assert_eq!(host, 0);
        if let (Some(before), Some(after)) = (before, most_resident()) {
            let (more, bound) = (after - before, RANKS as u64 * (BUDGET + RESIDENT));
            println!("{more} bytes more are resident, bound {bound}, state {STATE}");
            assert!(more <= bound, "{more} bytes more are resident, bound {bound}");
        }

        // In shards and in host memory it fits: what the allocator counts, less what was moved to the host.
        let levels = [("zero.level", "v3"), ("offload.level", "v0")];
        train(&levels).unwrap();
        let before = ALLOCATOR.live();
        ALLOCATOR.look_anew();
        let (losses, host) = train(&levels).unwrap();
        let device = ALLOCATOR.most() - before - host as i64;
        println!("{} bytes of the device of {BUDGET}, {} in host memory, on each rank", device / 2, host / 2);
        assert!(host >= STATE, "all state is in host memory: {host} of {STATE}");
        assert!(device <= (RANKS as u64 * BUDGET) as i64, "{device} bytes on {RANKS} devices of {BUDGET}");
        assert!(losses[2] < losses[0], "{losses:?}");
        assert_eq!(in_files, losses, "tiers agree to the bit");
    });
}
