//! Where the time of a step went, as a rank measures it, and what a trainer tells of a prediction that does not hold. What takes
//! time here sleeps: a part has at least that, however slow the machine is.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use epl_core::auto::Sample;
use epl_core::data::{ShuffledSampler, TrainData};
use epl_core::simulate::StepTime;
use epl_core::trainer::hooks::CheckPrediction;
use epl_core::trainer::learning_rate::{Decay, LrSchedule};
use epl_core::trainer::{Hook, Run};
use epl_core::{
    Chain, Config, Engine, Epl, Error, MicroBatch, Model, Place, Result, Trainer, TrainerConfig, launch, launch_dry,
};

use crate::search_options::config;

/// For how long a segment sleeps, and how long that may be seen to be at least where another rank waits for it: that rank may
/// come late itself.
const SLEEPS: Duration = Duration::from_millis(60);
const SEEN: f64 = 0.03;
const STEPS: usize = 3;
/// Layers, each a segment.
const LAYERS: usize = 4;
const WIDTH: usize = 3;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

/// A chain whose forwards are told when they begin, by segment and rank.
fn chain(at: &Place, begun: impl Fn(usize, usize) + Clone + Send + Sync + 'static) -> Chain<Net, Tensor<2>, Tensor<2>> {
    let net = Net { layers: (0..LAYERS).map(|_| LinearConfig::new(WIDTH, WIDTH).init(at)).collect() };
    let rank = at.context().world().rank();
    let layer = move |net: &Net, index: usize, rows: Tensor<2>| {
        begun(index, rank);
        net.layers[index].forward(rows).tanh()
    };
    let run = layer.clone();
    let first = Chain::of(net).first(&["layers.0"], move |net: &Net, rows: &Tensor<2>| run(net, 0, rows.clone()));
    let all = (1..LAYERS).fold(first, |chain, index| {
        let run = layer.clone();
        chain.then(&[&format!("layers.{index}")], move |net, rows, _| run(net, index, rows))
    });
    all.mean_loss(|_, rows, _| rows.powi_scalar(2).mean())
}

/// The last segment but one sleeps: of two stages, in the second.
fn sleeps_in_second_stage(index: usize, _: usize) {
    if index + 2 == LAYERS {
        sleep(SLEEPS);
    }
}

/// The first segment of the second rank does.
fn sleeps_on_second_rank(index: usize, rank: usize) {
    if (index, rank) == (0, 1) {
        sleep(SLEEPS);
    }
}

/// By rank, what each measured step of two micro-batches took, in parts and in all.
fn measured(options: &[(&str, &str)], sleeps: fn(usize, usize)) -> Vec<Vec<(StepTime, f64)>> {
    let all = launch(&config(options), |epl| {
        let mut engine = Engine::build(&epl, |at| chain(at, sleeps), &SgdConfig::new())?;
        let rows = || Tensor::full([1, WIDTH], 0.5, epl.place().device());
        let first = 2 * epl.context().data().rank() as u64;
        let mut step = |measures: bool| {
            if measures {
                engine.measure_step();
            }
            let (begin, samples) = (Instant::now(), first..first + 2);
            engine.step(samples.map(|sample| MicroBatch::new(rows(), [sample])).collect(), 0.1)?;
            Ok::<_, Error>((engine.step_time().copied(), begin.elapsed().as_secs_f64()))
        };
        assert_eq!(step(false)?.0, None, "nobody asked");
        let steps = (0..STEPS).map(|_| step(true).map(|(time, seconds)| (time.unwrap(), seconds)));
        let steps = steps.collect::<Result<Vec<_>>>()?;
        assert_eq!(step(false)?.0, None, "it is measured once");
        Ok(steps)
    });
    let all = all.unwrap();
    for (time, seconds) in all.iter().flatten() {
        assert!(time.total() <= *seconds && time.parts().iter().all(|(_, part)| *part >= 0.0), "{time} of {seconds} s");
    }
    all
}

/// The most of any step.
fn most(steps: &[(StepTime, f64)], part: impl Fn(&StepTime) -> f64) -> f64 {
    steps.iter().map(|(time, _)| part(time)).fold(0.0, f64::max)
}

