//! Whole runs of the trainer: what it writes, how it resumes, and how it ends.
#![allow(clippy::unwrap_used)] // Also in the functions that the tests share.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor, TensorData, activation};
use epl_core::data::{LengthSamplerConfig, Sampler, ShuffledSampler, TrainData, ValidData};
use epl_core::schedule::{Decay, LearningRate};
use epl_core::testing::{largest_error, run};
use epl_core::trainer::{Begin, Best, Evaluation, Observer, StepRecord, Summary, Which};
use epl_core::{
    Axis, Engine, EngineSettings, Epl, Loss, OneSegment, Place, Result, Stop, Trained, Trainer, TrainerConfig, Weights,
    WholeModel, launch, testing,
};
use serde_json::Value;

/// Two layers that learn a sum of squares.
#[derive(Module, Debug)]
struct Net {
    up: Linear,
    down: Linear,
}

impl Net {
    fn new(place: &Place) -> OneSegment<Self> {
        let (up, down) = (LinearConfig::new(3, 8), LinearConfig::new(8, 1));
        OneSegment { model: Self { up: up.init(place), down: down.init(place) } }
    }
}

#[derive(Clone, Debug)]
struct Points {
    input: Tensor<2>,
    target: Tensor<2>,
}

impl WholeModel for Net {
    type Batch = Points;

    fn weights(&self, batch: &Points) -> Weights {
        Weights::new().with("error", batch.input.dims()[0] as f64)
    }

    fn forward_loss(&self, batch: &Points) -> Loss {
        let output = self.down.forward(activation::tanh(self.up.forward(batch.input.clone())));
        Loss::new().with("error", (output - batch.target.clone()).powi_scalar(2).sum(), 1.0)
    }
}

/// Points by number; one of them may be unreadable.
#[derive(Clone)]
struct Numbers {
    samples: usize,
    broken: Option<usize>,
}

impl Dataset<[f64; 3]> for Numbers {
    fn get(&self, index: usize) -> Result<[f64; 3], DatasetError> {
        if self.broken == Some(index) {
            return Err(DatasetError::new(std::io::Error::other("unreadable")));
        }
        Ok([7, 13, 29].map(|prime| (index * prime % 31) as f64 / 31.0))
    }

    fn len(&self) -> usize {
        self.samples
    }
}

struct Pairs;

impl Batcher<[f64; 3], Points> for Pairs {
    fn batch(&self, items: Vec<[f64; 3]>, device: &Device) -> Points {
        let rows = items.len();
        let targets: Vec<f64> = items.iter().map(|item| item.iter().map(|x| x * x).sum()).collect();
        let table = |values, columns| Tensor::from_data(TensorData::new(values, [rows, columns]), device);
        Points { input: table(items.concat(), 3), target: table(targets, 1) }
    }
}

const SAMPLES: usize = 23;

fn numbers() -> Numbers {
    Numbers { samples: SAMPLES, broken: None }
}

fn data_from(sampler: impl Sampler + 'static) -> TrainData<[f64; 3], Points> {
    TrainData::new(numbers(), Pairs, sampler).unwrap()
}

fn data() -> TrainData<[f64; 3], Points> {
    data_from(ShuffledSampler::new(SAMPLES, 5, 9).unwrap())
}

fn valid() -> ValidData<[f64; 3], Points> {
    ValidData::new(numbers(), Pairs, 4).unwrap()
}

fn trainer<'a>(epl: &Epl, config: TrainerConfig) -> Result<Trainer<'a, OneSegment<Net>>> {
    let optimizer = AdamWConfig::new().with_epsilon(1e-4);
    let settings = EngineSettings { clip_norm: Some(1.0), ..Default::default() };
    let engine = Engine::new(epl.build(Net::new)?, &optimizer, settings)?;
    let schedule = LearningRate::new(0.05, Decay::Linear { steps: 40 }).with_warmup(3);
    Ok(Trainer::new(engine, config, schedule).quiet())
}

/// Evaluates every 4 and saves every 6 of `steps` steps.
fn config(out: &Path, steps: u64) -> TrainerConfig {
    TrainerConfig::new(steps).with_eval_every(Some(4)).with_save_every(Some(6)).with_out(Some(out.into()))
}

