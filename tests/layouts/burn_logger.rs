//! Burn's loggers behind a trainer: what they read is what the trainer tells.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use burn::data::dataset::InMemDataset;
use burn::optim::SgdConfig;
use burn_train::LearnerSummary;
use burn_train::logger::{FileMetricLogger, InMemoryMetricLogger, MetricLogger};
use burn_train::metric::store::{EpochSummary, MetricsUpdate, Split};
use burn_train::metric::{MetricDefinition, NumericEntry};
use epl::data::{ShuffledSampler, TrainData, ValidData};
use epl::prelude::*;
use epl::train::BurnLogger;
use epl::trainer::Hook;

use crate::widths::{Batch, Case, Net, Numbered};

type Model = Chain<Net, Batch, burn::tensor::Tensor<2>>;

/// Trains to a step on two ranks; evaluated every 3 and saved every 2 steps.
fn train<H: Hook<Model>>(out: &Path, steps: u64, resume: bool, hook: impl Fn() -> H + Sync) -> epl::Result<()> {
    let case = Case::new(2, &[], 5, 1);
    let all = epl::launch(&case.config(), |epl| {
        let data = |samples: usize| InMemDataset::new((0..samples).collect::<Vec<usize>>());
        let train = TrainData::new(data(23), Numbered, ShuffledSampler::new(23, 5, 5)?)?;
        let engine = Engine::build(&epl, |at| case.net(at), &SgdConfig::new())?;
        let settings = TrainerConfig::new(steps).with_eval_every(Some(3)).with_save_every(Some(2));
        let settings = settings.with_out(Some(out.into())).with_resume(resume);
        Trainer::new(engine, settings, LrSchedule::new(0.05, Decay::Linear { steps: 20 }))
            .with_valid(ValidData::new(data(7), Numbered, 2)?)
            .with_hook(hook())
            .quiet()
            .fit(&train)
            .map(drop)
    });
    all.map(drop)
}

/// The numbers of a run's `metrics.jsonl`, step by step, of the steps that have them.
fn told(out: &Path, key: &str) -> Vec<f64> {
    let text = fs::read_to_string(out.join("metrics.jsonl")).expect("a log");
    let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("a line").pointer(key)?.as_f64();
    text.lines().filter_map(line).collect()
}

fn read(logger: &mut impl MetricLogger, name: &str, epochs: usize, split: &Split) -> Vec<Vec<f64>> {
    let of_epoch = |epoch| {
        let entries = logger.read_numeric(name, epoch, split).expect("numbers");
        entries.iter().map(NumericEntry::current).collect()
    };
    (1..=epochs).map(of_epoch).collect()
}

#[test]
fn burns_readers_find_what_the_trainer_tells() {
    let folder = tempfile::tempdir().expect("a folder");
    let (out, logs) = (folder.path().join("out"), folder.path().join("burn"));
    train(&out, 10, false, || BurnLogger::new(FileMetricLogger::new(&logs), 4)).expect("a run");
    let mut burn = FileMetricLogger::new(&logs);
    for (name, key) in [
        ("loss", "/loss"),
        ("lr", "/lr"),
        ("grad_norm", "/grad_norm"),
        ("tokens", "/tokens"),
        ("terms.loss", "/terms/loss"),
    ] {
        let found = read(&mut burn, name, 3, &Split::Train);
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2], "{name}");
        assert_eq!(found.concat(), told(&out, key), "{name}");
    }
    assert_eq!(read(&mut burn, "step", 3, &Split::Valid), [vec![3.0], vec![6.0], vec![9.0, 10.0]]);
    assert_eq!(read(&mut burn, "valid_loss", 3, &Split::Valid).concat(), told(&out, "/valid_loss"));
    // By Burn's store of events.
    let summary = LearnerSummary::new(&logs, &["loss", "valid_loss"]).expect("a summary");
    let loss = told(&out, "/loss");
    assert_eq!((summary.epochs, summary.metrics.train[0].entries[2].value), (3, (loss[8] + loss[9]) / 2.0));
    assert_eq!(summary.metrics.valid[0].entries[0].value, told(&out, "/valid_loss")[0]);
}

#[test]
fn a_resumed_run_goes_on_in_its_epoch() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |name: &str, stops: &[u64]| {
        let (out, logs) = (folder.path().join(name), folder.path().join(format!("{name}-burn")));
        for (number, steps) in stops.iter().enumerate() {
            let hook = || BurnLogger::new(FileMetricLogger::new(&logs), 8);
            train(&out, *steps, number > 0, hook).expect("a run");
            if *steps == 3 {
                // Of steps that were made behind the checkpoint, and are made again.
                for (name, lost) in [("step", "4\n5\n"), ("loss", "0.5\n0.5\n")] {
                    let path = logs.join(format!("train/epoch-1/{name}.log"));
                    let kept = fs::read_to_string(&path).expect("a log");
                    fs::write(&path, kept + lost).expect("a log");
                }
            }
        }
        let mut burn = FileMetricLogger::new(&logs);
        ["step", "loss", "valid_loss"]
            .map(|name| [Split::Train, Split::Valid].map(|split| read(&mut burn, name, 2, &split)))
    };
    let [whole, parts] = [run("whole", &[11]), run("parts", &[3, 11])];
    assert_eq!(whole[0], [[vec![1., 2., 3., 4., 5., 6., 7., 8.], vec![9., 10., 11.]], [vec![3., 6.], vec![9., 11.]]]);
    assert_eq!(parts, whole);
}

/// A logger that both ends of a test have.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<InMemoryMetricLogger>>);

impl MetricLogger for Shared {
    fn log(&mut self, update: MetricsUpdate, epoch: usize, split: &Split) {
        self.0.lock().expect("a logger").log(update, epoch, split);
    }

    fn read_numeric(&mut self, name: &str, epoch: usize, split: &Split) -> Result<Vec<NumericEntry>, String> {
        self.0.lock().expect("a logger").read_numeric(name, epoch, split)
    }

    fn log_metric_definition(&mut self, definition: MetricDefinition) {
        self.0.lock().expect("a logger").log_metric_definition(definition);
    }

    fn log_epoch_summary(&mut self, summary: EpochSummary) {
        assert_ne!(summary.epoch_number, 2, "a disk is full");
        self.0.lock().expect("a logger").log_epoch_summary(summary);
    }
}

#[test]
fn a_logger_that_fails_ends_no_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut shared = Shared::default();
    train(folder.path(), 10, false, || BurnLogger::new(shared.clone(), 4)).expect("a run");
    let found = read(&mut shared, "loss", 3, &Split::Train);
    assert_eq!(found[..2].concat(), told(folder.path(), "/loss")[..8]);
    assert!(found[2].is_empty(), "it failed where the second epoch ended");
    let other = folder.path().join("other");
    let error = train(&other, 10, false, || BurnLogger::new(shared.clone(), 0)).expect_err("it is refused");
    assert!(error.to_string().contains("0 steps for each"), "{error}");
}
