//! What a search finds within a budget of memory, and what a step of it holds.
//!
//! ```text
//! cargo bench --bench budgets -- moe_t5 | t5 | bert | gpt2 | llama | mixtral | vit | resnet50 [--batch 16] [--set KEY=VALUE]
//! ```
//!
//! Two ranks, threads of this machine, of which each has the budget: from 0.3 to 1.2 of what a replica needs that stores all. What is
//! found is run, and `held` is what both ranks together hold at most in a step with AdamW, beside their batches, as the allocator counts
//! it, beside twice the budget; state is not put away, as host memory is the same here. Where nothing is found, layouts are looked at
//! one by one: data with experts divided or not and every ZeRO level, tensor, or two stages cut anywhere; with every number of
//! micro-batches that divides the rows, or one where layers take something over the rows of a micro-batch, which a search leaves as it
//! is; and segments run again from the first one on, as many as there are. None of them may fit. Exits with 1 if one is refused that
//! fits, or both ranks hold more than they may.

use std::ops::Range;

use burn::optim::AdamWConfig;
use burn::tensor::Device;
use clap::Parser;
use epl::auto::{CostTable, Sample};
use epl::comm::CountingAllocator;
use epl::config::Layers;
use epl::memory::Tier;
use epl::prelude::*;
use epl_benches::steps::{LR, Sizes, WithModel, steps_in_layout};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

#[derive(Parser, Clone)]
struct Args {
    /// A model: moe_t5, t5, bert, gpt2, llama, mixtral, vit, resnet50
    model: String,
    #[command(flatten)]
    sizes: Sizes,
    /// `cargo bench` passes it
    #[arg(long, hide = true)]
    bench: bool,
}

const RANKS: usize = 2;
/// Budgets, as parts of what a replica needs that stores all.
const PARTS: [f64; 10] = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2];
/// Steps; the most that the last one holds counts.
const STEPS: usize = 3;

/// What a search and its layouts are told: state stays on the device.
fn config(options: &[(&str, String)]) -> epl::Result<Config> {
    let said = options.iter().map(|(key, value)| format!("{key}={value}"));
    let said = said.chain([format!("cluster.ranks={RANKS}"), "offload.level=".to_string()]);
    Ok(Layers::new().command_line(said)?.resolve()?)
}

/// So that activations are counted.
fn bounded_by(bytes: u64) -> (&'static str, String) {
    ("offload.device_bytes", bytes.to_string())
}

/// What a model's segments take for so many rows, how many these are, and whether layers take something over the rows of a micro-batch.
struct Measure(Epl, usize);

impl WithModel for Measure {
    type Output = (CostTable, usize, bool);

    fn run<M: Model>(
        self,
        model: impl Fn(&Place) -> M,
        batch: impl Fn(Range<usize>, &Device) -> M::Batch,
    ) -> epl::Result<Self::Output> {
        let lazy = self.0.plan(&model)?;
        let (segments, over_micro_batch) = (lazy.plan().segments.len(), !lazy.plan().over_micro_batch.is_empty());
        let sample = Sample::new(self.1, |count, device: &Device| batch(0..count, device));
        Ok((self.0.cost_table(model, &AdamWConfig::new(), sample)?, segments, over_micro_batch))
    }
}

/// The most bytes that all ranks hold in a step, beside its batches and what there was before.
struct Held(Epl, usize, i64);

impl WithModel for Held {
    type Output = i64;

    fn run<M: Model>(
        self,
        model: impl Fn(&Place) -> M,
        batch: impl Fn(Range<usize>, &Device) -> M::Batch,
    ) -> epl::Result<i64> {
        let Self(epl, rows, before) = self;
        let batches = {
            let before = ALLOCATOR.live();
            let _whole = batch(0..rows, epl.place().device());
            (ALLOCATOR.live() - before).max(0)
        };
        let (all, mut most) = (epl.context().world().clone(), 0);
        steps_in_layout(&epl, (model, batch), (rows, STEPS), |engine, step| {
            ALLOCATOR.look_anew();
            all.barrier()?;
            engine.step(step, LR)?;
            all.barrier()?;
            most = ALLOCATOR.most();
            // Nobody begins anew before all have looked.
            Ok(all.barrier()?)
        })?;
        Ok(most - before - batches)
    }
}

