//! A T5 trained for three steps under a layout, compared with one rank: loss, every gradient, norm, parameters and
//! optimizer state.
//!
//! Error of a tensor: max|a − b| ÷ max|b|. What a test must show is one line: the layout, what is special about the
//! data, and the bound.

// Each test binary uses its part of this.
#![allow(dead_code)]

pub mod program;

use std::collections::BTreeMap;
use std::ops::Range;

use burn::data::dataloader::batcher::Batcher;
use burn::module::{Lora, Module, ModuleMapper, Param};
use burn::optim::{AdafactorConfig, AdamWConfig, SgdConfig, momentum::MomentumConfig};
use burn::tensor::{Tensor, TensorData};
use epl::comm::{Trace, shard_range};
use epl::config::{CheckpointType, Config, HalfDtype, PipelineStrategy, StateTier, ZeroLevel};
use epl::data::BatchShard;
use epl::models::t5::{IGNORED, T5, T5Batch, T5Batcher, T5Config, T5MoeConfig};
use epl::models::text::TokenPair;
use epl::modules::moe::{Capacity, Gate};
use epl::optim::{OptimizerConfig, ParamGroups};
use epl::testing::{config, error_together, in_half, largest_error};
use epl::topology::cluster::Mesh;
use epl::{Engine, EngineSettings, Epl, LazyModel, MicroBatch, Model, Place, StepReport};

/// What is trained, and on what.
#[derive(Clone)]
pub struct Case {
    pub model: T5Config,
    pub pairs: Vec<TokenPair>,
    pub clip_norm: Option<f64>,
    pub optimizer: Optimizer,
    /// Whether only low-rank factors beside frozen parameters are trained.
    pub lora: bool,
}

/// What updates the parameters.
#[derive(Clone, Copy, Debug)]
pub enum Optimizer {
    AdamW,
    /// With momentum.
    Sgd,
    Adafactor,
    /// AdamW in parameter groups: other decay, other rate, other settings, frozen.
    GroupedAdamW,
    /// Adafactor in the same.
    GroupedAdafactor,
}

/// The sizes of the mesh, the micro-batches of a step, and how they go through the stages.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub data: usize,
    pub tensor: usize,
    pub expert: usize,
    pub accumulation: usize,
    pub stages: usize,
    pub chunks: usize,
    pub schedule: PipelineStrategy,
    /// The segments whose entrance is kept; none of them: chosen.
    pub recompute: Option<&'static [usize]>,
    /// What is sharded over the replicas.
    pub zero: ZeroLevel,
    /// The groups in which parameters are updated.
    pub apply_groups: usize,
    /// The 16-bit type in which segments compute.
    pub half: Option<HalfDtype>,
    /// Where parameters, gradients and optimizer state lie.
    pub tiers: [StateTier; 3],
    /// In which proportion replicas divide rows.
    pub row_weights: Option<&'static [usize]>,
    /// Layers that are whole on each tensor rank.
    pub whole_layers: Option<&'static [&'static str]>,
}

pub const fn layout(data: usize, tensor: usize, expert: usize, accumulation: usize) -> Layout {
    let schedule = PipelineStrategy::PreferBackward;
    let (zero, apply_groups) = (ZeroLevel::Off, 1);
    let (stages, chunks, recompute, half) = (1, 1, None, None);
    let tiers = [StateTier::Device; 3];
    let (row_weights, whole_layers) = (None, None);
    Layout {
        data,
        tensor,
        expert,
        accumulation,
        stages,
        chunks,
        schedule,
        recompute,
        zero,
        apply_groups,
        half,
        tiers,
        row_weights,
        whole_layers,
    }
}

impl Layout {
    /// Over pipeline stages.
    pub const fn stages(self, stages: usize, chunks: usize, schedule: PipelineStrategy) -> Self {
        Self { stages, chunks, schedule, ..self }
    }

    /// With segments recomputed: what enters these is kept, or, without any, what EPL chooses.
    pub const fn recompute(self, kept: &'static [usize]) -> Self {
        Self { recompute: Some(kept), ..self }
    }

    /// With state sharded over the replicas.
    pub const fn zero(self, zero: ZeroLevel) -> Self {
        Self { zero, ..self }
    }