fn lines(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn values(lines: &[Value], key: &str) -> Vec<f64> {
    lines.iter().map(|line| line[key].as_f64().unwrap()).collect()
}

fn message<T>(result: Result<T>) -> String {
    result.err().expect("it should fail").to_string()
}

type Sizes = (usize, usize, usize);

/// Trains on every rank, and returns the whole parameters.
fn fit(sizes: Sizes, config: TrainerConfig) -> std::collections::BTreeMap<String, TensorData> {
    let all = run(sizes, |epl| trainer(&epl, config.clone())?.with_valid(valid()).fit(&data())?.engine.parameters());
    all.into_iter().next().unwrap()
}

#[test]
fn a_run_learns_and_writes_what_it_did() {
    let folder = tempfile::tempdir().unwrap();
    fit((1, 1, 1), config(folder.path(), 30));
    let lines = lines(folder.path());
    assert_eq!(values(&lines, "step"), (1..=30).map(f64::from).collect::<Vec<_>>());
    let losses = values(&lines, "loss");
    assert!(losses[25..].iter().sum::<f64>() < losses[..5].iter().sum::<f64>() / 4.0, "{losses:?}");
    assert_eq!(values(&lines, "lr")[..3], [0.05 / 3.0, 0.05 * (2.0 / 3.0), 0.05]);
    assert!(values(&lines, "tokens").iter().all(|tokens| *tokens == 5.0));
    let evaluated: Vec<u64> =
        lines.iter().filter(|line| line["valid_loss"].is_f64()).map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(evaluated, [4, 8, 12, 16, 20, 24, 28, 30]);
    assert!(fs::read_to_string(folder.path().join("loss.svg")).unwrap().contains("valid"));
    let latest = fs::read_to_string(folder.path().join("checkpoints/latest")).unwrap();
    assert_eq!(latest, "step-30\n");
    assert!(folder.path().join("checkpoints/step-24").is_dir());
    assert!(!folder.path().join("checkpoints/step-18").exists(), "the last two stay");
}

#[test]
fn curves_of_all_layouts_lie_on_each_other() {
    let curve = |sizes, micro_batches| {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), 8).with_micro_batches(micro_batches);
        let parameters = fit(sizes, config);
        let lines = lines(folder.path());
        let valid = lines.iter().filter_map(|line| line["valid_loss"].as_f64()).collect::<Vec<_>>();
        (parameters, [values(&lines, "loss"), values(&lines, "grad_norm"), valid].concat())
    };
    let expected = curve((1, 1, 1), 1);
    for (sizes, micro_batches) in [((1, 1, 1), 4), ((2, 1, 1), 1), ((2, 1, 2), 3), ((3, 1, 1), 2), ((4, 1, 1), 4)] {
        let got = curve(sizes, micro_batches);
        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * b.abs();
        assert!(got.1.iter().zip(&expected.1).all(close), "{sizes:?} {micro_batches}: {:?} {:?}", got.1, expected.1);
        let (name, error) = largest_error(&got.0, &expected.0);
        assert!(error <= 1e-4, "{sizes:?} {micro_batches}: {name} {error}");
    }
}

/// 20 steps at once, and 7 steps, a stop, and 13 more, give the same bits.
fn resumed_equals_whole(sizes: Sizes, sampler: impl Fn() -> Box<dyn Fn() -> TrainData<[f64; 3], Points> + Sync>) {
    let train = |config: TrainerConfig| {
        let data = sampler();
        let all =
            run(sizes, |epl| trainer(&epl, config.clone())?.with_valid(valid()).fit(&data())?.engine.parameters());
        all.into_iter().next().unwrap()
    };
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let expected = train(config(whole.path(), 20));
    train(config(parts.path(), 7));
    let got = train(config(parts.path(), 20).with_resume(true));
    assert_eq!(largest_error(&got, &expected).1, 0.0);
    for key in ["step", "loss", "grad_norm", "lr", "samples"] {
        assert_eq!(values(&lines(parts.path()), key), values(&lines(whole.path()), key), "{key}");
    }
}

#[test]
fn a_resumed_run_gives_the_same_bits_on_one_rank() {
    resumed_equals_whole((1, 1, 1), || Box::new(data));
}

#[test]
fn a_resumed_run_gives_the_same_bits_on_data_2() {
    resumed_equals_whole((2, 1, 1), || Box::new(data));
}

#[test]
fn a_resumed_run_gives_the_same_bits_in_batches_by_length() {
    resumed_equals_whole((2, 1, 1), || {
        Box::new(|| {
            let lengths = (0..SAMPLES).map(|index| 1 + index % 6).collect();
            data_from(LengthSamplerConfig::new(9).with_max_tokens(14).init(lengths).unwrap())
        })
    });
}

