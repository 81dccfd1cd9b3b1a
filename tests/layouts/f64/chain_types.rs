//! A chain whose links hand on one type after the other, from pictures to rows, equals one rank under every layout.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor, TensorData};
use epl::data::{BatchShard, micro_batches};
use epl::prelude::*;
use epl::testing::largest_error;

type Batch = (Tensor<4>, Tensor<2>);

#[derive(Module, Debug)]
struct Net {
    conv: Vec<Conv2d>,
    middle: Linear,
    head: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        let conv = |channels| Conv2dConfig::new(channels, [2, 2]).init(device);
        Self {
            conv: vec![conv([1, 2]), conv([2, 2])],
            middle: LinearConfig::new(2 * 4 * 4 + 2 * 3 * 3, 6).init(device),
            head: LinearConfig::new(6, 3).init(device),
        }
    }
}

fn chain(at: &Place) -> Chain<Net, Batch, Tensor<2>> {
    Chain::of(Net::new(at))
        .first(&["conv.0"], |net: &Net, (images, _): &Batch| tanh(net.conv[0].forward(images.clone())))
        .then(&["conv.1"], |net, hidden, _| {
            let beside = hidden.clone().flatten::<2>(1, 3);
            (net.conv[1].forward(hidden), Some(beside), vec![Tensor::<1>::ones([2], &Device::default())])
        })
        .then(&["middle"], |net, (hidden, beside, _), _| {
            let rows = [Some(hidden.flatten::<2>(1, 3)), beside].into_iter().flatten().collect();
            tanh(net.middle.forward(Tensor::cat(rows, 1)))
        })
        .then(&["head"], |net, hidden, _| net.head.forward(hidden))
        .mean_loss(|net, outputs, (_, targets)| {
            // A mean by a product: Burn's own rounds to f32.
            let [rows, columns] = targets.dims();
            let squares = (outputs - targets.clone()).powi_scalar(2).sum() * (1.0 / (rows * columns) as f64);
            squares + net.head.weight.val().powi_scalar(2).sum() * 0.01
        })
}

/// Rows by rule.
fn rows(range: core::ops::Range<usize>, device: &Device) -> Batch {
    let number = |at: usize| ((at * 7919 + 17) as f64 * 0.618_033_988_75).fract() * 2.0 - 1.0;
    let values = |width: usize| (range.start * width..range.end * width).map(number).collect::<Vec<f64>>();
    (
        Tensor::from_data(TensorData::new(values(25), [range.len(), 1, 5, 5]), device),
        Tensor::from_data(TensorData::new(values(3), [range.len(), 3]), device),
    )
}

const ROWS: usize = 7;

#[derive(Debug)]
struct Outcome {
    losses: Vec<f64>,
    tensors: BTreeMap<String, TensorData>,
    /// The sum of what leaves the model, on the ranks of the last stage.
    outputs: Option<f64>,
}

fn run(options: &[(&str, &str)]) -> Vec<Outcome> {
    let config = Config::load(None, options.iter().map(|(key, value)| format!("{key}={value}")));
    let ran = config.map_err(epl::Error::from).and_then(|config| epl::launch(&config, |epl| train(&epl)));
    ran.unwrap_or_else(|error| panic!("{options:?}: {error}"))
}

fn train(epl: &Epl) -> epl::Result<Outcome> {
    let mut engine = Engine::build(epl, chain, &AdamWConfig::new().with_epsilon(1e-4))?;
    let device = engine.device().clone();
    let share = BatchShard::of(engine.context(), engine.plan().micro_batches)?;
    let (_, gradients) = engine.gradients(micro_batches(&rows(0..ROWS, &device), share, 0)?)?;
    let mut losses = Vec::new();
    for step in 0..3 {
        losses.push(engine.train_batch(&rows(step * ROWS..(step + 1) * ROWS, &device), 0.05)?.loss);
    }
    let evaluated = micro_batches(&rows(0..ROWS, &device.clone().without_autodiff()), BatchShard::whole(), 0)?;
    losses.push(engine.evaluate(micro_batches(&rows(0..ROWS, &device), share, 0)?.into_iter().map(Ok))?.loss);
    let mut outputs = None;
    engine.forward(evaluated.into_iter().map(Ok), |_, rows: Tensor<2>, _| {
        outputs = Some(rows.sum().into_data().iter::<f64>().sum());
        Ok(())
    })?;
    let gradients = gradients.into_iter().map(|(name, data)| (format!("gradient {name}"), data));
    Ok(Outcome { losses, tensors: gradients.chain(engine.parameters()?).collect(), outputs })
}

#[test]
fn every_layout() {
    epl_testing::in_f64(|| {
        let expected = run(&[]).remove(0);
        let stages = [("cluster.ranks", "2"), ("auto.auto_parallel", "true"), ("pipeline.num_stages", "2")];
        let micro = |number| ("pipeline.num_micro_batch", number);
        let recompute = [("gradient_checkpoint.type", "collection"), ("gradient_checkpoint.kept", "conv.0,middle")];
        let cases: Vec<Vec<(&str, &str)>> = vec![
            vec![("cluster.ranks", "2")],
            vec![("cluster.ranks", "3"), micro("2")],
            [&stages[..], &[micro("3")]].concat(),
            [&stages[1..], &[("cluster.ranks", "4"), micro("2")]].concat(),
            recompute.to_vec(),
            [&recompute[..], &[("cluster.ranks", "2"), micro("2")]].concat(),
            [&recompute[..], &stages[..], &[micro("2")]].concat(),
            vec![("cluster.ranks", "2"), ("zero.level", "v3"), micro("2")],
            vec![("offload.level", "v0")],
        ];
        for options in cases {
            for (rank, found) in run(&options).into_iter().enumerate() {
                let said = format!("{options:?}, rank {rank}");
                for (a, b) in
                    found.losses.iter().zip(&expected.losses).chain(found.outputs.iter().zip(&expected.outputs))
                {
                    assert!((a - b).abs() <= 1e-10 * b.abs(), "{said}: {a}, not {b}");
                }
                let (worst, error) = largest_error(&found.tensors, &expected.tensors);
                assert!(error <= 1e-10 && found.tensors.len() == 16, "{said}: {worst} differs by {error:e}");
            }
        }
    });
}
