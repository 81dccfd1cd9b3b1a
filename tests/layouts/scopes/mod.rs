//! A classifier in scopes, trained for three steps, compared with the same model of Burn's layers on one rank: loss,
//! every gradient, norm, parameters.

// Each test binary uses its part of this.
#![allow(dead_code)]

use std::collections::BTreeMap;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig, momentum::MomentumConfig};
use burn::tensor::activation::{log_softmax, tanh};
use burn::tensor::{Device, Int, Tensor, TensorData};
use epl::comm::shard_range;
use epl::modules::{SplitClassifier, SplitClassifierConfig};
use epl::optim::OptimizerConfig;
use epl::prelude::*;
use epl::testing::largest_error;
use epl::{LaidOutModel, Strategy, launch};

pub const FEATURES: usize = 6;
const HIDDEN: usize = 5;

/// Rows with their classes.
pub struct Rows {
    inputs: Tensor<2>,
    targets: Tensor<1, Int>,
}

epl::batch!(Rows { inputs, targets });

/// Rows by rule.
fn rows(step: usize, range: core::ops::Range<usize>, classes: usize, device: &Device) -> Rows {
    let number = |at: usize| ((at * 7919 + step * 104_729 + 17) as f64 * 0.618_033_988_75).fract() * 2.0 - 1.0;
    let values: Vec<f64> = (range.start * FEATURES..range.end * FEATURES).map(number).collect();
    let classes: Vec<i64> = range.clone().map(|row| ((row * 31 + step * 7) % classes) as i64).collect();
    Rows {
        inputs: Tensor::from_data(TensorData::new(values, [range.len(), FEATURES]), device),
        targets: Tensor::from_data(TensorData::new(classes, [range.len()]), device),
    }
}

/// The model, of Burn's layers.
#[derive(Module, Debug)]
pub struct Plain {
    body: Linear,
    head: Head,
}

/// As the class layer names its parameters.
#[derive(Module, Debug)]
pub struct Head {
    linear: Linear,
}

impl Plain {
    pub fn new(classes: usize, device: &Device) -> Self {
        let head = Head { linear: LinearConfig::new(HIDDEN, classes).init(device) };
        Self { body: LinearConfig::new(FEATURES, HIDDEN).init(device), head }
    }

    fn mean_loss(&self, batch: &Rows) -> Tensor<1> {
        let logits = self.head.linear.forward(tanh(self.body.forward(batch.inputs.clone())));
        // Not `mean`, nor a division: their gradients Burn rounds to f32.
        let sum = log_softmax(logits, 1).gather(1, batch.targets.clone().unsqueeze_dim(1)).sum();
        sum * (-1.0 / batch.inputs.dims()[0] as f64)
    }
}

/// The model, with its class layer split.
#[derive(Module, Debug)]
pub struct Scoped {
    body: Linear,
    head: SplitClassifier,
}

impl Scoped {
    pub fn mean_loss(&self, batch: &Rows) -> Tensor<1> {
        let features = tanh(self.body.forward(batch.inputs.clone()));
        self.head.forward_loss(features, batch.targets.clone()) * (1.0 / batch.inputs.dims()[0] as f64)
    }

    /// The same by the logits of all classes.
    fn mean_loss_of_logits(&self, batch: &Rows) -> Tensor<1> {
        let logits = self.head.logits(tanh(self.body.forward(batch.inputs.clone())));
        let sum = log_softmax(logits, 1).gather(1, batch.targets.clone().unsqueeze_dim(1)).sum();
        sum * (-1.0 / batch.inputs.dims()[0] as f64)
    }
}

/// What is trained, and on what.
#[derive(Clone, Copy)]
pub struct Case {
    pub classes: usize,
    /// Rows of a step.
    pub rows: usize,
    pub micro_batches: usize,
    pub adam: bool,
}

pub const fn case(classes: usize, rows: usize, micro_batches: usize, adam: bool) -> Case {
    Case { classes, rows, micro_batches, adam }
}

/// What one run left, on its first rank.
pub struct Outcome {
    losses: Vec<f64>,
    norms: Vec<f64>,
    gradients: BTreeMap<String, TensorData>,
    parameters: BTreeMap<String, TensorData>,
}

pub fn config(ranks: usize) -> Config {
    let config = Config::new().with("cluster.ranks", ranks).expect("an option");
    config
        .with("cluster.colocate_split_and_replicate", true)
        .expect("an option")
        .with("train.seed", 7)
        .expect("an option")
}

/// The plain model on one rank.
pub fn plain(case: Case) -> Outcome {
    run(1, case, |epl| epl.build(|at| WithLoss::new(Plain::new(case.classes, at), Plain::mean_loss)))
}

/// The plain model in one `replicate` scope.
pub fn replicated(devices: usize, ranks: usize, case: Case) -> Outcome {
    run(ranks, case, |epl| {
        epl.build(|at| WithLoss::new(at.replicate(devices, |at| Plain::new(case.classes, at)), Plain::mean_loss))
    })
}

/// The backbone replicated, the class layer split, on the same devices.
pub fn split(devices: usize, ranks: usize, case: Case, loss: fn(&Scoped, &Rows) -> Tensor<1>) -> Outcome {
    run(ranks, case, |epl| scoped(epl, devices, case, loss))
}

