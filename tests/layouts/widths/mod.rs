//! A model of four segments in two or three scopes, trained for three steps, evaluated, saved and run as a whole, compared
//! with the same model on one rank; and a step of it, with the list of its calls.

// Each test binary uses its part of this.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::Path;

use burn::data::dataloader::batcher::Batcher;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Int, Tensor, TensorData};
use epl::comm::Trace;
use epl::config::{CheckpointType, OffloadLevel, PipelineStrategy, ZeroLevel};
use epl::data::{BatchShard, micro_batches};
use epl::model::output::{Combine, Merge, Outputs};
use epl::modules::{
    Dropout, DropoutConfig, ParallelMlp, ParallelMlpConfig, SplitClassifier, SplitClassifierConfig, SyncBatchNorm,
    SyncBatchNormConfig,
};
use epl::prelude::*;
use epl::testing::largest_error;
use epl::{Carry, EngineSettings, LazyModel, StepReport, launch, launch_traced};

use crate::parity::program;

const FEATURES: usize = 6;
const CLASSES: usize = 7;

/// Inputs and their classes.
pub type Batch = (Tensor<2>, Tensor<1, Int>);

/// Rows by number.
pub fn rows(numbers: core::ops::Range<usize>, device: &Device) -> Batch {
    let number = |at: usize| ((at * 7919 + 17) as f64 * 0.618_033_988_75).fract() * 2.0 - 1.0;
    let values: Vec<f64> = (numbers.start * FEATURES..numbers.end * FEATURES).map(number).collect();
    let classes: Vec<i64> = numbers.clone().map(|row| (row * 31 % CLASSES) as i64).collect();
    let inputs = Tensor::from_data(TensorData::new(values, [numbers.len(), FEATURES]), device);
    (inputs, Tensor::from_data(TensorData::new(classes, [numbers.len()]), device))
}

/// Makes batches of rows that are known by their numbers.
pub struct Numbered;

impl Batcher<usize, Batch> for Numbered {
    fn batch(&self, items: Vec<usize>, device: &Device) -> Batch {
        let (inputs, classes) = items.into_iter().map(|row| rows(row..row + 1, device)).unzip();
        (Tensor::cat(inputs, 0), Tensor::cat(classes, 0))
    }
}

#[derive(Module, Debug)]
struct Body {
    linear: Linear,
    norm: Option<SyncBatchNorm>,
    dropout: Dropout,
    mlp: ParallelMlp,
}

#[derive(Module, Debug)]
struct Middle {
    linear: Linear,
    mlp: ParallelMlp,
}

/// The model; in a layout of two stages the second one runs all of `rest`.
#[derive(Module, Debug)]
pub struct Net {
    body: Body,
    rest: (Middle, SplitClassifier),
    #[module(skip)]
    context: Context,
}

impl Net {
    /// The same, of which the first stage learns nothing.
    pub fn with_frozen_body(self) -> Self {
        Self { body: self.body.no_grad(), ..self }
    }

    /// The logits of all classes, from what the third segment returned.
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        self.rest.1.logits(hidden)
    }
}

/// What two stages use.
#[derive(Clone, Copy, Debug)]
pub enum Tied {
    /// A layer that every device holds whole.
    Linear,
    /// One that a split divides.
    Mlp,
}

/// A model, what it is laid out on, and its data.
#[derive(Clone, Debug)]
pub struct Case {
    pub ranks: usize,
    /// The stages; without any, one rank runs all.
    pub scopes: Vec<Strategy>,
    pub rows: usize,
    pub micro_batches: usize,
    pub schedule: PipelineStrategy,
    /// The segments whose entrance is kept, where they are recomputed.
    pub kept: Option<Vec<usize>>,
    /// A layer of the first stage that the second one uses, too.
    pub tied: Option<Tied>,
    /// Whether there is a batch norm, whose statistics cross the devices of a stage.
    pub norm: bool,
    /// What is sharded over the replicas of a stage.
    pub zero: ZeroLevel,
    /// Where state lies.
    pub offload: OffloadLevel,
    /// Whether the model hands out values.
    pub outputs: bool,
    /// In which proportion replicas divide rows, where that is not evenly.
    pub row_weights: Option<[usize; 2]>,
    /// Whether gradients are sent in 16 bits.
    pub fp16: bool,
}