    /// With parameters updated in groups.
    pub const fn apply_groups(self, apply_groups: usize) -> Self {
        Self { apply_groups, ..self }
    }

    /// With everything away from the device.
    pub const fn offload(self, tier: StateTier) -> Self {
        self.tiers(tier, tier, tier)
    }

    /// With parameters, gradients and optimizer state where they are said to be.
    pub const fn tiers(self, parameters: StateTier, gradients: StateTier, optimizer_state: StateTier) -> Self {
        Self { tiers: [parameters, gradients, optimizer_state], ..self }
    }

    /// With rows divided over replicas in this proportion.
    pub const fn rows(self, weights: &'static [usize]) -> Self {
        Self { row_weights: Some(weights), ..self }
    }

    /// With layers whole that could be divided.
    pub const fn whole(self, layers: &'static [&'static str]) -> Self {
        Self { whole_layers: Some(layers), ..self }
    }

    /// In mixed precision.
    pub const fn half(self, dtype: HalfDtype) -> Self {
        Self { half: Some(dtype), ..self }
    }

    pub fn config(self) -> Config {
        let mut config = config(self.data, self.tensor, self.expert);
        config.zero.level = self.zero;
        let [parameters, gradients, optimizer_state] = self.tiers.map(Some);
        (config.offload.parameters, config.offload.gradients) = (parameters, gradients);
        config.offload.optimizer_state = optimizer_state;
        if let Some(dtype) = self.half {
            config = in_half(config, dtype);
        }
        config.optimizer.num_apply_group = self.apply_groups;
        config.io.row_weights = self.row_weights.map(<[usize]>::to_vec);
        config.dist.whole_layers = self.whole_layers.map(|layers| layers.iter().map(ToString::to_string).collect());
        config.dist.pipeline_parallel_size = self.stages;
        config.pipeline.num_chunks = self.chunks;
        config.pipeline.strategy = self.schedule;
        match self.recompute {
            None => {}
            Some([]) => config.gradient_checkpoint.r#type = CheckpointType::Auto,
            Some(kept) => {
                config.gradient_checkpoint.r#type = CheckpointType::Collection;
                config.gradient_checkpoint.kept = Some(kept.iter().map(usize::to_string).collect());
            }
        }
        config
    }
}

/// What one run left.
pub struct Outcome {
    traced: Option<program::Traced>,
    pub reports: Vec<StepReport>,
    pub gradients: BTreeMap<String, TensorData>,
    pub parameters: BTreeMap<String, TensorData>,
    pub state: BTreeMap<String, TensorData>,
}

impl Outcome {
    /// The first rank's report alone.
    pub fn of(reports: Vec<StepReport>) -> Self {
        let none = BTreeMap::new();
        Self { traced: None, reports, gradients: none.clone(), parameters: none.clone(), state: none }
    }
}

const VOCAB: usize = 37;

/// Two encoder and two decoder blocks, every second one with four experts; dropout and jitter are on.
pub fn moe() -> Case {
    let moe =
        T5MoeConfig::new(4).with_encoder_sparse_step(2).with_decoder_sparse_step(2).with_z(0.01).with_jitter(0.05);
    Case {
        model: model().with_moe(Some(moe)),
        pairs: pairs(7),
        clip_norm: Some(0.5),
        optimizer: Optimizer::AdamW,
        lora: false,
    }
}

/// Without experts, with a gated feed-forward and a head of its own.
pub fn dense() -> Case {
    let feed_forward = epl::models::t5::T5FeedForward::GatedGelu;
    let model = model().with_feed_forward(feed_forward).with_tied_head(false).with_scaled_head(false);
    Case { model, pairs: pairs(7), clip_norm: None, optimizer: Optimizer::AdamW, lora: false }
}

fn model() -> T5Config {
    T5Config::new(VOCAB)
        .with_d_model(16)
        .with_d_kv(4)
        .with_heads(4)
        .with_d_ff(24)
        .with_encoder_layers(2)
        .with_decoder_layers(2)
        .with_dropout(0.1)
        .with_label_smoothing(0.1)
}

impl Case {
    /// More blocks, so that there are segments for many stages: nine in all.
    pub fn deep(mut self) -> Self {
        self.model = self.model.with_encoder_layers(4).with_decoder_layers(4);
        self
    }