#[test]
fn a_run_that_died_after_its_checkpoint_resumes_from_it() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fit((1, 1, 1), config(whole.path(), 12));
    fit((1, 1, 1), config(parts.path(), 10));
    // As if it had died in step 11, while it wrote its line: the last whole checkpoint is that of step 6.
    fs::remove_dir_all(parts.path().join("checkpoints/step-10")).unwrap();
    fs::write(parts.path().join("checkpoints/latest"), "step-6\n").unwrap();
    fs::create_dir(parts.path().join("checkpoints/.step-12.partial")).unwrap();
    let metrics = parts.path().join("metrics.jsonl");
    fs::write(&metrics, fs::read_to_string(&metrics).unwrap() + "{\"step\":11,\"lo").unwrap();
    fit((1, 1, 1), config(parts.path(), 12).with_resume(true));
    assert_eq!(values(&lines(parts.path()), "loss"), values(&lines(whole.path()), "loss"));
    let left = fs::read_dir(parts.path().join("checkpoints")).unwrap();
    assert!(left.into_iter().all(|entry| !entry.unwrap().file_name().to_string_lossy().starts_with('.')));
}

#[test]
fn a_run_that_is_done_has_nothing_to_resume() {
    let folder = tempfile::tempdir().unwrap();
    let before = fit((1, 1, 1), config(folder.path(), 6));
    let after = fit((1, 1, 1), config(folder.path(), 6).with_resume(true));
    assert_eq!(largest_error(&after, &before).1, 0.0);
    assert_eq!(lines(folder.path()).len(), 6);
}

#[test]
fn another_layout_seed_or_order_is_refused_with_both() {
    let folder = tempfile::tempdir().unwrap();
    fit((1, 1, 1), config(folder.path(), 2));
    let resume = |sizes: Sizes, seed: u64, batch_seed: u64| {
        let mut mesh = testing::config(sizes.0, sizes.1, sizes.2);
        mesh.train.seed = seed;
        let sampler = || ShuffledSampler::new(SAMPLES, 5, batch_seed).unwrap();
        message(launch(&mesh, |epl| {
            let config = config(folder.path(), 9).with_resume(true);
            trainer(&epl, config)?.with_valid(valid()).fit(&data_from(sampler())).map(|_| ())
        }))
    };
    let layout = resume((2, 1, 1), 42, 9);
    assert!(layout.contains("1 ranks = data 1") && layout.contains("2 ranks = data 2"), "{layout}");
    let seed = resume((1, 1, 1), 43, 9);
    assert!(seed.contains("seed 42") && seed.contains("seed 43"), "{seed}");
    let order = resume((1, 1, 1), 42, 10);
    assert!(order.contains("23 samples shuffled with seed 9") && order.contains("seed 10"), "{order}");
}

#[test]
fn a_checkpoint_that_is_missing_or_damaged_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = folder.path().join("checkpoints");
    let resume = || {
        message(launch(&testing::config(1, 1, 1), |epl| {
            trainer(&epl, config(folder.path(), 9).with_resume(true))?.with_valid(valid()).fit(&data()).map(|_| ())
        }))
    };
    assert!(resume().contains("no checkpoint"), "{}", resume());
    fit((1, 1, 1), config(folder.path(), 6));

    let model = checkpoints.join("step-6/rank-0/model.bpk");
    let good = fs::read(&model).unwrap();
    fs::write(&model, &good[..good.len() / 2]).unwrap();
    assert!(resume().contains("model.bpk") && resume().contains("damaged"), "{}", resume());
    fs::remove_file(&model).unwrap();
    assert!(resume().contains("model.bpk"), "{}", resume());
    fs::write(&model, good).unwrap();

    let state = checkpoints.join("step-6/state.json");
    let text = fs::read_to_string(&state).unwrap();
    fs::write(&state, text.replace("\"format\": 1", "\"format\": 7")).unwrap();
    assert!(resume().contains("format 7"), "{}", resume());
    fs::write(&state, &text[..40]).unwrap();
    assert!(resume().contains("state.json"), "{}", resume());
    fs::write(&state, text).unwrap();

    fs::write(checkpoints.join("latest"), "step-5").unwrap();
    assert!(resume().contains("step-5") && resume().contains("the folder has step-6"), "{}", resume());
}