impl Case {
    pub fn new(ranks: usize, scopes: &[Strategy], rows: usize, micro_batches: usize) -> Self {
        let schedule = PipelineStrategy::PreferBackward;
        let scopes = scopes.to_vec();
        let (zero, offload) = (ZeroLevel::Off, OffloadLevel::Off);
        let (kept, tied, norm, outputs) = (None, None, false, true);
        Self {
            ranks,
            scopes,
            rows,
            micro_batches,
            schedule,
            kept,
            tied,
            norm,
            zero,
            offload,
            outputs,
            row_weights: None,
            fp16: false,
        }
    }

    /// The same on one rank, in one micro-batch.
    fn plain(&self) -> Self {
        let (zero, offload) = (ZeroLevel::Off, OffloadLevel::Off);
        Self {
            ranks: 1,
            scopes: Vec::new(),
            micro_batches: 1,
            kept: None,
            zero,
            offload,
            row_weights: None,
            ..self.clone()
        }
    }

    pub fn config(&self) -> Config {
        let mut config = Config::new().with("cluster.ranks", self.ranks).expect("an option");
        (config.train.seed, config.train.clip_norm) = (7, Some(0.5));
        config.communication.check_order = true;
        (config.pipeline.num_micro_batch, config.pipeline.strategy) = (self.micro_batches, self.schedule);
        (config.zero.level, config.offload.level) = (self.zero, self.offload);
        if let Some(kept) = &self.kept {
            config.gradient_checkpoint.r#type = CheckpointType::Collection;
            config.gradient_checkpoint.kept = Some(kept.iter().map(usize::to_string).collect());
        }
        config.io.row_weights = self.row_weights.map(Vec::from);
        config.communication.fp16 = self.fp16;
        config
    }

    fn body(&self, at: &Place) -> Body {
        let norm = self.norm.then(|| SyncBatchNormConfig::new(FEATURES).init(at));
        let dropout = DropoutConfig::new(0.2).init(&at.child("body"));
        let linear = LinearConfig::new(FEATURES, FEATURES).init(at);
        Body { linear, norm, dropout, mlp: ParallelMlpConfig::new(FEATURES, 10).init(&at.child("body.mlp")) }
    }

    /// The model as a chain, whose stages are what is in a scope.
    pub fn net(&self, at: &Place) -> Chain<Net, Batch, Tensor<2>> {
        let context = at.context().clone();
        if self.outputs {
            context.declare_output("hidden", Merge::Global(Combine::Concat));
            context.declare_output("squares", Merge::Global(Combine::Mean));
            context.declare_output("own", Merge::Local(Combine::Sum));
        }
        let middle = |at: &Place| Middle {
            linear: LinearConfig::new(FEATURES, FEATURES).init(at),
            mlp: ParallelMlpConfig::new(FEATURES, 9).init(&at.child("rest.mlp")),
        };
        let head = |at: &Place| SplitClassifierConfig::new(FEATURES, CLASSES).init(at);
        let (body, rest) = match &*self.scopes {
            [] => (self.body(at), (middle(at), head(at))),
            [first, second] => {
                (at.scope(first.clone(), |at| self.body(at)), at.scope(second.clone(), |at| (middle(at), head(at))))
            }
            [first, second, third] => (
                at.scope(first.clone(), |at| self.body(at)),
                (at.scope(second.clone(), middle), at.scope(third.clone(), head)),
            ),
            others => panic!("{} scopes", others.len()),
        };
        chain(Net { body, rest, context }, self.tied, self.outputs)
    }
}

