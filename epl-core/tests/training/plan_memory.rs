//! What a plan says a rank needs is what its tensors take, in every layout; a plan draws nothing, of any size.

use burn::module::{Initializer, Module, Param};
use burn::optim::{AdafactorConfig, AdamWConfig, SgdConfig};
use burn::tensor::Tensor;
use epl_core::memory::{FigureSource, MemoryEstimate, MemoryKind, Tier, When};
use epl_core::topology::cluster::Axis;
use epl_core::{
    Chain, Config, Engine, Epl, LazyModel, MicroBatch, ParamRecord, Place, Result, WithLoss, launch, launch_dry,
};

use crate::ALLOCATOR;

const LAYERS: usize = 4;

/// A layer that is cut over the tensor axis, with experts that are cut over the expert axis, and a bias of its own.
#[derive(Module, Debug)]
struct Layer {
    weight: Param<Tensor<2>>,
    experts: Param<Tensor<3>>,
    bias: Param<Tensor<1>>,
}

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Layer>,
}

type Model = Chain<Net, Tensor<2>, Tensor<2>>;

/// A product without a collective in it: only memory matters.
fn forward(layer: &Layer, rows: Tensor<2>) -> Tensor<2> {
    let [width, _] = layer.weight.dims();
    let mixed = rows.clone().matmul(layer.weight.val()).mean_dim(1);
    let expert = layer.experts.val().mean_dim(0).reshape([width, width]);
    (rows.matmul(expert) + mixed + layer.bias.val().unsqueeze()).tanh()
}

fn layer(at: &Place, width: usize) -> Layer {
    let normal = || Initializer::Normal { mean: 0.0, std: 0.1 };
    Layer {
        weight: at.split_param([width, width], &[(Axis::Tensor, 1)], normal()),
        experts: at.split_param([4, width, width], &[(Axis::Expert, 0)], normal()),
        bias: at.param([width], normal()),
    }
}

fn model(at: &Place, width: usize) -> Model {
    let net = Net { layers: (0..LAYERS).map(|_| layer(at, width)).collect() };
    let mut chain =
        Chain::of(net).first(&["layers.0"], |net: &Net, rows: &Tensor<2>| forward(&net.layers[0], rows.clone()));
    for index in 1..LAYERS {
        chain = chain.then(&[&format!("layers.{index}")], move |net, rows, _| forward(&net.layers[index], rows));
    }
    chain.mean_loss(|_, rows, _| rows.powi_scalar(2).mean())
}

/// Replicas, stages, slices, experts.
const LAYOUTS: [[usize; 4]; 8] =
    [[1, 1, 1, 1], [2, 1, 1, 1], [3, 1, 1, 1], [4, 1, 1, 2], [2, 1, 1, 2], [2, 1, 2, 1], [2, 2, 1, 1], [4, 2, 2, 2]];
const LEVELS: [&str; 5] = ["", "v0", "v1", "v2", "v3"];

fn config([data, stages, tensor, expert]: [usize; 4], level: &str) -> Config {
    let sizes = [("data", data), ("pipeline", stages), ("tensor", tensor), ("expert", expert)];
    let config = Config::new().with("zero.level", level).unwrap().with("pipeline.num_micro_batch", stages).unwrap();
    sizes
        .into_iter()
        .fold(config, |config, (axis, size)| config.with(&format!("dist.{axis}_parallel_size"), size).unwrap())
}

fn planned(epl: &Epl, width: usize) -> Result<LazyModel<Model>> {
    epl.plan(|at| model(at, width))
}

fn bytes(estimate: &MemoryEstimate, kind: MemoryKind) -> u64 {
    estimate.lines.iter().filter(|line| line.kind == kind).filter_map(|line| line.bytes).sum()
}

/// The elements of a parameter that lie on this rank between steps, and those that it updates.
fn elements(record: &ParamRecord) -> [usize; 2] {
    let own = match &record.shard {
        Some(shard) => shard.range.len(),
        None => record.numel(),
    };
    match (record.held, record.parked) {
        (false, _) => [0, 0],
        (true, true) => [own, own],
        (true, false) => [record.numel(), own],
    }
}

