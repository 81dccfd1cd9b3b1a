//! As little is run again as a budget for what is stored allows; the budget is kept, and nothing else changes.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Tensor, TensorData};
use epl_comm::ThreadMemory;
use epl_core::probe::Profile;
use epl_core::{Chain, Config, Engine, Error, MicroBatch, Place, launch};
use std::collections::BTreeMap;
use std::ops::Range;

const WIDTH: usize = 32;
const ROWS: usize = 512;
const LAYERS: usize = 8;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    head: Linear,
}

type Model = Chain<Net, Tensor<2>, Tensor<2>>;

fn chain(at: &Place) -> Model {
    let linear = |outputs| LinearConfig::new(WIDTH, outputs).init(at);
    let net = Net { layers: (0..LAYERS).map(|_| linear(WIDTH)).collect(), head: linear(1) };
    let layer = |linear: &Linear, rows: Tensor<2>| linear.forward(rows).tanh().exp().sin();
    let first =
        Chain::of(net).first(&["layers.0"], move |net: &Net, rows: &Tensor<2>| layer(&net.layers[0], rows.clone()));
    let layers = (1..LAYERS).fold(first, |chain, index| {
        chain.then(&[&format!("layers.{index}")], move |net, rows, _| layer(&net.layers[index], rows))
    });
    layers.then(&["head"], |net, rows, _| net.head.forward(rows)).mean_loss(|_, rows, _| rows.powi_scalar(2).mean())
}

fn config(stages: usize, budget: Option<u64>) -> Config {
    let mut config = Config::new().with("dist.pipeline_parallel_size", stages).unwrap();
    if let Some(bytes) = budget {
        config.set("gradient_checkpoint.type", "auto").unwrap();
        config.set("gradient_checkpoint.budget", bytes).unwrap();
    } else {
        config.set("profile.segments", true).unwrap();
    }
    config
}

struct Ran {
    profile: Profile,
    recomputed: Vec<Range<usize>>,
    loss: f64,
    gradients: BTreeMap<String, TensorData>,
    /// The most that two steps stored at once, over the stages.
    peak: u64,
}

fn run(stages: usize, micro_batches: u64, budget: Option<u64>) -> Result<Ran, Error> {
    let ranks = launch(&config(stages, budget), |epl| {
        let mut engine = Engine::build(&epl, chain, &SgdConfig::new())?;
        let device = epl.place().device().clone();
        let batch = || {
            let rows = |sample: u64| Tensor::full([ROWS, WIDTH], 0.1 * (1.0 + sample as f64), &device);
            (0..micro_batches).map(|sample| MicroBatch::new(rows(sample), [sample])).collect::<Vec<_>>()
        };
        let (first, batch) = (batch(), batch());
        // What the backend allocates once for every thread is none of the step's.
        drop(Tensor::<2>::ones([ROWS, WIDTH], &device).matmul(Tensor::ones([WIDTH, WIDTH], &device)));
        let before = ThreadMemory::now().unwrap().live;
        ThreadMemory::look_anew();
        // The first step too, in which segments are measured.
        let loss = engine.step(first, 0.0)?.loss;
        let (report, gradients) = engine.gradients(batch)?;
        assert_eq!(report.loss, loss);
        let peak = (ThreadMemory::now().unwrap().most - before) as u64;
        let (profile, recomputed) = (engine.profiled().unwrap().clone(), engine.plan().recompute.clone());
        Ok(Ran { profile, recomputed, loss, gradients, peak })
    })?;
    let peak = ranks.iter().map(|rank| rank.peak).max().unwrap();
    Ok(Ran { peak, ..ranks.into_iter().next().unwrap() })
}

/// What all segments of a forward store, by the profile.
fn stored(profile: &Profile) -> u64 {
    profile.0.iter().map(|segment| segment.activation_bytes.unwrap()).sum()
}

