//! Whole steps of a rank, with forward, backward, clipping and update: the same bits on any number of threads.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use epl_core::data::Rows;
use epl_core::{Engine, EngineSettings, Epl, Model, Place, Result, WithLoss};
use epl_modules::*;
use epl_testing::{numbers, tensor};

use super::run::{THREADS, on_threads};

/// What gradients are clipped to, which are larger.
const CLIP: f64 = 0.05;

/// Loss and norm of two steps, and the parameters behind them.
type Trained = (Vec<[f64; 2]>, BTreeMap<String, TensorData>);

fn trained<M: Model>(epl: &Epl, model: fn(&Place) -> M, batch: fn(&Device) -> M::Batch) -> Result<Trained>
where
    M::Batch: Rows,
{
    let settings = EngineSettings { clip_norm: Some(CLIP), ..EngineSettings::default() };
    let mut engine = Engine::new(epl.build(model)?, &AdamWConfig::new().with_weight_decay(0.1), settings)?;
    let (before, batch, mut reports) = (engine.parameters()?, batch(epl.place().device()), Vec::new());
    for _ in 0..2 {
        let report = engine.train_batch(&batch, 0.01)?;
        assert!(report.grad_norm > CLIP, "{report:?}");
        reports.push([report.loss, report.grad_norm]);
    }
    let after = engine.parameters()?;
    after.iter().for_each(|(name, values)| assert!(before[name] != *values, "`{name}` stays"));
    Ok((reports, after))
}

fn check<M: Model>(model: fn(&Place) -> M, batch: fn(&Device) -> M::Batch)
where
    M::Batch: Rows,
{
    let [one, others @ ..] = THREADS.map(|threads| on_threads(threads, |epl| trained(epl, model, batch)));
    for ((reports, parameters), threads) in others.iter().zip(&THREADS[1..]) {
        assert_eq!(*reports, one.0, "loss and norm on {threads} threads");
        for (name, values) in &one.1 {
            assert!(parameters[name] == *values, "`{name}` has other bits on {threads} threads");
        }
    }
}

/// Numbers below a limit.
fn ids<const D: usize>(seed: usize, shape: [usize; D], below: usize, device: &Device) -> Tensor<D, Int> {
    let of = |x: f64| ((x + 1.0) / 2.0 * below as f64) as i64;
    let ids: Vec<i64> = numbers(seed, shape.iter().product()).into_iter().map(of).collect();
    Tensor::from_data(TensorData::new(ids, shape), device)
}

const WORDS: usize = 301;

/// A language model, of as many words that rows, classes and weights make several tasks each.
#[derive(Module, Debug)]
struct Text {
    words: SplitEmbedding,
    layers: Vec<TransformerLayer>,
    norm: LayerNorm,
    loss: SplitCrossEntropy,
}

impl Text {
    const D_MODEL: usize = 96;

    fn new(place: &Place) -> Self {
        let layer = |gated: bool| {
            let config = TransformerLayerConfig::new(Self::D_MODEL, 4, 200).with_gated(gated).with_dropout(0.1);
            config.with_norm(if gated { NormKind::RmsNorm } else { NormKind::LayerNorm })
        };
        Self {
            words: SplitEmbeddingConfig::new(WORDS, Self::D_MODEL).init(&place.child("words")),
            layers: vec![
                layer(false).init(&place.child("layers").child("0")),
                layer(true).with_activation(Activation::Silu).init(&place.child("layers").child("1")),
            ],
            norm: LayerNormConfig::new(Self::D_MODEL).init(&place.child("norm")),
            loss: SplitCrossEntropyConfig::new().with_label_smoothing(0.1).init(place.context()),
        }
    }

    fn loss(&self, (ids, targets): &(Tensor<2, Int>, Tensor<2, Int>)) -> Tensor<1> {
        let [samples, length] = ids.dims();
        let run = |hidden, layer: &TransformerLayer| layer.forward(TransformerInput::new(hidden).causal()).hidden;
        let hidden = self.layers.iter().fold(self.words.forward(ids.clone()), run);
        let rows = self.norm.forward(hidden).reshape([samples * length, Self::D_MODEL]);
        let loss = self.loss.forward(self.words.logits(rows), targets.clone().reshape([samples * length]));
        loss / (samples * length) as f64
    }
}

pub(crate) fn of_a_transformer() {
    check(
        |place| WithLoss::new(Text::new(place), Text::loss),
        |device| (ids(1, [7, 41], WORDS, device), ids(2, [7, 41], WORDS, device)),
    );
}

const CLASSES: usize = 11;

/// A network of two convolutions, with as many images that these make several tasks.
#[derive(Module, Debug)]
struct Images {
    first: ReplicatedConv2d,
    norm: SyncBatchNorm,
    second: ReplicatedConv2d,
    classifier: SplitClassifier,
}

impl Images {
    /// With which a weight is more than one task of an update.
    const FEATURES: usize = 128;

    fn new(place: &Place) -> Self {
        Self {
            first: ReplicatedConv2dConfig::new([3, 16], [3, 3]).init(&place.child("first")),
            norm: SyncBatchNormConfig::new(16).init(&place.child("norm")),
            second: ReplicatedConv2dConfig::new([16, Self::FEATURES], [3, 3])
                .with_stride([2, 2])
                .init(&place.child("second")),
            classifier: SplitClassifierConfig::new(Self::FEATURES, CLASSES).init(&place.child("classifier")),
        }
    }

    fn loss(&self, (images, targets): &(Tensor<4>, Tensor<1, Int>)) -> Tensor<1> {
        let hidden = Activation::Relu.forward(self.norm.forward(self.first.forward(images.clone())));
        let [rows, channels, height, width] = [0, 1, 2, 3].map(|dim| hidden.dims()[dim]);
        assert!(rows * channels * height * width > 1 << 15, "several tasks");
        let pixels = Activation::Gelu.forward(self.second.forward(hidden));
        let features = pixels.mean_dim(3).mean_dim(2).reshape([rows, Self::FEATURES]);
        self.classifier.forward_loss(features, targets.clone()) / rows as f64
    }
}

pub(crate) fn of_a_convolutional_network() {
    check(
        |place| WithLoss::new(Images::new(place), Images::loss),
        |device| (tensor(1, [13, 3, 21, 19], device), ids(2, [13], CLASSES, device)),
    );
}