#[test]
fn a_stage_that_computes_is_waited_for() {
    let both = 2.0 * SLEEPS.as_secs_f64();
    let again = ("gradient_checkpoint.runs", "2..3");
    for (again, options) in [(false, vec![]), (true, vec![("gradient_checkpoint.type", "collection"), again])] {
        let stages = [("dist.pipeline_parallel_size", "2"), ("pipeline.num_micro_batch", "2")];
        let ranks = measured(&[&stages[..], &options].concat(), sleeps_in_second_stage);
        for (time, _) in &ranks[1] {
            assert!(time.compute >= both && time.layers == 0.0, "{time}");
            assert!((time.recompute >= both) == again, "{time}");
        }
        // The first stage is not done before the second one has been asleep for both micro-batches.
        assert!(ranks[0].iter().all(|(time, _)| time.total() >= both), "{ranks:?}");
        assert!(most(&ranks[0], |time| time.stages) >= SEEN, "{ranks:?}");
        assert!(ranks.iter().flatten().all(|(time, _)| time.update > 0.0 && time.parameters == 0.0), "{ranks:?}");
    }
}

#[test]
fn a_replica_that_computes_is_waited_for_where_gradients_are_summed() {
    let both = 2.0 * SLEEPS.as_secs_f64();
    for zero in ["", "v0", "v1", "v2", "v3"] {
        let options = [("dist.data_parallel_size", "2"), ("pipeline.num_micro_batch", "2"), ("zero.level", zero)];
        let ranks = measured(&options, sleeps_on_second_rank);
        for (time, _) in &ranks[1] {
            assert!(time.compute >= both, "zero {zero:?}: {time}");
        }
        // With v3 also where parameters are gathered.
        let waits = |time: &StepTime| time.gradients + if zero == "v3" { time.parameters } else { 0.0 };
        assert!(most(&ranks[0], waits) >= SEEN, "zero {zero:?}: {ranks:?}");
        for (time, _) in ranks.iter().flatten() {
            assert_eq!((time.stages, time.layers), (0.0, 0.0), "zero {zero:?}: {time}");
            // What is gathered for a segment is gathered again for its backward, and it is run again.
            assert_eq!(time.recompute > 0.0, zero == "v3", "zero {zero:?}: {time}");
            assert!(time.update > 0.0 && (time.parameters > 0.0) != zero.is_empty(), "zero {zero:?}: {time}");
        }
    }
}

/// How many events of the file have each name, by rank.
fn names(file: &std::path::Path) -> BTreeMap<(u64, String), usize> {
    let document: serde_json::Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let mut names = BTreeMap::new();
    for event in document["traceEvents"].as_array().unwrap() {
        let name = (event["pid"].as_u64().unwrap(), event["name"].as_str().unwrap().to_string());
        *names.entry(name).or_default() += 1;
    }
    names
}

#[test]
fn a_trace_that_is_written_has_the_steps_that_it_has_without() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let run = |file: &std::path::Path, measures: bool| {
        let traced = [("profile.trace", file.to_str().unwrap()), ("profile.trace_steps", "2")];
        launch(&config(&[&[("dist.data_parallel_size", "2")], &traced[..]].concat()), |epl| {
            let mut engine = Engine::build(&epl, |at| chain(at, |_, _| {}), &SgdConfig::new())?;
            let rows = Tensor::ones([2, WIDTH], epl.place().device());
            for _ in 0..4 {
                if measures {
                    engine.measure_step();
                }
                engine.train_batch(&rows, 0.1)?;
                assert_eq!(engine.step_time().is_some(), measures);
            }
            Ok(())
        })
        .unwrap();
        names(file)
    };
    let alone = run(&file("alone.json"), false);
    let of_steps = [1, 2, 3, 4].map(|step| alone.get(&(0, format!("update {step}"))).copied());
    assert_eq!(of_steps, [None, Some(1), Some(1), None]);
    assert_eq!(run(&file("measured.json"), true), alone);
}

/// Batches of ones.
struct Ones;