#[test]
fn as_little_as_the_budget_allows_is_run_again() {
    epl_testing::alone(|| {
        let free = run(1, 1, None).unwrap();
        assert!(free.recomputed.is_empty());
        let all = stored(&free.profile);
        let tensor = (ROWS * WIDTH * size_of::<f32>()) as u64;
        let layer = free.profile.0[3].activation_bytes.unwrap();
        assert!(layer >= 4 * tensor && layer < 5 * tensor, "{layer} bytes for four operations on {tensor}");
        let flops = (2 * ROWS * WIDTH * WIDTH) as f64;
        assert_eq!((free.profile.0[3].carry_bytes, free.profile.0[3].flops), (tensor, Some(flops)));
        let budgets = [2 * all, all * 7 / 10, all / 2, all * 2 / 5];
        let runs = budgets.map(|budget| run(1, 1, Some(budget)).unwrap());
        let recomputed = runs.each_ref().map(|ran| ran.recomputed.iter().map(ExactSizeIterator::len).sum::<usize>());
        assert_eq!(recomputed[0], 0, "there is room for all");
        // By measured times, so how many are told exactly by tests of the choice alone.
        assert!(recomputed[1..].iter().all(|count| *count > 0), "{recomputed:?}");
        for (budget, ran) in budgets.iter().zip(&runs) {
            assert_eq!((ran.loss, &ran.gradients), (free.loss, &free.gradients), "to the bit");
            // Beside what is stored, a backward holds gradients of what it goes through.
            println!("{budget} bytes allowed, at most {} at once, {:?} run again", ran.peak, ran.recomputed);
            assert!(ran.peak <= budget + 5 * tensor, "{} bytes, {budget} are allowed", ran.peak);
        }
        assert!(free.peak > all * 9 / 10, "{} bytes were seen of {all}", free.peak);
    });
}

#[test]
fn a_stage_that_has_more_in_flight_runs_more_again() {
    epl_testing::alone(|| {
        let free = run(2, 4, None).unwrap();
        let (stages, all) = (2, stored(&free.profile));
        let ran = run(stages, 4, Some(all * 7 / 10)).unwrap();
        let of = |stage: usize| {
            let segments = ran.recomputed.iter().flat_map(Clone::clone);
            segments.filter(|segment| ran.profile.0[*segment].stage == stage).count()
        };
        assert!(of(0) > 0 && of(1) == 0, "{:?}", ran.recomputed);
        assert_eq!((ran.loss, &ran.gradients), (free.loss, &free.gradients));
        // Every rank knows the choice of all stages.
        let text = ran.profile.to_string();
        assert!(text.lines().count() == 1 + LAYERS + 1 && text.contains("layers.7") && text.contains("head"), "{text}");
    });
}

#[test]
fn a_budget_that_cannot_be_kept_is_refused_before_the_first_step() {
    epl_testing::alone(|| {
        let refused = |bytes| run(1, 1, Some(bytes)).map(|ran| ran.loss).unwrap_err().to_string();
        let error = refused(100_000);
        assert!(error.contains("gradient_checkpoint.budget") && error.contains("allow "), "{error}");
        let error = refused(10);
        assert!(error.contains("10 bytes are allowed") && error.contains("never run again"), "{error}");
        let planned = |change: &dyn Fn(&mut Config)| {
            let mut config = config(2, Some(1 << 20));
            change(&mut config);
            launch(&config, |epl| epl.build(chain).map(|_| ())).unwrap_err().to_string()
        };
        let error = planned(&|config| config.set("gradient_checkpoint.type", "collection").unwrap());
        assert!(error.contains("budget = 1048576") && error.contains("collection"), "{error}");
        let error = planned(&|config| config.set("gradient_checkpoint.end_taskgraph", 0).unwrap());
        assert!(error.contains("end_taskgraph = 0"), "{error}");
        let error = planned(&|config| config.set("pipeline.num_chunks", 2).unwrap());
        assert!(error.contains("2 parts"), "{error}");
    });
}
