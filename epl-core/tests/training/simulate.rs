//! When ranks do what, by the lists of their steps. (`tests/layouts` holds the lists equal to what the engine does.)
#![allow(clippy::unwrap_used)]

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor};
use epl_comm::Trace;
use epl_core::config::Layers;
use epl_core::simulate::{
    Called, Costs, Members, Op, Purpose, RunKind, StepProgram, StepShapes, StepTimeline, TimedOp, simulate_step,
};
use epl_core::{Chain, Config, Engine, EngineSettings, MicroBatch, Place, launch_dry, launch_traced};

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

/// Eight layers, each a segment.
fn chain(at: &Place) -> Chain<Net, Tensor<2>, Tensor<2>> {
    let net = Net { layers: (0..8).map(|_| LinearConfig::new(3, 3).init(at)).collect() };
    let first = Chain::of(net).first(&["layers.0"], |net: &Net, rows: &Tensor<2>| net.layers[0].forward(rows.clone()));
    let layers = (1..8).fold(first, |chain, index| {
        chain.then(&[&format!("layers.{index}")], move |net, rows, _| net.layers[index].forward(rows))
    });
    layers.mean_loss(|_, rows, _| rows.mean())
}

fn config(options: &[(&str, &str)]) -> Config {
    let said = options.iter().map(|(key, value)| format!("{key}={value}"));
    Layers::new().command_line(said).unwrap().resolve().unwrap()
}

/// The lists of all ranks for so many micro-batches of one row.
fn programs(config: &Config, ranks: usize, micro_batches: usize) -> Vec<StepProgram> {
    let program = |rank| {
        let (program, _) = launch_dry(config, rank, |epl| {
            let lazy = epl.plan(chain)?;
            let shapes: StepShapes =
                lazy.step_shapes(&[1], &vec![0; micro_batches], |_, device| Tensor::ones([1, 3], device))?;
            StepProgram::new(lazy.plan(), &shapes.with_lanes(1))
        })
        .unwrap();
        program
    };
    (0..ranks).map(program).collect()
}

/// Half a second for a segment's forward and one for its backward; what floats take on a link, and in a reduction.
struct Usual {
    hop: f64,
    bucket: f64,
}

impl Costs for Usual {
    fn run(&self, _rank: usize, kind: RunKind, _micro_batch: usize, _segment: usize) -> f64 {
        if kind == RunKind::Backward { 1.0 } else { 0.5 }
    }

    fn call(&self, _rank: usize, call: &Called, _is_started: bool) -> f64 {
        match call.over {
            Members::Link { .. } if call.dtype.is_float() => self.hop,
            Members::Pool(..) => self.bucket,
            _ => 0.0,
        }
    }

    fn update(&self, _rank: usize, _unit: Option<usize>) -> f64 {
        0.0
    }
}

fn timeline(config: &Config, ranks: usize, micro_batches: usize, costs: &Usual) -> StepTimeline {
    let programs = programs(config, ranks, micro_batches);
    let (mesh, _) = launch_dry(config, 0, |epl| Ok(epl.context().mesh().clone())).unwrap();
    simulate_step(&programs, &|rank, over: &Members| over.of(&mesh, rank), costs).unwrap()
}

/// Four stages, sixteen micro-batches, hops of 5, 10 and 30 % of a forward: what they add to the step, in per cent, from a
/// prototype of another kind.
#[test]
fn what_hops_between_stages_cost_depends_on_the_schedule() {
    for (strategy, chunks, added) in [
        ("PreferForward", "1", [0.5, 1.1, 3.2]),
        ("PreferBackward", "1", [2.5, 4.9, 14.7]),
        ("PreferBackwardOptimizer", "1", [0.5, 1.1, 8.1]),
        ("PreferBackward", "2", [1.3, 2.7, 8.0]),
    ] {
        let config = config(&[
            ("dist.pipeline_parallel_size", "4"),
            ("pipeline.strategy", strategy),
            ("pipeline.num_chunks", chunks),
        ]);
        // A chunk of an interleaved stage is one segment, half of a part of the others.
        let ideal = if chunks == "2" { (2.0 * 16.0 + 3.0) * 1.5 } else { (16.0 + 3.0) * 3.0 };
        for (hop, added) in [0.05, 0.1, 0.3].into_iter().zip(added) {
            let found = timeline(&config, 4, 16, &Usual { hop, bucket: 0.0 }).makespan();
            let found = 100.0 * (found / ideal - 1.0);
            assert!((found - added).abs() < 0.06, "{strategy}, {chunks} chunks, hops of {hop}: {found} %, {added} %");
        }
        assert_eq!(timeline(&config, 4, 16, &Usual { hop: 0.0, bucket: 0.0 }).makespan(), ideal);
    }
}

