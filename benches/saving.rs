//! What a checkpoint costs: how long training waits, and how fast it is written and read.
//!
//! ```text
//! cargo bench --bench saving [-- PAIRS]
//! ```
//!
//! Two ranks with AdamW. Training waits for what is set aside, against a copy of the same bytes in memory by as many threads
//! (the bound is one copy); the next step, while the checkpoint is written, is held against one without. A checkpoint is
//! written, with its checksums, and synced, against a copy of the same files, synced; it is loaded, verified, against reading
//! the same files. All are alternated; medians of the pairs' ratios, with quartiles.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::Tensor;
use epl::comm::ProcessGroup;
use epl::config::Config;
use epl::trainer::{CheckpointId, Checkpoints, RunState};
use epl::{Engine, Epl, Error, MicroBatch, Place, Result, WithLoss, launch};
use epl_benches::quartiles::{quartiles, show};

const RANKS: usize = 2;
const LAYERS: usize = 6;
const WIDTH: usize = 2048;
const WARM_UP: usize = 2;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

fn net(at: &Place) -> WithLoss<Net, Tensor<2>> {
    let layers = (0..LAYERS).map(|_| LinearConfig::new(WIDTH, WIDTH).with_bias(false).init(at)).collect();
    let loss =
        |net: &Net, x: &Tensor<2>| net.layers.iter().fold(x.clone(), |x, layer| layer.forward(x)).powi_scalar(2).mean();
    WithLoss::new(Net { layers }, loss)
}

/// Seconds from when all ranks begin to when all are done.
fn timed(world: &ProcessGroup, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    world.barrier()?;
    let start = Instant::now();
    work()?;
    world.barrier()?;
    Ok(start.elapsed().as_secs_f64())
}

fn step(epl: &Epl, engine: &mut Engine<WithLoss<Net, Tensor<2>>>, number: u64) -> Result<()> {
    let first = (number * RANKS as u64 + epl.context().world().rank() as u64) * 2;
    let x = Tensor::ones([2, WIDTH], epl.place().device());
    engine.step(vec![MicroBatch::new(x, [first, first + 1])], 1e-4).map(|_| ())
}

/// The files of a checkpoint, the largest first.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path()).collect();
    files.sort_by_key(|file| std::cmp::Reverse(fs::metadata(file).map_or(0, |found| found.len())));
    files
}

fn copy_synced(file: &Path, to: &Path) -> Result<()> {
    let copied = fs::copy(file, to).and_then(|_| File::open(to)?.sync_all());
    copied.map_err(|error| Error::file(to, error))
}

fn read(file: &Path, buffer: &mut [u8]) -> Result<()> {
    let mut open = File::open(file).map_err(|error| Error::file(file, error))?;
    while open.read(buffer).map_err(|error| Error::file(file, error))? > 0 {}
    black_box(buffer);
    Ok(())
}

/// The ratios of one kind, and the median of what one of ours took.
#[derive(Default)]
struct Ratios(Vec<f64>, Vec<f64>);

impl Ratios {
    fn add(&mut self, ours: f64, other: f64) {
        self.0.push(ours / other);
        self.1.push(ours);
    }

    fn show(&self, what: &str) {
        println!(
            "{what}: {} times as long; {:.1} ms",
            show(quartiles(self.0.clone())),
            1e3 * quartiles(self.1.clone())[1]
        );
    }
}

fn measure(epl: &Epl, out: &Path, pairs: usize) -> Result<[Ratios; 4]> {
    let (world, rank) = (epl.context().world().clone(), epl.context().world().rank());
    let mut engine = Engine::build(epl, net, &AdamWConfig::new())?;
    let checkpoints = Checkpoints::new(out, 1);
    let mut found: [Ratios; 4] = Default::default();
    for pair in 0..WARM_UP + pairs {
        let plain_step = timed(&world, || step(epl, &mut engine, 2 * pair as u64))?;
        // Parameters and two moments; each rank writes half.
        let state: Vec<u8> = vec![1; 12 * LAYERS * WIDTH * WIDTH / RANKS];
        let saved = RunState { step: engine.steps(), ..RunState::new(0, "in order".into(), "2 ranks".into()) };
        let waits = timed(&world, || checkpoints.start(&world, &saved, engine.snapshot()?).map(|_| ()))?;
        let written = timed(&world, || checkpoints.settle(&world).map(|_| ()))? + waits;
        let copied = timed(&world, || {
            black_box(state.clone());
            Ok(())
        })?;
        let folder = checkpoints.find(CheckpointId::Latest)?;
        let own = files(&folder)[rank].clone();
        let plain = timed(&world, || copy_synced(&own, &out.join(format!("copy-{rank}"))))?;
        let loaded = timed(&world, || engine.load(&folder))?;
        let mut buffer = vec![0; 1 << 20];
        // Every rank holds all, and reads both files.
        let plainly = timed(&world, || files(&folder)[..RANKS].iter().try_for_each(|file| read(file, &mut buffer)))?;
        let saved = RunState { step: engine.steps() + 1, ..saved };
        checkpoints.start(&world, &saved, engine.snapshot()?)?;
        let next_step = timed(&world, || step(epl, &mut engine, 2 * pair as u64 + 1))?;
        checkpoints.settle(&world)?;
        if pair >= WARM_UP {
            let [a, b, c, d] = &mut found;
            a.add(waits, copied);
            b.add(written, plain);
            c.add(loaded, plainly);
            d.add(next_step, plain_step);
        }
    }
    Ok(found)
}

/// Where the optimizer's state lies: Burn's, or ours that is updated in one pass.
const TIERS: [(&str, &str); 2] = [("device", "state that Burn keeps"), ("host", "state in host memory")];

fn main() {
    let pairs = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(30);
    let bytes = 12 * LAYERS * WIDTH * WIDTH;
    println!("{bytes} bytes of parameters and AdamW's state, {RANKS} ranks, {pairs} pairs");
    TIERS.iter().for_each(|(tier, words)| case(tier, words, pairs));
}

fn case(tier: &str, words: &str, pairs: usize) {
    let out = std::env::temp_dir().join(format!("epl-saving-{}", std::process::id()));
    let config = Config::new().with("dist.data_parallel_size", RANKS).expect("an option");
    let config = config.with("offload.optimizer_state", tier).expect("an option");
    let ran = launch(&config, |epl| measure(&epl, &out, pairs));
    let _ = fs::remove_dir_all(&out);
    match ran {
        Ok(ranks) => {
            println!("{words}:");
            ranks[0][0].show("training waits ÷ a copy in memory");
            ranks[0][1].show("written and synced ÷ files copied and synced");
            ranks[0][2].show("loaded and verified ÷ files read");
            ranks[0][3].show("a step while a checkpoint is written ÷ a step");
        }
        Err(error) => eprintln!("error: {error}"),
    }
}