#[test]
fn an_earlier_run_is_not_overwritten_unasked() {
    let folder = tempfile::tempdir().unwrap();
    fit((1, 1, 1), config(folder.path(), 6));
    let again = |config: TrainerConfig| {
        launch(&testing::config(1, 1, 1), |epl| {
            trainer(&epl, config.clone())?.with_valid(valid()).fit(&data()).map(|_| ())
        })
    };
    let refused = message(again(config(folder.path(), 3)));
    assert!(refused.contains("saved after step 6"), "{refused}");
    again(config(folder.path(), 3).with_replace(true)).unwrap();
    assert_eq!(lines(folder.path()).len(), 3);
    assert!(!folder.path().join("checkpoints/step-6").exists());
}

/// Writes down what it is told; asks for a stop after one step.
struct Diary<'a> {
    entries: &'a Mutex<Vec<String>>,
    stop: Option<(u64, Stop)>,
}

impl Diary<'_> {
    fn note(&self, what: &str, step: u64) -> Result<()> {
        self.entries.lock().unwrap().push(format!("{what} {step}"));
        Ok(())
    }
}

impl Observer for Diary<'_> {
    fn begin(&mut self, begin: &Begin) -> Result<()> {
        self.note("begin", begin.done)
    }

    fn before_step(&mut self, step: u64) -> Result<()> {
        self.note("before_step", step)
    }

    fn after_step(&mut self, record: &StepRecord) -> Result<()> {
        if let Some((_, stop)) = self.stop.as_ref().filter(|(step, _)| *step == record.step) {
            stop.request();
        }
        self.note("after_step", record.step)
    }

    fn before_evaluation(&mut self, step: u64) -> Result<()> {
        self.note("before_evaluation", step)
    }

    fn after_evaluation(&mut self, evaluation: &Evaluation) -> Result<()> {
        self.note("after_evaluation", evaluation.step)
    }

    fn before_save(&mut self, step: u64) -> Result<()> {
        self.note("before_save", step)
    }

    fn end(&mut self, summary: &Summary) -> Result<()> {
        self.note("end", summary.steps)
    }
}

#[test]
fn observers_are_told_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let entries = Mutex::new(Vec::new());
    run((1, 1, 1), |epl| {
        let config = config(folder.path(), 2).with_eval_every(Some(1)).with_save_every(None);
        let diary = Diary { entries: &entries, stop: None };
        trainer(&epl, config)?.with_valid(valid()).with_observer(diary).fit(&data()).map(|_| ())
    });
    let expected = [
        "begin 0",
        "before_step 1",
        "after_step 1",
        "before_evaluation 1",
        "after_evaluation 1",
        "before_step 2",
        "after_step 2",
        // Saved first: an evaluation that fails loses nothing.
        "before_save 2",
        "before_evaluation 2",
        "after_evaluation 2",
        "end 2",
    ];
    assert_eq!(*entries.lock().unwrap(), expected);
}

#[test]
fn a_stop_on_one_rank_ends_all_after_the_same_step() {
    let folder = tempfile::tempdir().unwrap();
    let entries = Mutex::new(Vec::new());
    let ends = run((3, 1, 1), |epl| {
        let stop = Stop::new();
        // Only the last rank asks.
        let asks = (epl.context().world().rank() == 2).then(|| (5, stop.clone()));
        let diary = Diary { entries: &entries, stop: asks };
        let trainer = trainer(&epl, config(folder.path(), 20))?.with_valid(valid());
        let trained = trainer.with_stop(stop).with_observer(diary).fit(&data())?;
        Ok((trained.summary.steps, trained.summary.position, trained.summary.stopped))
    });
    assert_eq!(ends, [(5, 25, true); 3]);
    assert_eq!(fs::read_to_string(folder.path().join("checkpoints/latest")).unwrap(), "step-5\n");
    assert!(lines(folder.path())[4]["valid_loss"].is_f64(), "a stopped run is evaluated");
}