fn chain(net: Net, tied: Option<Tied>, outputs: bool) -> Chain<Net, Batch, Tensor<2>> {
    let third: &[&str] = match tied {
        None => &["rest.0"],
        Some(Tied::Linear) => &["rest.0", "body.linear"],
        Some(Tied::Mlp) => &["rest.0", "body.mlp"],
    };
    Chain::of(net)
        .first(&["body.linear", "body.norm"], |net: &Net, (inputs, _): &Batch| {
            let hidden = tanh(net.body.linear.forward(inputs.clone()));
            let hidden = net.body.norm.iter().fold(hidden, |hidden, norm| norm.forward(hidden));
            net.body.dropout.forward(hidden)
        })
        .then(&["body.mlp"], move |net, hidden, _| {
            let hidden = hidden.clone() + net.body.mlp.forward(hidden);
            if outputs {
                net.context.output("hidden", hidden.clone());
            }
            hidden
        })
        .then(third, move |net, hidden, _| {
            let hidden = match tied {
                None => hidden,
                Some(Tied::Linear) => tanh(net.body.linear.forward(hidden)),
                Some(Tied::Mlp) => net.body.mlp.forward(hidden),
            };
            let hidden = tanh(net.rest.0.linear.forward(hidden.clone())) + net.rest.0.mlp.forward(hidden);
            if outputs {
                // A mean by a product: Burn's own rounds to f32.
                let mean = hidden.clone().powi_scalar(2).sum_dim(0) * (1.0 / hidden.dims()[0] as f64);
                net.context.output("squares", mean);
                net.context.output("own", hidden.clone().sum_dim(0));
            }
            hidden
        })
        .then(&["rest.1"], |net, hidden, (_, classes)| net.rest.1.forward_loss(hidden, classes.clone()).reshape([1, 1]))
        .mean_loss(|_, sum, (_, classes)| sum.reshape([1]) * (1.0 / classes.dims()[0] as f64))
}

/// What one run left, on one rank.
#[derive(Debug)]
pub struct Outcome {
    pub reports: Vec<StepReport>,
    pub eval: (f64, Outputs),
    pub gradients: BTreeMap<String, TensorData>,
    pub parameters: BTreeMap<String, TensorData>,
    pub state: BTreeMap<String, TensorData>,
    /// What the whole model makes of rows that all ranks have.
    pub whole: TensorData,
    pub replicas: usize,
}

impl Outcome {
    /// Of every step loss and norm, and the loss of the evaluation.
    fn numbers(&self) -> Vec<f64> {
        let steps = self.reports.iter().flat_map(|report| [report.loss, report.grad_norm]);
        steps.chain([self.eval.0]).collect()
    }

    /// All tensors, by name.
    fn tensors(&self) -> BTreeMap<String, TensorData> {
        let mut all = BTreeMap::from([("logits of the whole model".to_string(), self.whole.clone())]);
        let kinds = [("gradient", &self.gradients), ("parameter", &self.parameters), ("state", &self.state)];
        let outputs = self.reports.iter().map(|report| &report.outputs).chain([&self.eval.1]).enumerate();
        let outputs = outputs.map(|(step, outputs)| (format!("step {step}: output"), outputs));
        let kinds = kinds.map(|(kind, tensors)| (kind.to_string(), tensors)).into_iter().chain(outputs);
        for (kind, tensors) in kinds {
            all.extend(tensors.iter().map(|(name, data)| (format!("{kind} `{name}`"), data.clone())));
        }
        all
    }
}

/// Every rank of a case has what one rank has, to the bound.
pub fn assert_parity(case: &Case, bound: f64) {
    let expected = run(&case.plain()).unwrap_or_else(|error| panic!("one rank: {error}")).remove(0);
    let Case { scopes, ranks, rows, micro_batches, zero, offload, .. } = case;
    let said = format!("{scopes:?} on {ranks}, {rows} rows in {micro_batches}, zero {zero:?}, offload {offload:?}");
    let found = run(case).unwrap_or_else(|error| panic!("{said}: {error}"));
    for (rank, found) in found.iter().enumerate() {
        for (step, (a, b)) in found.numbers().into_iter().zip(expected.numbers()).enumerate() {
            let error = (a - b).abs() / b.abs();
            assert!(error <= bound, "{said}, rank {rank}: number {step} is {a}, not {b}");
        }
        let (mut a, mut b) = (found.tensors(), expected.tensors());
        if found.replicas > 1 {
            // A local output is that of one replica.
            [&mut a, &mut b].iter_mut().for_each(|all| all.retain(|name, _| !name.ends_with("`own`")));
        }
        assert!(b.len() > 30, "there is something to compare: {:?}", b.keys());
        let (worst, error) = largest_error(&a, &b);
        assert!(error <= bound, "{said}, rank {rank}: {worst} differs by {error:e}");
    }
    if !case.scopes.is_empty() {
        assert_listed(case);
    }
}