    /// Top-1 routing.
    pub fn switch(self) -> Self {
        self.with_moe(|moe| moe.with_gate(Gate::Switch))
    }

    /// Room for so few tokens that every sparse layer drops some.
    pub fn tight(self) -> Self {
        self.with_moe(|moe| moe.with_capacity(Capacity::Fixed(1)))
    }

    /// So many experts that some have no token at all.
    pub fn many_experts(self) -> Self {
        let few = Self { pairs: self.pairs[..2].to_vec(), ..self };
        few.with_moe(|moe| T5MoeConfig { experts: 64, ..moe })
    }

    fn with_moe(mut self, f: impl FnOnce(T5MoeConfig) -> T5MoeConfig) -> Self {
        self.model.moe = self.model.moe.map(f);
        self
    }

    /// Stochastic gradient descent with momentum instead of AdamW.
    pub fn sgd(self) -> Self {
        Self { optimizer: Optimizer::Sgd, ..self }
    }

    /// Adafactor, which looks at whole tensors, instead of AdamW.
    pub fn adafactor(self) -> Self {
        Self { optimizer: Optimizer::Adafactor, ..self }
    }

    /// In parameter groups.
    pub fn grouped(self) -> Self {
        let optimizer = match self.optimizer {
            Optimizer::Adafactor => Optimizer::GroupedAdafactor,
            _ => Optimizer::GroupedAdamW,
        };
        Self { optimizer, ..self }
    }

    /// Trains low-rank factors only.
    pub fn lora(self) -> Self {
        Self { lora: true, ..self }
    }

    /// The model, laid out at a place.
    pub fn init(&self, place: &Place) -> T5 {
        let model = self.model.init(place);
        match self.lora {
            false => model,
            // Burn draws the factors, and with them all parameters, from the generator that the ranks share.
            true => model.apply_lora(Lora::new(2, 4.0)).map(&mut ByRule(0)),
        }
    }

    /// The later half of the samples has no token that counts: of two replicas, the second has none.
    pub fn half_ignored(mut self) -> Self {
        let half = self.pairs.len().div_ceil(2);
        self.pairs[half..].iter_mut().for_each(|pair| pair.target.fill(IGNORED));
        self
    }

    /// Fewer samples than replicas.
    pub fn samples(mut self, count: usize) -> Self {
        self.pairs.truncate(count);
        self
    }
}

/// Values that depend on nothing but the order of the parameters.
struct ByRule(usize);

impl ModuleMapper for ByRule {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.0 += 1;
        let (number, shape) = (self.0, param.shape());
        let value = |index: usize| ((index * 37 + number * 11) as f64).sin() * 0.3;
        let values: Vec<f64> = (0..shape.num_elements()).map(value).collect();
        let device = param.device().without_autodiff();
        epl::plan::with_values(param, Tensor::from_data(TensorData::new(values, shape), &device))
    }
}

/// Pairs of ragged lengths, by rule.
pub fn pairs(count: usize) -> Vec<TokenPair> {
    let token = |seed: usize| 2 + (seed * 7919 + seed / 3) as i64 % (VOCAB as i64 - 2);
    let sentence = |seed: usize, length: usize| (0..length).map(|at| token(seed * 101 + at * 13)).chain([1]).collect();
    (0..count)
        .map(|sample| TokenPair {
            source: sentence(sample, 2 + (sample * 5) % 9),
            target: sentence(sample + 50, 1 + (sample * 3) % 7),
        })
        .collect()
}

/// This replica's share of the global batch: cut by samples, unevenly where they do not divide, or in the proportion that is given.
pub fn micro_batches(epl: &Epl, case: &Case, step: u64, accumulation: usize) -> Vec<MicroBatch<T5Batch>> {
    let batcher = T5Batcher::new(&case.model);
    let batch = |rows: Range<usize>| batcher.batch(case.pairs[rows].to_vec(), epl.place().device());
    share(epl, case.pairs.len(), (step, accumulation), batch)
}