#[test]
fn an_estimate_is_the_sum_over_the_records_in_every_layout() {
    epl_testing::alone(|| {
        for layout in LAYOUTS {
            for level in LEVELS {
                let world = layout[0] * layout[1] * layout[2];
                for rank in [0, world - 1] {
                    let (planned, _) = launch_dry(&config(layout, level), rank, |epl| planned(&epl, 5)).unwrap();
                    let records = planned.plan().records();
                    let sum = |which: usize| records.iter().map(|record| elements(record)[which]).sum::<usize>() as u64;
                    let estimate = planned.memory(&AdamWConfig::new()).unwrap().estimate().unwrap();
                    assert_eq!(bytes(&estimate, MemoryKind::Parameters), 4 * sum(0), "{layout:?} {level} rank {rank}");
                    assert_eq!(
                        bytes(&estimate, MemoryKind::OptimizerState),
                        8 * sum(1),
                        "{layout:?} {level} rank {rank}"
                    );
                    let whole = ["", "v0"].contains(&level) || (level == "v1" && layout[1] > 1);
                    let gradients = if whole { planned.plan().num_params_held() as u64 } else { sum(1) };
                    assert_eq!(
                        bytes(&estimate, MemoryKind::Gradients),
                        4 * gradients,
                        "{layout:?} {level} rank {rank}"
                    );
                }
            }
        }
    });
}

/// All ranks together, between two steps; beside the tensors there are plans, names and threads.
#[test]
fn what_lies_between_steps_is_what_was_said() {
    epl_testing::alone(|| {
        const WIDTH: usize = 512;
        const STEPS: usize = 2;
        /// Threads keep memory of their own for products.
        const OWN: f64 = (8 << 20) as f64;
        let measure = |layout, level| {
            let before = ALLOCATOR.live();
            let ranks = launch(&config(layout, level), |epl| {
                let estimate = planned(&epl, WIDTH)?.memory(&AdamWConfig::new())?.estimate()?;
                let mut engine = Engine::build(&epl, |at| model(at, WIDTH), &AdamWConfig::new())?;
                let rows = || Tensor::<2>::ones([2, WIDTH], epl.place().device());
                let all = epl.context().world().clone();
                let mut live = i64::MAX;
                for _ in 0..STEPS {
                    let batches =
                        (0..layout[1] as u64).map(|number| MicroBatch::new(rows(), [2 * number, 2 * number + 1]));
                    engine.step(batches.collect(), 0.01)?;
                    all.barrier()?;
                    live = live.min(ALLOCATOR.live() - before);
                    all.barrier()?;
                }
                Ok((estimate.between_steps(Tier::Device), live))
            });
            let ranks = ranks.unwrap();
            (ranks.iter().map(|rank| rank.0).sum::<u64>() as f64, ranks[0].1 as f64)
        };
        // What a process needs once.
        let _ = measure([1, 1, 1, 1], "");
        for layout in [[1, 1, 1, 1], [1, 2, 1, 1], [1, 1, 2, 1]] {
            let (said, measured) = measure(layout, "");
            let is_near = said < measured && measured < said * 1.03 + OWN;
            assert!(is_near, "{layout:?}: {said} bytes said, {measured} measured");
        }
        // Replicas: the memory of results waits for the next ones, of parameters and of gradients.
        let results = (2 * 2 * 4 * LAYERS * (5 * WIDTH * WIDTH + WIDTH)) as f64;
        for (level, layout) in LEVELS.into_iter().zip([[2, 1, 1, 1]; 5]) {
            let (said, measured) = measure(layout, level);
            let is_between = said < measured && measured < (said + results) * 1.03 + OWN;
            assert!(is_between, "{level:?}: {said} bytes said, {measured} measured, {results} of results at most");
        }
    });
}

#[test]
fn an_optimizer_that_looks_at_whole_tensors_has_owners() {
    epl_testing::alone(|| {
        let config = config([3, 1, 1, 1], "v2");
        let states: Vec<u64> = (0..3)
            .map(|rank| {
                let (planned, _) = launch_dry(&config, rank, |epl| planned(&epl, 5)).unwrap();
                let estimate = planned.memory(&AdafactorConfig::new()).unwrap().estimate().unwrap();
                bytes(&estimate, MemoryKind::OptimizerState)
            })
            .collect();
        // A row and a column of each matrix; the bias as it is.
        let whole = LAYERS * ((5 + 5) + 4 * (5 + 5) + 5) * 4;
        assert_eq!(states.iter().sum::<u64>(), whole as u64, "{states:?}");
        let sgd = |epl: Epl| planned(&epl, 5)?.memory(&SgdConfig::new())?.estimate();
        assert_eq!(bytes(&launch_dry(&config, 0, sgd).unwrap().0, MemoryKind::OptimizerState), 0);
    });
}

