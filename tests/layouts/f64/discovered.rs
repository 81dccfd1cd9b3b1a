//! Plain layers of Burn that were found to run in slices equal one rank under every layout.

use core::ops::Range;

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, silu};
use burn::tensor::{Device, Tensor, TensorData};
use epl::comm::Trace;
use epl::config::PipelineStrategy::PreferBackward;
use epl::config::StateTier::Host;
use epl::config::ZeroLevel::{V1, V2, V3};
use epl::data::{BatchShard, micro_batches};
use epl::optim::OptimizerConfig;
use epl::plan::{ExitSplit, SplitFinding};
use epl::{Chain, Config, Engine, EngineSettings, Epl, LazyModel, MicroBatch, Model, Place, Result};

use crate::checkpoints::{RATE, Run, adam_w, matrix, on_ranks};
use crate::parity::{Layout, Outcome, assert_same, launched, layout, program, share, three_steps};

pub type Batch = (Tensor<2>, Tensor<2>);

#[derive(Module, Debug)]
struct Block {
    norm: LayerNorm,
    up: Linear,
    gate: Option<Linear>,
    down: Linear,
}

#[derive(Module, Debug)]
pub struct Net {
    first: Linear,
    blocks: Vec<Block>,
    head: Linear,
}

const FEATURES: usize = 6;
const WIDTH: usize = 8;
/// Neither 2 nor 3 divides it.
const HIDDEN: usize = 13;
const OUTPUTS: usize = 5;
/// Of a step: not all replicas and micro-batches have as many.
pub const ROWS: usize = 7;

impl Block {
    fn new(is_gated: bool, at: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).with_bias(!is_gated).init(at);
        Self {
            norm: LayerNormConfig::new(WIDTH).init(at),
            up: linear(WIDTH, HIDDEN),
            gate: is_gated.then(|| linear(WIDTH, HIDDEN)),
            down: linear(HIDDEN, WIDTH),
        }
    }

    /// Without what it is added to.
    fn forward(&self, rows: Tensor<2>) -> Tensor<2> {
        let rows = self.norm.forward(rows);
        let up = self.up.forward(rows.clone());
        self.down.forward(match &self.gate {
            Some(gate) => silu(gate.forward(rows)) * up,
            None => gelu(up),
        })
    }
}

/// Columns; a residual; gated beside a tensor that goes through; a norm behind, which stays whole; columns of a head.
pub fn chain(at: &Place) -> Chain<Net, Batch, Tensor<2>> {
    let blocks = vec![Block::new(false, at), Block::new(true, at), Block::new(false, at)];
    let head = LinearConfig::new(WIDTH, OUTPUTS).init(at);
    let net = Net { first: LinearConfig::new(FEATURES, WIDTH).init(at), blocks, head };
    Chain::of(net)
        .first(&["first"], |net: &Net, (rows, _): &Batch| net.first.forward(rows.clone()))
        .then(&["blocks.0"], |net, rows: Tensor<2>, _| rows.clone() + net.blocks[0].forward(rows))
        .then(&["blocks.1"], |net, rows: Tensor<2>, _| (net.blocks[1].forward(rows.clone()), rows))
        .then(&["blocks.2"], |net, (rows, beside), _| {
            let block = &net.blocks[2];
            block.norm.forward(rows.clone() + beside + block.forward(rows))
        })
        .then(&["head"], |net, rows, _| net.head.forward(rows))
        .mean_loss(|_, outputs, (_, targets)| {
            // A mean by a product: Burn's own rounds to f32.
            let [rows, columns] = targets.dims();
            (outputs - targets.clone()).powi_scalar(2).sum() * (1.0 / (rows * columns) as f64)
        })
}

/// Rows by rule.
pub fn rows(range: Range<usize>, device: &Device) -> Batch {
    let number = |at: usize| ((at * 7919 + 17) as f64 * 0.618_033_988_75).fract() * 2.0 - 1.0;
    let of = |width: usize| {
        let values: Vec<f64> = (range.start * width..range.end * width).map(number).collect();
        Tensor::from_data(TensorData::new(values, [range.len(), width]), device)
    };
    (of(FEATURES), of(OUTPUTS))
}

/// Laid out with what is found, which is what this file is about.
fn laid(
    lazy: LazyModel<Chain<Net, Batch, Tensor<2>>>,
    device: &Device,
) -> Result<LazyModel<Chain<Net, Batch, Tensor<2>>>> {
    use ExitSplit::{Same, Slices, Sum, SumBesideBase};
    let lazy = lazy.discover(&rows(0..3, device))?;
    let kinds = |finding: &SplitFinding| match finding {
        SplitFinding::Split(split) => split.exits.clone(),
        SplitFinding::Whole(_) => Vec::new(),
    };
    let found: Vec<Vec<ExitSplit>> = lazy.plan().findings().iter().map(kinds).collect();
    let expected = [vec![Slices], vec![SumBesideBase], vec![Sum, Same], vec![], vec![Slices]];
    assert!(found.is_empty() || found == expected, "{}", lazy.plan());
    Ok(lazy)
}

fn settings(config: &Config) -> EngineSettings {
    EngineSettings { clip_norm: Some(0.5), ..EngineSettings::from_config(config) }
}

fn batches(epl: &Epl, step: u64, accumulation: usize) -> Vec<MicroBatch<Batch>> {
    let device = epl.place().device();
    share(epl, ROWS, (step, accumulation), |own| {
        let first = step as usize * ROWS;
        rows(first + own.start..first + own.end, device)
    })
}