/// This replica's share of so many samples, in micro-batches.
pub fn share<B>(
    epl: &Epl,
    count: usize,
    (step, accumulation): (u64, usize),
    batch: impl Fn(Range<usize>) -> B,
) -> Vec<MicroBatch<B>> {
    let data = epl.context().data();
    let parts = data.size() * accumulation;
    let first = step * count as u64;
    let shard = BatchShard::of(epl.context(), accumulation).unwrap_or_else(|error| panic!("{error}"));
    let is_weighted = epl.context().mesh().row_weights().unwrap_or(None).is_some();
    let weighted = is_weighted.then(|| shard.rows(count));
    let micro_batch = |number: usize| {
        let even = || shard_range(count, parts, data.rank() * accumulation + number);
        let rows = weighted.as_ref().map_or_else(even, |rows| rows[number].clone());
        let stand_in = rows.is_empty();
        let rows = if stand_in { 0..1 } else { rows };
        let samples: Vec<u64> = rows.clone().map(|row| first + row as u64).collect();
        let batch = batch(rows);
        if stand_in { MicroBatch::stand_in(batch, samples) } else { MicroBatch::new(batch, samples) }
    };
    (0..accumulation).map(micro_batch).collect()
}

pub fn train(case: &Case, layout: Layout) -> Outcome {
    train_as(case, layout, &layout.config())
}

/// The ranks of this process under a layout, in a configuration of that.
pub fn train_as(case: &Case, layout: Layout, config: &Config) -> Outcome {
    let batches = |epl: &Epl| micro_batches(epl, case, 2, layout.accumulation);
    let lay = |lazy: LazyModel<T5>, config: &Config| laid(case, lazy, config);
    let trace = Trace::new();
    let steps = |epl: Epl| steps(case, layout.accumulation, &epl);
    let (outcome, traced) = launched(layout, (config, &trace), steps);
    let step = program::Step { config, trace: &trace, rows: case.pairs.len(), has_experts: case.model.moe.is_some() };
    program::check(&traced, step, |place| case.init(place), lay, batches);
    outcome
}

/// What the ranks of this process leave, which is the same on all, and what they traced.
pub fn launched(
    layout: Layout,
    (config, trace): (&Config, &Trace),
    steps: impl Fn(Epl) -> epl::Result<Outcome> + Sync,
) -> (Outcome, Vec<program::Traced>) {
    let outcomes = epl::launch_traced(config, Some(trace.clone()), steps);
    let outcomes = outcomes.unwrap_or_else(|error| panic!("{layout:?}: {error}"));
    let traced: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.traced.clone()).collect();
    for other in &outcomes[1..] {
        assert_eq!(outcomes[0].reports, other.reports, "reports are the same on every rank");
        assert_eq!(outcomes[0].parameters, other.parameters, "replicas stay equal, to the bit");
    }
    (outcomes.into_iter().next().expect("there is a first rank"), traced)
}

/// One rank, whatever other processes there are.
pub fn train_alone(case: &Case) -> Outcome {
    let config = layout(1, 1, 1, 1).config();
    let mesh = Mesh::from_config(&config).expect("a mesh of one rank");
    let run = |world| steps(case, 1, &Epl::new(config.clone(), mesh.clone(), world, None)?);
    let outcomes = epl::comm::local::run(1, run).unwrap_or_else(|(_, error)| panic!("alone: {error}"));
    outcomes.into_iter().next().expect("there is a rank")
}

/// What is done with the optimizer of a case, whatever its type is.
trait WithOptimizer {
    type Output;

    fn with<O: OptimizerConfig>(self, optimizer: &O) -> Self::Output;
}

impl Optimizer {
    fn give<W: WithOptimizer>(self, to: W) -> W::Output {
        match self {
            Self::AdamW => to.with(&AdamWConfig::new().with_epsilon(1e-4)),
            Self::Sgd => to.with(&SgdConfig::new().with_momentum(Some(MomentumConfig::new()))),
            Self::Adafactor => to.with(&AdafactorConfig::new()),
            Self::GroupedAdamW => {
                let adamw = AdamWConfig::new().with_epsilon(1e-4).with_weight_decay(0.3);
                let own = adamw.clone().with_beta_1(0.7).with_beta_2(0.9);
                to.with(&grouped(adamw, own))
            }
            Self::GroupedAdafactor => {
                let adafactor = AdafactorConfig::new().with_weight_decay(0.3);
                to.with(&grouped(adafactor.clone(), adafactor.with_clip_threshold(0.5)))
            }
        }
    }
}