/// Buckets travel while the backward goes on; what is left of the last ones is what a step takes longer.
#[test]
fn only_what_backward_does_not_hide_of_a_reduction_takes_time() {
    let config = config(&[("dist.data_parallel_size", "2"), ("communication.max_splits", "8")]);
    let programs = programs(&config, 2, 2);
    let starts: Vec<usize> =
        (0..programs[0].ops.len()).filter(|index| matches!(programs[0].ops[*index], Op::Start(..))).collect();
    assert!(starts.len() > 1, "several buckets");
    let compute = 2.0 * 8.0 * 1.5;
    for bucket in [0.0, 0.1, 100.0] {
        let timeline = timeline(&config, 2, 2, &Usual { hop: 0.0, bucket });
        let [first, second] = [0, 1].map(|rank| timeline.ops(rank).collect::<Vec<TimedOp>>());
        assert_eq!(first, second);
        // Over one communicator: the last bucket alone, or all of them from the first that is ready.
        let from_first = first[starts[0]].begin + bucket * starts.len() as f64;
        let expected = from_first.max(compute + bucket);
        assert!((timeline.makespan() - expected).abs() < 1e-9, "{bucket}: {} for {expected}", timeline.makespan());
    }
}

/// Of a table of 1,000 rows, in two micro-batches, the rows of the tokens that they have.
#[test]
fn rows_of_a_table_travel_alone_where_they_are_fewer_bytes() {
    let model = |at: &Place| {
        let table = EmbeddingConfig::new(1_000, 8).init(at);
        Chain::of(table)
            .first(&["weight"], |table: &Embedding, tokens: &Tensor<2, Int>| table.forward(tokens.clone()))
            .mean_loss(|_, rows: Tensor<3>, _| rows.powi_scalar(2).mean())
    };
    let travel = |tokens: i64| {
        let (program, _) = launch_dry(&config(&[("dist.data_parallel_size", "2")]), 0, |epl| {
            let lazy = epl.plan(model)?;
            let batch = |kind: usize, device: &Device| {
                let first = tokens * kind as i64;
                Tensor::arange(first..first + tokens, device).reshape([1, tokens as usize])
            };
            StepProgram::new(lazy.plan(), &lazy.step_shapes(&[1, 1], &[0, 1], batch)?)
        })
        .unwrap();
        let started = |op: &Op| match op {
            Op::Start(Purpose::Rows(_), call) => Some((true, call.elements)),
            Op::Start(_, call) => Some((false, call.elements)),
            _ => None,
        };
        program.ops.iter().filter_map(started).collect::<Vec<_>>()
    };
    assert_eq!(travel(5), [(true, 10), (true, 80)]);
    assert_eq!(travel(500), [(false, 8_000)]);
}

#[test]
fn a_model_whose_shapes_were_measured_is_drawn_and_trained_as_any() {
    let trained = |measures: bool| {
        let (norm, _) = launch_dry(&Config::new(), 0, |epl| {
            let lazy = epl.plan(chain)?;
            if measures {
                lazy.step_shapes(&[1], &[0], |_, device| Tensor::ones([1, 3], device))?;
            }
            let built = epl.draw(lazy)?;
            let mut engine = Engine::new(built, &SgdConfig::new(), EngineSettings::from_config(epl.config()))?;
            let rows = Tensor::ones([1, 3], epl.place().device());
            Ok(engine.step(vec![MicroBatch::new(rows, [0])], 0.1)?.grad_norm)
        })
        .unwrap();
        norm
    };
    assert!(trained(true) > 0.0);
    assert_eq!(trained(true), trained(false));
}

#[test]
fn calls_are_recorded_where_no_other_rank_has_the_trace() {
    let config = config(&[("dist.data_parallel_size", "2")]);
    let ran = launch_traced(&config, Some(Trace::new()), |epl| {
        let shapes = epl.plan(chain)?.step_shapes(&[1], &[0], |_, device| Tensor::ones([1, 3], device));
        Ok(shapes.unwrap_err().to_string())
    });
    assert!(ran.unwrap().iter().all(|error| error.contains("launch_dry")));
}
