//! Steps on NdArray, whose memory is not the host's for EPL, as a GPU's is not. It is here because this program is compiled with it.

use std::collections::BTreeMap;

use burn::data::dataloader::batcher::Batcher;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Tensor, TensorData};
use epl::config::CheckpointType;
use epl::model::output::{Combine, Merge, Outputs};
use epl::models::t5::T5Batcher;
use epl::{Context, Engine, EngineSettings, Loss, LossWeights, MicroBatch, Model, Place, launch};

use crate::parity::{Case, dense, layout, moe};

/// The losses and metrics of two steps of two micro-batches, and how often each has read from the device.
fn steps(case: &Case) -> (Vec<f64>, Vec<u64>, Vec<BTreeMap<String, Vec<f64>>>) {
    let ran = launch(&layout(1, 1, 1, 2).config(), |epl| {
        let built = epl.build(|at| case.model.init(at))?;
        let settings = EngineSettings { clip_norm: Some(1.0), ..EngineSettings::from_config(epl.config()) };
        let mut engine = Engine::new(built, &AdamWConfig::new(), settings)?;
        let (mut losses, mut reads, mut metrics) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..2 {
            let before = epl.context().device_reads();
            let batch = |pairs: &[_], first: u64| {
                let samples = (first..first + pairs.len() as u64).collect::<Vec<_>>();
                let batch = T5Batcher::new(&case.model).batch(pairs.to_vec(), epl.place().device());
                MicroBatch::new(batch, samples)
            };
            let (one, other) = case.pairs.split_at(3);
            let report = engine.step(vec![batch(one, 0), batch(other, 3)], 1e-3)?;
            losses.push(report.loss);
            metrics.push(report.metrics);
            reads.push(epl.context().device_reads() - before);
        }
        Ok((losses, reads, metrics))
    });
    ran.unwrap_or_else(|error| panic!("{error}")).remove(0)
}

/// The terms of all losses, the squares of all gradients and what layers count are one read, at the end of the step, with layers
/// of experts and dropout, too: routes are made on the device, and masks drawn there.
#[test]
fn a_step_reads_its_numbers_once() {
    epl_testing::alone(|| {
        let cases = [dense(), moe()];
        let on_host: Vec<_> = cases.iter().map(steps).collect();
        // SAFETY: this process runs one test, on this thread, and its ranks have ended.
        unsafe { std::env::set_var("BURN_DEVICE", "ndarray") };
        for (case, (on_host, no_reads, counts_on_host)) in cases.iter().zip(on_host) {
            let (losses, reads, counts) = steps(case);
            assert_eq!((reads, no_reads), (vec![1; 2], vec![0; 2]));
            assert_eq!(counts, counts_on_host);
            assert_eq!(counts[0].is_empty(), case.model.moe.is_none());
            for (loss, on_host) in losses.iter().zip(on_host) {
                assert!((loss - on_host).abs() < 1e-5 * on_host, "{loss} on NdArray, {on_host} on Flex");
            }
        }
    });
}

/// Two segments, of which each hands something out; they are run again in backward.
#[derive(Module, Debug)]
struct Talker {
    layers: Vec<Linear>,
    #[module(skip)]
    context: Context,
}

impl Talker {
    fn new(place: &Place) -> Self {
        let context = place.context().clone();
        context.declare_output("hidden 0", Merge::Global(Combine::Concat));
        context.declare_output("hidden 1", Merge::Global(Combine::Concat));
        context.declare_output("positive", Merge::Global(Combine::Sum));
        Self { layers: (0..2).map(|_| LinearConfig::new(3, 3).init(place)).collect(), context }
    }
}

impl Model for Talker {
    type Batch = Tensor<2>;
    type Carry = Tensor<2>;

    fn segments(&self) -> usize {
        self.layers.len()
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        vec![usize::from(path.starts_with("layers.1."))]
    }

    fn weights(&self, batch: &Tensor<2>) -> LossWeights {
        LossWeights::new().with("error", batch.dims()[0] as f64)
    }

    fn forward_segment(&self, segment: usize, carry: Option<Tensor<2>>, batch: &Tensor<2>) -> Tensor<2> {
        let x = self.layers[segment].forward(carry.unwrap_or_else(|| batch.clone()));
        self.context.output(&format!("hidden {segment}"), x.clone());
        x
    }

    fn loss(&self, carry: Tensor<2>, _: &Tensor<2>) -> Loss {
        self.context.output("positive", carry.clone().greater_elem(0.0).int().sum());
        Loss::new().with("error", carry.powi_scalar(2).sum(), 1.0)
    }
}

/// What a step of two micro-batches and an evaluation of them hand out, and how often each has read from the device.
fn outputs() -> ([Outputs; 2], [u64; 2]) {
    let mut config = layout(1, 1, 1, 2).config();
    config.gradient_checkpoint.r#type = CheckpointType::Auto;
    let ran = launch(&config, |epl| {
        let mut engine =
            Engine::new(epl.build(Talker::new)?, &SgdConfig::new(), EngineSettings::from_config(epl.config()))?;
        let device = epl.place().device();
        // The second micro-batch has the first samples.
        let batches = [2_u64, 0].map(|first| {
            let values: Vec<f32> = (0..6).map(|at| (first as f32 + at as f32) / 8.0 - 0.5).collect();
            MicroBatch::new(Tensor::from_data(TensorData::new(values, [2, 3]), device), vec![first, first + 1])
        });
        let reads = || epl.context().device_reads();
        let before = reads();
        let of_step = engine.step(batches.to_vec(), 0.0)?.outputs;
        let between = reads();
        let of_evaluation = engine.evaluate(batches.map(Ok))?.outputs;
        Ok(([of_step, of_evaluation], [between - before, reads() - between]))
    });
    ran.unwrap_or_else(|error| panic!("{error}")).remove(0)
}

/// Floats and whole numbers alike: a step has one read, an evaluation one for each window of micro-batches.
#[test]
fn outputs_are_read_with_the_losses() {
    epl_testing::alone(|| {
        let (on_host, no_reads) = outputs();
        // SAFETY: this process runs one test, on this thread, and its ranks have ended.
        unsafe { std::env::set_var("BURN_DEVICE", "ndarray") };
        let (on_device, reads) = outputs();
        assert_eq!((reads, no_reads), ([1, 2], [0, 0]));
        for (on_device, on_host) in on_device.iter().zip(&on_host) {
            assert_eq!(on_device.keys().collect::<Vec<_>>(), ["hidden 0", "hidden 1", "positive"]);
            for (name, value) in on_device {
                let expected = &on_host[name];
                // Each backend has whole numbers of its own size.
                let kind = |data: &TensorData| (data.dtype().is_float(), data.shape().clone());
                assert_eq!(kind(value), kind(expected), "{name}");
                let pairs = value.iter::<f64>().zip(expected.iter::<f64>());
                let far = epl_testing::largest(pairs.map(|(a, b)| (a - b).abs()));
                assert!(far < 1e-5, "{name} is off by {far}");
            }
        }
    });
}