/// The gradients of the first batch, and three steps.
fn steps(case: &Case, accumulation: usize, epl: &Epl) -> epl::Result<Outcome> {
    struct Steps<'a>(&'a Case, usize, &'a Epl);
    impl WithOptimizer for Steps<'_> {
        type Output = epl::Result<Outcome>;

        fn with<O: OptimizerConfig>(self, optimizer: &O) -> Self::Output {
            steps_with(self.0, self.1, self.2, optimizer)
        }
    }
    case.optimizer.give(Steps(case, accumulation, epl))
}

/// A model that is planned, laid out as the engine of a run lays it.
fn laid(case: &Case, lazy: LazyModel<T5>, config: &Config) -> epl::Result<LazyModel<T5>> {
    struct Lay(LazyModel<T5>, EngineSettings);
    impl WithOptimizer for Lay {
        type Output = epl::Result<LazyModel<T5>>;

        fn with<O: OptimizerConfig>(self, optimizer: &O) -> Self::Output {
            self.0.for_optimizer(optimizer, self.1)
        }
    }
    case.optimizer.give(Lay(lazy, settings(case, config)))
}

fn settings(case: &Case, config: &Config) -> EngineSettings {
    EngineSettings { clip_norm: case.clip_norm, ..EngineSettings::from_config(config) }
}

/// Groups that leave out parts of buckets and of stages; biases of attention stay, and parts of both sides are frozen.
fn grouped<O: OptimizerConfig>(optimizer: O, own: O) -> ParamGroups<O> {
    ParamGroups::new(optimizer)
        .group(["**.norm", "*.final_norm"], |group| group.with_weight_decay(0.0))
        .group(["embedding", "decoder.blocks.*.feed_forward"], |group| group.with_rate_factor(0.25))
        .group(["decoder.blocks.*.self_attention.heads"], |group| group.with_optimizer(own))
        .group(["encoder.blocks.0", "decoder.**.cross_attention.norm"], |group| group.with_frozen(true))
}

fn steps_with<O: OptimizerConfig>(case: &Case, accumulation: usize, epl: &Epl, optimizer: &O) -> epl::Result<Outcome> {
    let built = epl.build(|place| case.init(place))?;
    let engine = Engine::new(built, optimizer, settings(case, epl.config()))?;
    three_steps(engine, |step| micro_batches(epl, case, step, accumulation))
}

/// The gradients of the first batch, and three steps.
pub fn three_steps<M: Model>(
    mut engine: Engine<M>,
    batches: impl Fn(u64) -> Vec<MicroBatch<M::Batch>>,
) -> epl::Result<Outcome> {
    let (_, gradients) = engine.gradients(batches(0))?;
    let mut reports = Vec::new();
    for step in 0..3 {
        let batches = batches(step);
        if step == 2 {
            engine.context().mark(|| program::MARKS[0].to_string());
        }
        reports.push(engine.step(batches, 0.02)?);
    }
    engine.context().mark(|| program::MARKS[1].to_string());
    let traced = Some(program::Traced::of(&engine));
    Ok(Outcome { traced, reports, gradients, parameters: engine.parameters()?, state: engine.optimizer_state()? })
}

/// In f64, all errors are at most 1e-10.
pub fn assert_parity_in_f64(case: &Case, layout: Layout) -> Outcome {
    assert_parity(case, layout, 1e-10)
}

/// Tests by their names: a case and a layout, whose run in f64 equals that of one rank.
// Not each binary has a list of them.
#[allow(unused_macros)]
macro_rules! parity_in_f64 {
    ($($name:ident: $case:expr, $layout:expr;)*) => {$(
        #[test]
        fn $name() {
            epl_testing::in_f64(|| {
                crate::parity::assert_parity_in_f64(&$case, $layout);
            });
        }
    )*};
}
#[allow(unused_imports)]
pub(crate) use parity_in_f64;

/// The run under `layout` equals that of one rank without accumulation.
pub fn assert_parity(case: &Case, layout: Layout, bound: f64) -> Outcome {
    let expected = train(case, Layout { half: layout.half, ..self::layout(1, 1, 1, 1) });
    assert_equal(case, layout, &expected, bound)
}

