//! The step with sharded or offloaded state, against plain data parallelism, on two ranks.
//!
//! Both programs are alternated, pair by pair; what is printed is the median of the pairs' ratios, with quartiles. The
//! bound for v0, v1 and v2 is 1.10. Under v3, and where parameters are offloaded, every segment but the last is run again
//! in backward.
//!
//! ```text
//! cargo bench --bench sharded_step [-- PAIRS]
//! ```

use std::time::Instant;

use burn::optim::AdamWConfig;
use epl::comm::{ProcessGroup, local};
use epl::config::Config;
use epl::models::t5::{T5, T5Batch};
use epl::topology::cluster::Mesh;
use epl::{Engine, Epl, Error, MicroBatch};
use epl_benches::moe::{batch, model};
use epl_benches::quartiles::{quartiles, show};

const RANKS: usize = 2;
const ROWS: usize = 8;
const RATE: f64 = 1e-4;
const WARM_UP: usize = 3;

/// What is measured against plain data parallelism.
const CASES: [(&str, &[(&str, &str)]); 8] = [
    ("plain", &[]),
    ("zero v0", &[("zero.level", "v0")]),
    ("zero v1", &[("zero.level", "v1")]),
    ("zero v2", &[("zero.level", "v2")]),
    ("zero v3", &[("zero.level", "v3")]),
    ("optimizer state in host memory", &[("offload.optimizer_state", "host")]),
    ("offload v0", &[("offload.level", "v0")]),
    ("zero v3, offload v0", &[("zero.level", "v3"), ("offload.level", "v0")]),
];

/// An engine with these settings, among the same ranks as others.
fn engine(group: &ProcessGroup, name: &str, settings: &[(&str, &str)]) -> Result<(Epl, Engine<T5>), Error> {
    let config = Config::new().with("dist.data_parallel_size", RANKS)?;
    let config = settings.iter().try_fold(config, |config, (key, value)| config.with(key, *value))?;
    let mesh = Mesh::from_config(&config)?;
    let epl = Epl::new(config, mesh, group.split(name, 0, group.rank())?, None)?;
    let engine = Engine::build(&epl, |place| model().init(place), &AdamWConfig::new())?;
    Ok((epl, engine))
}

/// The seconds of one step, from when all ranks begin to when all are done.
fn step(group: &ProcessGroup, engine: &mut Engine<T5>, batch: &MicroBatch<T5Batch>) -> Result<f64, Error> {
    group.barrier()?;
    let start = Instant::now();
    engine.step(vec![batch.clone()], RATE)?;
    group.barrier()?;
    Ok(start.elapsed().as_secs_f64())
}

fn main() {
    // `cargo bench` passes `--bench`.
    let pairs: usize = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(30);
    for (name, settings) in CASES {
        let ran = local::run(RANKS, |group| {
            let (epl, mut plain) = engine(&group, "plain", &[])?;
            let (_, mut other) = engine(&group, "other", settings)?;
            let rows = group.rank() * ROWS..(group.rank() + 1) * ROWS;
            let batch = MicroBatch::new(batch(&epl, rows.clone()), rows.map(|row| row as u64).collect::<Vec<_>>());
            let mut times = Vec::new();
            for _ in 0..WARM_UP + pairs {
                times.push((step(&group, &mut other, &batch)?, step(&group, &mut plain, &batch)?));
            }
            Ok::<_, Error>(times.split_off(WARM_UP))
        });
        let times = ran.unwrap_or_else(|error| panic!("{name}: {error:?}")).swap_remove(0);
        let ratio = quartiles(times.iter().map(|(other, plain)| other / plain).collect());
        let [_, median, _] = quartiles(times.iter().map(|(_, plain)| 1e3 * plain).collect());
        println!("{name} ÷ plain: {} of {pairs} pairs; plain {median:.0} ms", show(ratio));
    }
}
