//! What would depend on the layout, or cannot be trained, is refused.

use burn::grad_clipping::GradientClippingConfig;
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::{AdafactorConfig, AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor};
use epl_core::testing::config;
use epl_core::{
    Config, Engine, EngineSettings, Loss, MicroBatch, OneSegment, Place, Result, Weights, WholeModel, launch,
};

use crate::engine::chain::{Chain, Rows, micro_batches, rows};

#[test]
fn optimizers_that_look_at_whole_tensors_are_refused_on_slices() {
    let error = epl_core::launch(&config(1, 2, 1), |epl| {
        Engine::new(epl.build(Chain::new)?, &AdafactorConfig::new(), EngineSettings::default()).map(|_| ())
    })
    .unwrap_err()
    .to_string();
    assert!(error.contains("`up`") && error.contains("Adafactor") && error.contains("[6, 5] of [6, 10]"), "{error}");
}

#[test]
fn clipping_of_each_parameter_is_refused() {
    let error = epl_core::launch(&config(1, 1, 1), |epl| {
        let optimizer = AdamWConfig::new().with_grad_clipping(Some(GradientClippingConfig::Norm(1.0)));
        Engine::new(epl.build(Chain::new)?, &optimizer, EngineSettings::default()).map(|_| ())
    })
    .unwrap_err()
    .to_string();
    assert!(error.contains("train.clip_norm"), "{error}");
}

#[test]
fn replicas_with_different_numbers_of_micro_batches_are_an_error() {
    let error = epl_core::launch(&config(2, 1, 1), |epl| {
        let mut engine = Engine::new(epl.build(Chain::new)?, &SgdConfig::new(), EngineSettings::default())?;
        let count = 1 + epl.context().data().rank();
        engine.step(micro_batches(&epl, count), 0.1).map(|_| ())
    })
    .unwrap_err()
    .to_string();
    assert!(error.contains("micro-batches"), "{error}");
}

/// A layer, and beside it what the tests put there.
#[derive(Module, Debug)]
struct Net {
    layer: Linear,
    other: Option<Linear>,
    norm: Option<BatchNorm>,
    dropout: Option<Dropout>,
}

impl Net {
    fn plain(place: &Place) -> Self {
        Self { layer: LinearConfig::new(6, 3).init(place), other: None, norm: None, dropout: None }
    }

    fn with_norm(place: &Place) -> OneSegment<Self> {
        OneSegment { model: Self { norm: Some(BatchNormConfig::new(3).init(place)), ..Self::plain(place) } }
    }

    fn with_dropout(place: &Place) -> OneSegment<Self> {
        OneSegment { model: Self { dropout: Some(DropoutConfig::new(0.5).init()), ..Self::plain(place) } }
    }

    fn with_a_parameter_twice(place: &Place) -> OneSegment<Self> {
        let net = Self::plain(place);
        OneSegment { model: Self { other: Some(net.layer.clone()), ..net } }
    }
}

impl WholeModel for Net {
    type Batch = Rows;

    fn weights(&self, batch: &Rows) -> Weights {
        Weights::new().with("error", batch.valid.len() as f64)
    }

    fn forward_loss(&self, batch: &Rows) -> Loss {
        let mut x: Tensor<2> = self.layer.forward(batch.input.clone());
        if let Some(norm) = &self.norm {
            x = norm.forward(x);
        }
        if let Some(dropout) = &self.dropout {
            x = dropout.forward(x);
        }
        Loss::new().with("error", (x - batch.target.clone()).powi_scalar(2).sum(), 1.0)
    }
}

/// Builds a model and makes one step of `count` micro-batches.
fn step(config: &Config, model: fn(&Place) -> OneSegment<Net>, count: u64) -> Result<()> {
    launch(config, |epl| {
        let mut engine = Engine::new(epl.build(model)?, &SgdConfig::new(), EngineSettings::default())?;
        let batch = |n: u64| MicroBatch::new(rows(0..4, epl.place()), (n * 4..n * 4 + 4).collect::<Vec<_>>());
        engine.step((0..count).map(batch).collect(), 0.1)
    })
    .map(|_| ())
}

#[test]
fn batch_norm_is_refused_where_the_batch_is_cut() {
    step(&config(1, 1, 1), Net::with_norm, 1).unwrap();
    let replicas = step(&config(2, 1, 1), Net::with_norm, 1).unwrap_err().to_string();
    assert!(replicas.contains("`model.norm` is a BatchNorm: with 2 replicas"), "{replicas}");
    assert!(replicas.contains("use SyncBatchNorm, or one replica"), "{replicas}");
    let micro_batches = step(&config(1, 1, 1), Net::with_norm, 3).unwrap_err().to_string();
    assert!(micro_batches.contains("`model.norm` is a BatchNorm: over 3 micro-batches"), "{micro_batches}");
}

#[test]
fn dropout_that_draws_from_the_shared_generator_is_refused_unless_allowed() {
    step(&config(1, 1, 1), Net::with_dropout, 1).unwrap();
    let text = step(&config(2, 1, 1), Net::with_dropout, 1).unwrap_err().to_string();
    assert!(text.contains("`model.dropout` draws from the generator that all 2 ranks share"), "{text}");
    assert!(text.contains("use the Dropout of epl-modules, or set train.allow_unseeded_layers = true"), "{text}");
    step(&config(2, 1, 1).with("train.allow_unseeded_layers", true).unwrap(), Net::with_dropout, 1).unwrap();
}

#[test]
fn a_parameter_in_two_places_is_refused() {
    let text = step(&config(1, 1, 1), Net::with_a_parameter_twice, 1).unwrap_err().to_string();
    assert!(text.contains("parameter `model.other.weight`: is the same parameter as `model.layer.weight`"), "{text}");
    assert!(text.contains("hold it once and use it in both"), "{text}");
}

#[test]
fn a_parameter_on_another_device_is_refused() {
    // As one that was made on Burn's default device, without autodiff: it would never learn.
    let elsewhere = |at: &Place| {
        let mut net = Net::with_norm(at);
        net.model.layer = LinearConfig::new(6, 3).init(&Device::default());
        net
    };
    let text = step(&config(1, 1, 1), elsewhere, 1).unwrap_err().to_string();
    assert!(text.contains("parameter `model.layer.weight`: lies on Device<Flex(Cpu)>, and"), "{text}");
    assert!(text.contains("make its layer at the place that the closure of `build` is given"), "{text}");
}