/// The model with both scopes, laid out.
pub fn scoped(
    epl: &Epl,
    devices: usize,
    case: Case,
    loss: fn(&Scoped, &Rows) -> Tensor<1>,
) -> epl::Result<LaidOutModel<WithLoss<Scoped, Rows>>> {
    let head = SplitClassifierConfig::new(HIDDEN, case.classes);
    let (body, split) = (Strategy::replicate(devices).named("body"), Strategy::split(devices).named("head"));
    let net = |at: &Place| Scoped {
        body: at.scope(body.clone(), |at| LinearConfig::new(FEATURES, HIDDEN).init(at)),
        head: at.scope(split.clone(), |at| head.init(at)),
    };
    epl.build(|at| WithLoss::new(net(at), loss))
}

fn run<M: Model<Batch = Rows>>(
    ranks: usize,
    case: Case,
    build: impl Fn(&Epl) -> epl::Result<LaidOutModel<M>> + Sync,
) -> Outcome {
    let train = |epl: Epl| match case.adam {
        true => steps(build(&epl)?, case, &AdamWConfig::new().with_epsilon(1e-4)),
        false => {
            let momentum = MomentumConfig::new().with_momentum(0.9);
            steps(build(&epl)?, case, &SgdConfig::new().with_momentum(Some(momentum)))
        }
    };
    let mut outcomes = launch(&config(ranks), train).unwrap_or_else(|error| panic!("{error}"));
    for other in &outcomes[1..] {
        assert_eq!(other.parameters, outcomes[0].parameters, "replicas stay equal, to the bit");
        assert_eq!(other.losses, outcomes[0].losses, "all ranks report the same");
    }
    outcomes.remove(0)
}

fn steps<M: Model<Batch = Rows>, O: OptimizerConfig>(
    built: LaidOutModel<M>,
    case: Case,
    optimizer: &O,
) -> epl::Result<Outcome> {
    let mut engine = Engine::new(built, optimizer, EngineSettings::default())?;
    let first = batches(&engine, case, 0);
    let gradients = engine.gradients(first)?.1;
    let step = |number| {
        let batches = batches(&engine, case, number);
        engine.step(batches, 0.05)
    };
    let reports = (0..3).map(step).collect::<epl::Result<Vec<_>>>()?;
    Ok(Outcome {
        losses: reports.iter().map(|report| report.loss).collect(),
        norms: reports.iter().map(|report| report.grad_norm).collect(),
        gradients,
        parameters: engine.parameters()?,
    })
}

/// What a rank gets of a step.
pub fn batches<M: Model<Batch = Rows>>(engine: &Engine<M>, case: Case, step: usize) -> Vec<MicroBatch<Rows>> {
    let (data, device) = (engine.context().data(), engine.device());
    let parts = data.size() * case.micro_batches;
    let mine = (0..case.micro_batches).map(|number| data.rank() * case.micro_batches + number);
    mine.map(|part| {
        // From the last rank on: where rows are few, the first of a group is the one without.
        let range = shard_range(case.rows, parts, parts - 1 - part);
        match range.is_empty() {
            true => MicroBatch::stand_in(rows(step, 0..1, case.classes, device), [0]),
            false => {
                let samples: Vec<u64> = range.clone().map(|row| row as u64).collect();
                MicroBatch::new(rows(step, range, case.classes, device), samples)
            }
        }
    })
    .collect()
}

/// Every difference is within the bound.
pub fn assert_equal(what: &str, found: &Outcome, expected: &Outcome, bound: f64) {
    for (name, found, expected) in
        [("gradient", &found.gradients, &expected.gradients), ("parameter", &found.parameters, &expected.parameters)]
    {
        assert_eq!(expected.len(), 4, "the plain model has four parameters");
        let (worst, error) = largest_error(found, expected);
        assert!(error <= bound, "{what}: {name} `{worst}` differs by {error:e}");
    }
    for (name, found, expected) in [("loss", &found.losses, &expected.losses), ("norm", &found.norms, &expected.norms)]
    {
        for (step, (a, b)) in found.iter().zip(expected).enumerate() {
            let error = (a - b).abs() / b.abs();
            assert!(error <= bound, "{what}: {name} of step {step} is {a}, not {b}");
        }
    }
}

/// `replicate(2)` on 2 and 4 ranks; backbone and split class layer colocated.
pub fn all(bound: f64) {
    for (classes, rows, micro_batches, adam) in [
        (10, 7, 1, false),
        (10, 7, 1, true),
        (10, 11, 3, false),
        (1001, 5, 1, false),
        (10, 3, 1, false),
        (10, 3, 2, true),
    ] {
        let case = case(classes, rows, micro_batches, adam);
        let expected = plain(Case { micro_batches: 1, ..case });
        let said = format!("{classes} classes, {rows} rows in {micro_batches}");
        for (devices, ranks) in [(2, 2), (2, 4), (1, 3)] {
            let found = replicated(devices, ranks, case);
            assert_equal(&format!("replicate({devices}) on {ranks}, {said}"), &found, &expected, bound);
        }
        for (devices, ranks) in [(1, 1), (2, 2), (4, 4), (2, 4), (3, 3)] {
            for (way, loss) in
                [("split loss", Scoped::mean_loss as fn(&_, &_) -> _), ("logits", Scoped::mean_loss_of_logits)]
            {
                let found = split(devices, ranks, case, loss);
                let what = format!("replicate({devices}) + split({devices}) on {ranks} by {way}, {said}");
                assert_equal(&what, &found, &expected, bound);
            }
        }
    }
}