impl Batcher<u8, Tensor<2>> for Ones {
    fn batch(&self, items: Vec<u8>, device: &Device) -> Tensor<2> {
        Tensor::ones([items.len(), WIDTH], device)
    }
}

/// The warnings of this rank.
struct Heard<'a>(&'a Mutex<Vec<(usize, String)>>);

impl<M: Model> Hook<M> for Heard<'_> {
    fn after_warning(&mut self, run: &mut Run<M>, warning: &str) -> Result<()> {
        self.0.lock().unwrap().push((run.context().world().rank(), warning.to_string()));
        Ok(())
    }
}

/// Trains for so many steps, and warns where they are not as predicted.
fn train<'a>(
    epl: &Epl,
    steps: u64,
    model: impl FnMut(&Place) -> Chain<Net, Tensor<2>, Tensor<2>>,
    hooks: (CheckPrediction, Heard<'a>),
) -> Result<()> {
    let engine = Engine::build(epl, model, &SgdConfig::new())?;
    let data = TrainData::new(InMemDataset::new(vec![0; 8]), Ones, ShuffledSampler::new(8, 4, 1)?)?;
    let config = TrainerConfig::new(steps).with_micro_batches(2);
    let trainer = Trainer::new(engine, config, LrSchedule::new(0.05, Decay::Linear { steps: 40 })).quiet();
    trainer.with_hook(hooks.0).with_hook(hooks.1).fit(&data).map(drop)
}

#[test]
fn a_prediction_that_does_not_hold_is_told_once_on_all_ranks() {
    let (heard, is_slow) = (Mutex::new(Vec::new()), std::sync::Arc::new(AtomicBool::new(false)));
    let options = [("dist.pipeline_parallel_size", "2"), ("pipeline.num_micro_batch", "2")];
    launch(&config(&options), |epl| {
        let is_slow = is_slow.clone();
        let model = |at: &Place| {
            let is_slow = is_slow.clone();
            // The second stage computes longer; and in the run far longer than where it was measured.
            chain(at, move |index, _| match (index, is_slow.load(Ordering::SeqCst)) {
                (0 | 1, _) => {}
                (_, false) => sleep(Duration::from_millis(2)),
                (_, true) => sleep(Duration::from_millis(20)),
            })
        };
        let sample = Sample::new(4, |rows, device| Tensor::ones([rows, WIDTH], device));
        let choice = epl.explain(model, &SgdConfig::new(), sample)?;
        assert_eq!(choice.rank(), 1, "{choice}");
        epl.context().world().barrier()?;
        is_slow.store(true, Ordering::SeqCst);
        train(&epl, 25, model, (CheckPrediction::new(&choice), Heard(&heard)))
    })
    .unwrap();
    let mut heard = heard.into_inner().unwrap();
    heard.sort();
    assert_eq!(heard.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [0, 1], "{heard:?}");
    assert_eq!(heard[0].1, heard[1].1);
    let told = &heard[0].1;
    assert!(told.starts_with("a step takes ") && told.contains("; of it, on rank 1, compute "), "{told}");
}

#[test]
fn a_prediction_of_another_layout_is_refused() {
    let in_second_stage = |index: usize, _: usize| sleep(Duration::from_millis(if index < 2 { 0 } else { 2 }));
    let options = [("dist.pipeline_parallel_size", "2"), ("pipeline.num_micro_batch", "2")];
    let (choice, _) = launch_dry(&config(&options), 0, |epl| {
        let sample = Sample::new(4, |rows, device| Tensor::ones([rows, WIDTH], device));
        epl.explain(|at| chain(at, in_second_stage), &SgdConfig::new(), sample)
    })
    .unwrap();
    let heard = Mutex::new(Vec::new());
    let ended = launch(&Config::new(), |epl| {
        train(&epl, 1, |at| chain(at, |_, _| {}), (CheckPrediction::new(&choice), Heard(&heard)))
    });
    let error = ended.unwrap_err().to_string();
    assert!(
        error.contains("the prediction is of [1, 2, 1, 1] ranks") && error.contains("and this run has [1, 1, 1, 1]"),
        "{error}"
    );
}