/// The run under `layout` equals another one.
pub fn assert_equal(case: &Case, layout: Layout, expected: &Outcome, bound: f64) -> Outcome {
    let got = train(case, layout);
    assert_same(layout, &got, expected, bound);
    got
}

/// What a run under `layout` left equals what another one did.
pub fn assert_same(layout: Layout, got: &Outcome, expected: &Outcome, bound: f64) {
    let mut faults = Vec::new();
    for (step, (got, expected)) in got.reports.iter().zip(&expected.reports).enumerate() {
        for (what, a, b) in [("loss", got.loss, expected.loss), ("norm", got.grad_norm, expected.grad_norm)] {
            let error = (a - b).abs() / b.abs();
            if error.is_nan() || error > bound {
                faults.push(format!("{what} of step {step}: {a} instead of {b}, error {error:.1e}"));
            }
        }
        if got.metrics != expected.metrics {
            faults.push(format!("metrics of step {step}: {:?} instead of {:?}", got.metrics, expected.metrics));
        }
    }
    let tensors = [
        ("gradient", &got.gradients, &expected.gradients),
        ("parameter", &got.parameters, &expected.parameters),
        ("state", &got.state, &expected.state),
    ];
    for (what, got, expected) in tensors {
        assert!(!expected.is_empty(), "there are tensors to compare: {what}");
        let (name, error) = largest_error(got, expected);
        if error.is_nan() || error > bound {
            faults.push(format!("{what} {name}: error {error:.1e}"));
        }
    }
    assert!(faults.is_empty(), "{layout:?}, bound {bound:.0e}:\n{}", faults.join("\n"));
}

/// One rounding of the type.
pub fn rounding(dtype: HalfDtype) -> f64 {
    match dtype {
        HalfDtype::F16 => 2.0_f64.powi(-11),
        HalfDtype::Bf16 => 2.0_f64.powi(-8),
    }
}

/// Three steps equal those of one rank in the same type, to a few roundings; so do all gradients together, and all
/// parameters at the end.
pub fn assert_close(case: &Case, layout: Layout) {
    let alone = train(case, Layout { half: layout.half, ..self::layout(1, 1, 1, 1) });
    assert_roundings(layout, &train(case, layout), &alone);
}

/// What a run in mixed precision left is what one rank did in the same type, to a few roundings.
pub fn assert_roundings(layout: Layout, got: &Outcome, alone: &Outcome) {
    let dtype = layout.half.expect("in mixed precision");
    for (step, (got, alone)) in got.reports.iter().zip(&alone.reports).enumerate() {
        assert_eq!((got.skipped, got.loss_scale), (alone.skipped, alone.loss_scale), "{layout:?}, step {step}");
        let loss = (got.loss - alone.loss).abs() / alone.loss;
        let norm = (got.grad_norm - alone.grad_norm).abs() / alone.grad_norm;
        println!("{dtype}, step {step}: loss {loss:.1e}, norm {norm:.1e}");
        assert!(loss <= 2.0 * rounding(dtype), "{layout:?}, step {step}: loss off by {loss:.1e}");
        assert!(norm <= 20.0 * rounding(dtype), "{layout:?}, step {step}: norm off by {norm:.1e}");
    }
    let tensors = [("gradients", &got.gradients, &alone.gradients), ("parameters", &got.parameters, &alone.parameters)];
    for (what, got, alone) in tensors {
        // Where a rounding changes the sign of what enters a relu, a term comes or goes as a whole: the share of such terms
        // follows the rounding, the norm of their sum its root.
        let error = error_together(got, alone) / rounding(dtype).sqrt();
        println!("{dtype}: {what} {error:.3} √u");
        assert!(error <= 0.5, "{layout:?}: the {what} are off by {error:.2} √u");
    }
}

/// The sums of a metric over all layers, by its last name.
pub fn metric(outcome: &Outcome, last: &str) -> Vec<Vec<f64>> {
    let metrics = outcome.reports[0].metrics.iter();
    metrics.filter(|(name, _)| name.ends_with(last)).map(|(_, values)| values.clone()).collect()
}