#[test]
fn a_plan_of_any_size_draws_nothing() {
    epl_testing::alone(|| {
        let config = config([4096, 1, 1, 4], "v3");
        let before = ALLOCATOR.live();
        ALLOCATOR.look_anew();
        let ((), _) = launch_dry(&config, 4095, |epl| {
            let planned = planned(&epl, 100_000)?;
            assert_eq!(planned.plan().num_params(), LAYERS * (5 * 100_000 * 100_000 + 100_000));
            let text = format!("{}\n{}", planned.plan(), planned.memory(&AdamWConfig::new())?.estimate()?);
            assert!(text.contains("4096 ranks") && text.contains("this rank's shards of"), "{text}");
            Ok(())
        })
        .unwrap();
        assert!(ALLOCATOR.most() - before < 100 << 20, "{} bytes for a plan", ALLOCATOR.most() - before);
    });
}

#[test]
fn activations_of_two_sizes_tell_those_of_a_third() {
    epl_testing::alone(|| {
        // Tables of the graph that all ranks share grow and go on whichever thread comes by: some hundred bytes, which going on
        // to sixteen times as many rows makes fifteen times as many. So wide that those are a hundredth.
        const WIDTH: usize = 256;
        let rows = |rows: usize, device: &burn::tensor::Device| Tensor::<2>::ones([rows, WIDTH], device);
        for layout in [[1, 1, 1, 1], [1, 2, 1, 1]] {
            let ranks = launch(&config(layout, ""), |epl| {
                let planned = planned(&epl, WIDTH)?;
                let activations = planned.activations([16, 32], rows)?.expect("this program counts");
                let third = planned.activations([128, 256], rows)?.expect("this program counts");
                Ok((activations, third))
            });
            for (rank, (few, many)) in ranks.unwrap().into_iter().enumerate() {
                let of = |all: &epl_core::memory::Activations| {
                    all.segments.iter().flatten().map(|segment| segment.stored.at(256)).collect::<Vec<_>>()
                };
                let (few, many) = (of(&few), of(&many));
                assert_eq!(few.len(), LAYERS / layout[1], "rank {rank} knows the segments of its stage");
                for (few, many) in few.iter().zip(&many) {
                    assert!((few / many - 1.0).abs() < 0.05, "{few} bytes extrapolated, {many} measured");
                    assert!(*many > (256 * WIDTH * 4) as f64, "at least what enters");
                }
            }
        }
    });
}

#[test]
fn activations_in_16_bits_are_half_of_them() {
    epl_testing::alone(|| {
        const WIDTH: usize = 256;
        let rows = |rows: usize, device: &burn::tensor::Device| Tensor::<2>::ones([rows, WIDTH], device);
        let stored = |level: &str| {
            let config = config([1, 1, 1, 1], "").with("amp.level", level).unwrap();
            let activations = launch(&config, |epl| planned(&epl, WIDTH)?.activations([64, 128], rows)).unwrap();
            let segments = activations[0].as_ref().expect("this program counts").segments.clone();
            // Of the last one also the loss, in f32.
            segments[..LAYERS - 1].iter().flatten().map(|segment| segment.stored.at(128)).collect::<Vec<_>>()
        };
        let (whole, half) = (stored(""), stored("O1"));
        for (half, whole) in half.iter().zip(&whole) {
            assert!((0.45..0.6).contains(&(half / whole)), "{half} bytes in 16 bits, of {whole}");
        }
    });
}

#[test]
fn recomputation_stores_less_and_its_source_is_told() {
    epl_testing::alone(|| {
        let line = |checkpoint: &str| {
            let config = config([1, 1, 1, 1], "").with("gradient_checkpoint.type", checkpoint).unwrap();
            let (line, _) = launch_dry(&config, 0, |epl| {
                let planned = planned(&epl, 64)?;
                let activations = planned.activations([8, 16], |rows, device| Tensor::<2>::ones([rows, 64], device))?;
                let estimate =
                    planned.memory(&AdamWConfig::new())?.with_activations(activations.as_ref(), 512).estimate()?;
                Ok(estimate.lines.into_iter().find(|line| line.kind == MemoryKind::Activations).unwrap())
            })
            .unwrap();
            line
        };
        let (stored, again) = (line(""), line("auto"));
        assert_eq!((stored.source, stored.when), (FigureSource::Extrapolated, When::Forward));
        assert!(again.bytes < stored.bytes && again.bytes > Some(0), "{again:?} {stored:?}");
    });
}