#[test]
fn the_best_checkpoint_stays_and_can_be_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let scores = [1.0, 5.0, 3.0, 4.0, 2.0, 0.0];
    let kept = run((2, 1, 1), |epl| {
        let mut number = 0;
        let mut at_best = None;
        let config = config(folder.path(), 6)
            .with_eval_every(Some(1))
            .with_save_every(None)
            .with_keep_last(1)
            .with_keep_best(Some(Best::largest("score")));
        let first = epl.context().world().rank() == 0;
        let trainer = trainer(&epl, config)?.with_evaluation(|engine: &Engine<OneSegment<Net>>| {
            number += 1;
            let parameters = engine.parameters()?;
            if number == 2 {
                at_best = Some(parameters);
            }
            // The other ranks' opinion does not count.
            Ok(if first { vec![("score".to_string(), scores[number - 1])] } else { vec![] })
        });
        let mut trained: Trained<_> = trainer.fit(&data())?;
        trained.load(Which::Best)?;
        assert_eq!(trained.engine.steps(), 2);
        let best = trained.engine.parameters()?;
        trained.load(Which::Latest)?;
        assert_ne!(trained.engine.parameters()?, best);
        drop(trained);
        Ok(largest_error(&best, &at_best.unwrap()).1)
    });
    assert_eq!(kept, [0.0, 0.0]);
    let mut names: Vec<String> = fs::read_dir(folder.path().join("checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["best.json", "latest", "step-2", "step-6"]);
}

#[test]
fn a_metric_that_no_evaluation_returns_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), 4).with_keep_best(Some(Best::largest("bleu")));
    let failed = launch(&testing::config(2, 1, 1), |epl| {
        trainer(&epl, config.clone())?.with_valid(valid()).fit(&data()).map(|_| ())
    });
    let text = message(failed);
    assert!(text.contains("`bleu`") && text.contains("valid_loss"), "{text}");
}

#[test]
fn two_values_of_one_name_are_refused() {
    let failed = launch(&testing::config(1, 1, 1), |epl| {
        let trainer = trainer(&epl, TrainerConfig::new(1))?.with_valid(valid()).with_valid(valid());
        trainer.fit(&data()).map(|_| ())
    });
    assert!(message(failed).contains("`valid_loss`"));
}

#[test]
fn an_evaluation_may_use_collectives() {
    let sums = run((3, 1, 1), |epl| {
        let mut seen = Vec::new();
        let trainer = trainer(&epl, TrainerConfig::new(2))?.with_evaluation(|engine: &Engine<_>| {
            let data = engine.context().axis(Axis::Data);
            let sum = data.all_reduce_values(&[data.rank() as f64], epl_comm::ReduceOp::Sum)?[0];
            seen.push(sum);
            Ok(vec![("sum".to_string(), sum)])
        });
        let evaluation = trainer.fit(&data())?.summary.evaluation.unwrap();
        Ok(evaluation.get("sum").unwrap())
    });
    assert_eq!(sums, [3.0; 3]);
}

#[test]
fn a_sample_that_one_rank_cannot_read_ends_the_run_everywhere() {
    let sampler = ShuffledSampler::new(SAMPLES, 4, 9).unwrap();
    let broken = sampler.batch(8).unwrap().indices[3];
    let failed = launch(&testing::config(2, 1, 1), |epl| {
        let dataset = Numbers { samples: SAMPLES, broken: Some(broken) };
        let sampler = ShuffledSampler::new(SAMPLES, 4, 9)?;
        let trainer = trainer(&epl, TrainerConfig::new(9))?;
        trainer.fit(&TrainData::new(dataset, Pairs, sampler)?).map(|_| ())
    });
    let text = message(failed);
    assert!(text.contains("rank 1") && text.contains("unreadable"), "{text}");
}

#[test]
fn a_validation_sample_that_one_rank_cannot_read_ends_the_run_everywhere() {
    let failed = launch(&testing::config(2, 1, 1), |epl| {
        let valid = ValidData::new(Numbers { samples: SAMPLES, broken: Some(14) }, Pairs, 4)?;
        trainer(&epl, TrainerConfig::new(2))?.with_valid(valid).fit(&data()).map(|_| ())
    });
    let text = message(failed);
    assert!(text.contains("rank 1") && text.contains("unreadable"), "{text}");
}

#[test]
fn an_engine_that_has_made_steps_is_refused() {
    let failed = launch(&testing::config(1, 1, 1), |epl| {
        let engine = trainer(&epl, TrainerConfig::new(1))?.fit(&data())?.engine;
        let schedule = LearningRate::new(0.05, Decay::Constant);
        Trainer::new(engine, TrainerConfig::new(2), schedule).quiet().fit(&data()).map(|_| ())
    });
    assert!(message(failed).contains("already made 1 steps"));
}