fn engine<O: OptimizerConfig>(epl: &Epl, optimizer: &O) -> Result<Engine<Chain<Net, Batch, Tensor<2>>>> {
    let lazy = laid(epl.plan(chain)?, epl.place().device())?;
    let findings = lazy.plan().findings().len();
    assert_eq!(findings, if epl.context().tensor().size() > 1 { 5 } else { 0 });
    Engine::new(epl.draw(lazy)?, optimizer, settings(epl.config()))
}

/// Three steps, whose calls are those of the list of a step.
pub fn train(layout: Layout) -> Outcome {
    let (config, trace) = (layout.config(), Trace::new());
    let steps = |epl: Epl| three_steps(engine(&epl, &adam_w())?, |step| batches(&epl, step, layout.accumulation));
    let (outcome, traced) = launched(layout, (&config, &trace), steps);
    let lay = |lazy: LazyModel<_>, config: &Config| {
        let device = Device::default().autodiff();
        laid(lazy, &device)?.for_optimizer(&adam_w(), settings(config))
    };
    let step = program::Step { config: &config, trace: &trace, rows: ROWS, has_experts: false };
    program::check(&traced, step, chain, lay, |epl| batches(epl, 2, layout.accumulation));
    outcome
}

fn all_equal_one_rank(layouts: &[Layout]) {
    let expected = train(layout(1, 1, 1, 1));
    layouts.iter().for_each(|layout| assert_same(*layout, &train(*layout), &expected, 1e-10));
}

#[test]
fn over_slices() {
    epl_testing::in_f64(|| {
        let (two, four) = (layout(1, 2, 1, 1), layout(2, 2, 1, 2));
        let stages = layout(1, 2, 1, 4).stages(2, 1, PreferBackward);
        all_equal_one_rank(&[two, layout(1, 3, 1, 1), four, stages, two.recompute(&[]), four.recompute(&[])]);
    });
}

#[test]
fn over_slices_and_shards() {
    epl_testing::in_f64(|| {
        let four = layout(2, 2, 1, 2);
        let stages = four.stages(2, 1, PreferBackward);
        all_equal_one_rank(&[four.zero(V1), four.zero(V2), four.zero(V3), stages.zero(V3), four.offload(Host)]);
    });
}

#[derive(Debug)]
struct Discovered(Layout);

impl Run for Discovered {
    type Model = Chain<Net, Batch, Tensor<2>>;

    fn config(&self) -> Config {
        self.0.config()
    }

    fn engine<O: OptimizerConfig>(&self, epl: &Epl, optimizer: &O) -> Result<Engine<Self::Model>> {
        engine(epl, optimizer)
    }

    fn step(&self, epl: &Epl, engine: &mut Engine<Self::Model>, number: u64) -> Result<()> {
        engine.step(batches(epl, number, self.0.accumulation), RATE).map(|_| ())
    }
}

#[test]
fn one_rank_goes_on_from_slices_and_slices_from_it() {
    epl_testing::in_f64(|| {
        let four = layout(2, 2, 1, 2);
        let layouts =
            [layout(1, 1, 1, 1), layout(1, 2, 1, 1), four.zero(V3), layout(1, 2, 1, 4).stages(2, 1, PreferBackward)];
        assert_eq!(matrix(&layouts.map(Discovered), &adam_w(), &[1, 2]), 12);
    });
}

/// The loss of an evaluation, the sum of what leaves, and the same of the whole model that each rank gets.
fn without_training(layout: Layout) -> [f64; 3] {
    on_ranks(&Discovered(layout), |epl| {
        let mut engine = engine(epl, &adam_w())?;
        engine.step(batches(epl, 0, layout.accumulation), RATE)?;
        let loss = engine.evaluate(batches(epl, 1, layout.accumulation).into_iter().map(Ok))?.loss;
        let sum = |outputs: Tensor<2>| outputs.sum().into_data().iter::<f64>().sum::<f64>();
        let batch = rows(0..4, &epl.place().device().clone().without_autodiff());
        let mut left = 0.0;
        engine.forward(micro_batches(&batch, BatchShard::whole(), 0)?.into_iter().map(Ok), |net, outputs, _| {
            // Who is behind the last segment does not take slices for the whole.
            let is_empty = net.model.head.weight.val().dims() == [0, 0];
            assert_eq!(is_empty, !engine.plan().findings().is_empty());
            left += sum(outputs);
            Ok(())
        })?;
        // Stages but the last have nothing that leaves.
        let stages = engine.plan().stages.count();
        let whole = engine.inference()?;
        assert_eq!(whole.model.blocks[0].up.weight.val().dims(), [WIDTH, HIDDEN]);
        let outputs: Tensor<2> = epl::Carry::into_output(whole.forward_all(&batch))?;
        let outputs = sum(outputs);
        Ok([loss, if stages == 1 { left } else { outputs }, outputs])
    })
}

#[test]
fn what_is_not_trained_is_whole() {
    epl_testing::in_f64(|| {
        let expected = without_training(layout(1, 1, 1, 1));
        let four = layout(2, 2, 1, 2);
        for layout in [layout(1, 2, 1, 1), four.zero(V3), layout(1, 2, 1, 4).stages(2, 1, PreferBackward)] {
            let found = without_training(layout);
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() <= 1e-10 * expected.abs(), "{layout:?}: {found}, not {expected}");
            }
        }
    });
}