#[test]
fn what_does_not_fit_is_told_with_the_first_setting_that_does() {
    epl_testing::alone(|| {
        let config = config([4, 1, 1, 1], "");
        let message = |budget: u64| {
            let checked =
                launch_dry(&config, 0, |epl| planned(&epl, 64)?.memory(&AdamWConfig::new())?.check(budget).map(|_| ()));
            checked.map(|_| String::new()).unwrap_or_else(|error| error.to_string())
        };
        let params = (LAYERS * (5 * 64 * 64 + 64)) as u64;
        assert_eq!(message(20 * params), "");
        let tight = message(15 * params);
        assert!(tight.contains("with zero.level = v0 it needs at least"), "{tight}");
        let (needed, budget) = (16 * params, 8 * params);
        let tighter = message(budget);
        assert!(tighter.contains("with zero.level = v3 it needs at least"), "{tighter}");
        assert!(tighter.contains(&format!("there are {budget} bytes")) && needed > budget, "{tighter}");
        // With v3 these buckets would have no effect, and be refused.
        let given = config.clone().with("communication.max_splits", 8).unwrap();
        let checked =
            launch_dry(&given, 0, |epl| planned(&epl, 64)?.memory(&AdamWConfig::new())?.check(budget).map(|_| ()));
        let told = checked.unwrap_err().to_string();
        assert!(!told.contains("v3") && !told.contains("offload.level"), "{told}");
    });
}

fn offloaded(level: &str) -> Config {
    config([1, 1, 1, 1], "").with("offload.level", level).unwrap()
}

#[test]
fn offload_is_named_with_what_the_plan_of_it_needs_and_only_where_it_can_be() {
    epl_testing::alone(|| {
        let needed = |config: &Config, budget: Option<u64>| {
            let planned = |epl: Epl| {
                let planned = planned(&epl, 64)?;
                let stored = planned.activations([8, 16], |rows, device| Tensor::<2>::ones([rows, 64], device))?;
                let memory = planned.memory(&AdamWConfig::new())?.with_activations(stored.as_ref(), 512);
                let estimate = budget.map_or_else(|| memory.estimate(), |budget| memory.check(budget));
                Ok(estimate.map(|estimate| estimate.peak(Tier::Device)))
            };
            launch_dry(config, 0, planned).unwrap().0
        };
        // What segments store is not stored under it, as they are run again.
        let budget = needed(&offloaded("v0"), None).unwrap();
        let told = needed(&offloaded(""), Some(budget)).unwrap_err().to_string();
        assert!(told.contains(&format!("; with offload.level = v0 it needs {budget} bytes")), "{told}");

        // One segment, of which nothing can be put away.
        let config = config([1, 1, 1, 1], "");
        let whole = |epl: Epl| {
            let model = |at: &Place| {
                WithLoss::new(layer(at, 64), |layer: &Layer, rows: &Tensor<2>| forward(layer, rows.clone()).mean())
            };
            epl.plan(model)?.memory(&AdamWConfig::new())?.check(1000).map(|_| ())
        };
        let told = launch_dry(&config, 0, whole).unwrap_err().to_string();
        assert!(told.contains("a step needs") && !told.contains("offload.level"), "{told}");
    });
}

#[test]
fn offloaded_state_lies_where_it_is_said() {
    epl_testing::alone(|| {
        let files = offloaded("v1").with("offload.resident_bytes", 1000).unwrap();
        let estimates = [offloaded(""), offloaded("v0"), files].map(|config| {
            launch_dry(&config, 0, |epl| planned(&epl, 64)?.memory(&AdamWConfig::new())?.estimate()).unwrap().0
        });
        let states = 16 * (LAYERS * (5 * 64 * 64 + 64)) as u64;
        assert_eq!(estimates.clone().map(|estimate| estimate.peak(Tier::Host)), [0, states, 1000]);
        assert_eq!(estimates.clone().map(|estimate| estimate.peak(Tier::Disk)), [0, 0, states]);
        assert!(estimates[1].peak(Tier::Device) < estimates[0].peak(Tier::Device) / 2);
    });
}