/// Layouts of two ranks with so many micro-batches, as options.
fn layouts(segments: usize, numbers: impl Iterator<Item = usize>) -> Vec<Vec<(&'static str, String)>> {
    let mut all = Vec::new();
    for micro_batches in numbers {
        let runs = |count: usize| -> Vec<(&'static str, String)> {
            let runs: Vec<String> = (0..count).map(|segment| format!("{segment}..{}", segment + 1)).collect();
            match count {
                0 => Vec::new(),
                _ => vec![
                    ("gradient_checkpoint.type", "collection".to_string()),
                    ("gradient_checkpoint.runs", runs.join(",")),
                ],
            }
        };
        let mut layout = |options: &[(&'static str, String)], again: usize| {
            let own = [("pipeline.num_micro_batch", micro_batches.to_string())];
            all.push([&own[..], options, &runs(again)].concat());
        };
        for again in 0..segments {
            layout(&[("dist.tensor_parallel_size", RANKS.to_string())], again);
            for (zero, expert) in ["", "v1", "v2"].into_iter().flat_map(|zero| [(zero, 1), (zero, RANKS)]) {
                let expert = ("dist.expert_parallel_size", expert.to_string());
                layout(&[("zero.level", zero.to_string()), expert], again);
            }
            for cut in 1..segments {
                layout(&[("dist.pipeline_parallel_size", "2".to_string()), ("pipeline.cuts", cut.to_string())], again);
            }
        }
        for expert in [1, RANKS] {
            layout(&[("zero.level", "v3".to_string()), ("dist.expert_parallel_size", expert.to_string())], 0);
        }
    }
    all
}

fn main() -> epl::Result<()> {
    let args = Args::parse();
    let rows = args.sizes.batch;
    let step = args.sizes.step(&args.model, RANKS, 3);
    step.check()?;
    let unbounded = [bounded_by(1 << 50)];
    let measure = |epl: Epl| step.with_model(Measure(epl, rows));
    let (table, segments, over_micro_batch) = epl::launch(&config(&unbounded)?, measure)?.swap_remove(0);
    let needed = |options: &[(&'static str, String)]| -> Option<u64> {
        let choice = table.explain(&config(&[options, &unbounded].concat()).ok()?).ok()?;
        choice.memory().iter().map(|stage| stage.peak(Tier::Device)).max()
    };
    let most = if over_micro_batch { 1 } else { rows };
    let numbers = (1..=most).filter(|number| rows.is_multiple_of(*number));
    let Some(plain) = needed(&[]) else { return Err(epl::Error::invalid("two replicas are no layout")) };
    let every: Vec<(u64, Vec<(&str, String)>)> =
        layouts(segments, numbers).into_iter().filter_map(|layout| Some((needed(&layout)?, layout))).collect();
    println!("two replicas that store all: {plain} bytes each; {} layouts are possible", every.len());
    let held = |config: &Config| -> epl::Result<i64> {
        let before = ALLOCATOR.live();
        Ok(epl::launch(config, |epl| step.with_model(Held(epl, rows, before)))?[0])
    };
    // What a process needs once.
    held(&config(&[])?)?;
    let (mut over, mut refused) = (0, 0);
    for part in PARTS {
        let budget = (part * plain as f64) as u64;
        let given = config(&[("auto.auto_parallel", "true".to_string()), bounded_by(budget)])?;
        match table.search(&given) {
            Ok(found) => {
                let (best, bytes) = (found.best(), held(found.best().config())?);
                let most = RANKS as i64 * budget as i64;
                let stages = best.memory().iter().map(|stage| stage.peak(Tier::Device));
                let estimated = stages.sum::<u64>() as f64 * RANKS as f64 / best.memory().len() as f64;
                over += usize::from(bytes > most);
                let [held, estimated] = [bytes as f64, estimated].map(|bytes| bytes / most as f64);
                println!("{part:.1}: held {held:.3}, estimated {estimated:.3} of {most} bytes  {}", best.words());
            }
            Err(error) => {
                let margin = 1.0 + given.auto.margin;
                let fits = every.iter().filter(|(bytes, _)| *bytes as f64 * margin <= budget as f64);
                let fits: Vec<&Vec<(&str, String)>> = fits.map(|(_, layout)| layout).collect();
                refused += usize::from(!fits.is_empty());
                let told = error.to_string();
                println!(
                    "{part:.1}: {}; of all {} fit {:?}",
                    told.lines().next().unwrap_or(&told),
                    fits.len(),
                    fits.first()
                );
            }
        }
    }
    println!("name={} budgets={} over={over} refused_though_one_fits={refused}", args.model, PARTS.len());
    if over + refused > 0 {
        std::process::exit(1);
    }
    Ok(())
}