/// The second step of every rank is that of its list, call for call, where the model hands out no values.
pub fn assert_listed(case: &Case) {
    let case = &Case { outputs: false, ..case.clone() };
    let (config, trace) = (case.config(), Trace::new());
    // Scopes say the mesh, which is known once the model is there.
    let batches = |context: &Context, step: usize| {
        let batch = rows(step * case.rows..(step + 1) * case.rows, &Device::default().autodiff());
        micro_batches(&batch, BatchShard::of(context, case.micro_batches)?, (step * case.rows) as u64)
    };
    let traced = launch_traced(&config, Some(trace.clone()), |epl| {
        let mut engine = Engine::build(&epl, |at| case.net(at), &optimizer())?;
        engine.step(batches(engine.context(), 0)?, 0.05)?;
        let second = batches(engine.context(), 1)?;
        engine.context().mark(|| program::MARKS[0].to_string());
        engine.step(second, 0.05)?;
        engine.context().mark(|| program::MARKS[1].to_string());
        Ok(program::Traced::of(&engine))
    });
    let traced = traced.unwrap_or_else(|error| panic!("{:?}: {error}", case.scopes));
    let lay =
        |lazy: LazyModel<_>, config: &Config| lazy.for_optimizer(&optimizer(), EngineSettings::from_config(config));
    let step = program::Step { config: &config, trace: &trace, rows: case.rows, has_experts: false };
    let second = |epl: &Epl| batches(epl.plan(|at| case.net(at))?.context(), 1);
    program::check(&traced, step, |at| case.net(at), lay, |epl| second(epl).expect("rows that can be divided"));
}

fn optimizer() -> AdamWConfig {
    AdamWConfig::new().with_epsilon(1e-4)
}

/// Runs a case on every rank.
pub fn run(case: &Case) -> epl::Result<Vec<Outcome>> {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    launch(&case.config(), |epl| train(&epl, case, folder.path()))
}

fn train(epl: &Epl, case: &Case, folder: &Path) -> epl::Result<Outcome> {
    let build = || Engine::build(epl, |at| case.net(at), &optimizer());
    let mut engine = build()?;
    let device = engine.device().clone();
    let batch = |step: usize| rows(step * case.rows..(step + 1) * case.rows, &device);
    let share = BatchShard::of(engine.context(), case.micro_batches)?;
    let gradients = engine.gradients(micro_batches(&batch(0), share, 0)?)?.1;
    let mut reports = (0..2).map(|step| engine.train_batch(&batch(step), 0.05)).collect::<epl::Result<Vec<_>>>()?;
    // The third step is made by what was saved, too.
    engine.save(folder.join("checkpoint"))?;
    let mut again = build()?;
    again.load(folder.join("checkpoint"))?;
    let third = |engine: &mut Engine<_>| engine.step(micro_batches(&batch(2), share, 2 * case.rows as u64)?, 0.05);
    reports.push(third(&mut engine)?);
    assert_eq!(third(&mut again)?, reports[2], "to the bit");
    assert_eq!(again.parameters()?, engine.parameters()?, "to the bit");
    engine.check_replicas()?;
    let share = BatchShard::of(engine.context(), 2)?;
    let eval = engine.evaluate(micro_batches(&batch(3), share, 0)?.into_iter().map(Ok))?;
    let model = engine.inference()?;
    let (inputs, _) = rows(0..5, &device.clone().without_autodiff());
    let batch = (inputs, Tensor::zeros([5], &device.clone().without_autodiff()));
    let hidden = (0..3).fold(None, |carry, segment| Some(model.forward_segment(segment, carry, &batch)));
    let whole = model.model.logits(hidden.expect("three segments were run").into_output()?).into_data();
    Ok(Outcome {
        reports,
        eval: (eval.loss, eval.outputs),
        gradients,
        parameters: engine.parameters()?,
        state: engine.optimizer_state()?,
        replicas: engine.context().replicas(),
        whole,
    })
}
