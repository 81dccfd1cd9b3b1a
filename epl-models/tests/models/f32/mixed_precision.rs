//! The models in 16 bits, as mixed precision runs them: parameters cast by the mapper, the carry cast at every entrance,
//! the loss multiplied by its scale. Against the same model in f32.

use std::collections::BTreeMap;

use burn::data::dataloader::batcher::Batcher;
use burn::module::{ModuleVisitor, Param};
use burn::tensor::{DType, Device, Gradients, Tensor, TensorData};
use epl_core::config::{Config, HalfDtype, LossScale};
use epl_core::model::precision::{HalfPrecision, widen};
use epl_core::optim::LossScaler;
use epl_core::testing::{config, error_on_scale, error_together, half_model, in_half};
use epl_core::{Carry, CarryMapper, Context, Model, Pass, Place, launch};
use epl_models::bert::{
    BertArchitecture, BertBatcher, BertConfig, BertHead, BertItem, MaskedLanguage, Pretraining, PretrainingLabel,
    QuestionAnswering, SequenceClassification, measured_beside,
};
use epl_models::decoder::{self, DecoderExpertsConfig};
use epl_models::mae::MaeBatch;
use epl_models::resnet::ResNetLayer;
use epl_models::t5::{T5Batcher, T5Config, T5FeedForward, T5MoeConfig};
use epl_models::vision::ImageBatch;
use epl_models::vit;
use epl_models::{
    DecoderBatcher, DecoderConfig, DecoderItem, MaeConfig, ResMlpConfig, ResNetConfig, TokenPair, ViTConfig,
};
use epl_modules::Balance;
use epl_modules::moe::{Capacity, Gate};

const TYPES: [HalfDtype; 2] = [HalfDtype::F16, HalfDtype::Bf16];

/// The roundoff u of a type: what one rounding may be off by, of a number.
fn unit(half: HalfDtype) -> f64 {
    match half {
        HalfDtype::F16 => 2f64.powi(-11),
        HalfDtype::Bf16 => 2f64.powi(-8),
    }
}

/// How far a run in 16 bits may be from f32, in units of u.
#[derive(Clone, Copy)]
struct Bound {
    /// |a − b| ÷ |b|.
    loss: f64,
    gradient: Measure,
}

#[derive(Clone, Copy)]
enum Measure {
    /// max |a − b| ÷ max |b| of each tensor: of what is smooth. Some ten products lie behind each other, whose roundings
    /// add up.
    Each(f64),
    /// ‖a − b‖ ÷ ‖b‖ of all gradients together, in units of √u: of what is not smooth. Where a rounding changes the sign
    /// of what enters a relu, or the largest pixel of a window, a term of the gradient comes or goes as a whole. The share
    /// of such terms follows u, and the norm of their sum its root.
    Together(f64),
}
use Measure::{Each, Together};

/// Loss terms, gradients by parameter, and metrics.
struct Outcome {
    terms: Vec<(&'static str, f64)>,
    gradients: BTreeMap<String, TensorData>,
    metrics: BTreeMap<String, Vec<f64>>,
}

/// Refuses what is not finite.
struct Finite;

impl CarryMapper for Finite {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let values = tensor.clone().inner().into_data();
        assert!(values.iter::<f64>().all(f64::is_finite), "what leaves a segment is finite");
        tensor
    }
}

struct Collect<'a> {
    gradients: &'a Gradients,
    path: Vec<String>,
    found: BTreeMap<String, TensorData>,
    scale: f64,
}

impl ModuleVisitor for Collect<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = param.base().grad(self.gradients) {
            assert_eq!(gradient.dtype(), param.base().dtype());
            self.found.insert(self.path.join("."), (widen(gradient) / self.scale).into_data());
        }
    }
}

/// Forward, segment by segment, and backward.
fn run<M: Model>(model: &M, context: &Context, batch: &M::Batch, rows: usize, half: Option<HalfDtype>) -> Outcome {
    let samples: Vec<u64> = (0..rows as u64).collect();
    context.begin(Pass { step: 0, training: true, samples: samples.into(), empty: false });
    let mut carry = None;
    for segment in 0..model.segments() {
        let entrance = carry.map(|carry: M::Carry| match half {
            Some(half) => HalfPrecision::new(half).carry(carry),
            None => carry,
        });
        carry = Some(model.forward_segment(segment, entrance, batch).map(&mut Finite));
    }
    let loss = model.loss(carry.expect("a model has a segment"), batch);
    let weights = model.weights(batch);
    let scale = half.map_or(1.0, |half| LossScaler::new(half, LossScale::Dynamic).scale());
    let (mut root, mut terms) = (None, Vec::new());
    for term in loss.terms {
        assert_eq!(term.value.dtype(), DType::F32, "the loss term {}", term.name);
        let weight = weights.get(term.name, rows).expect("every term has one").max(1.0);
        terms.push((term.name, f64::from(term.value.clone().into_scalar::<f32>()) / weight));
        let part = term.value * (term.coefficient * scale / weight);
        root = Some(root.map_or_else(|| part.clone(), |sum: Tensor<1>| sum + part.clone()));
    }
    let gradients = root.expect("a loss has a term").backward();
    let mut collect = Collect { gradients: &gradients, path: Vec::new(), found: BTreeMap::new(), scale };
    model.visit(&mut collect);
    Outcome { terms, gradients: collect.found, metrics: context.take_metrics() }
}

/// Runs a model in f32 and in both types on every rank of a mesh.
fn check<M: Model>(
    (what, options): (&str, &Config),
    (model, batch): (impl Fn(&Place) -> M + Sync, impl Fn(usize, &Device) -> (M::Batch, usize) + Sync),
    beside: impl Fn(&str) -> Option<String> + Sync,
    bound: Bound,
) {
    for half in TYPES {
        let what = format!("{what} in {half}, {} ranks", options.cluster.ranks.unwrap_or(0));
        let outcome = launch(&in_half(options.clone(), half), |epl| {
            let built = epl.build(&model)?;
            let narrow = half_model(&built);
            let context = built.context();
            let (batch, rows) = batch(context.data().rank(), epl.place().device());
            let expected = run(built.model(), context, &batch, rows, None);
            let found = run(&narrow, context, &batch, rows, Some(half));
            compare(&what, &found, &expected, &beside, (bound, unit(half)));
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{error}"));
    }
}

fn compare(
    what: &str,
    found: &Outcome,
    expected: &Outcome,
    beside: impl Fn(&str) -> Option<String>,
    (bound, unit): (Bound, f64),
) {
    assert_eq!(found.metrics, expected.metrics, "{what}: as many tokens to the same experts");
    for ((name, a), (_, b)) in found.terms.iter().zip(&expected.terms) {
        // Where a loss is counted by another rank, it is 0.
        let error = if a == b { 0.0 } else { ((a - b) / b).abs() / unit };
        assert!(error <= bound.loss, "{what}: {name} is {a}, not {b}: off by {error:.1} u");
    }
    assert!(found.gradients.keys().eq(expected.gradients.keys()), "{what}: which have a gradient");
    for (name, gradient) in &found.gradients {
        let scale = beside(name).unwrap_or_else(|| name.clone());
        let error = error_on_scale(gradient, &expected.gradients[name], &expected.gradients[&scale]) / unit;
        assert!(error.is_finite(), "{what}: the gradient of {name} is not finite");
        if let Each(bound) = bound.gradient {
            assert!(error <= bound, "{what}: the gradient of {name} is off by {error:.1} u");
        }
    }
    let error = error_together(&found.gradients, &expected.gradients) / unit.sqrt();
    if let Together(bound) = bound.gradient {
        assert!(error <= bound, "{what}: the gradient is off by {error:.1} √u");
    }
}

fn mesh((data, tensor, expert): (usize, usize, usize)) -> Config {
    let mut options = config(data, tensor, expert);
    options.cluster.ranks = Some(data * tensor);
    options
}

fn t5() -> T5Config {
    T5Config::new(29)
        .with_d_model(16)
        .with_d_kv(6)
        .with_d_ff(24)
        .with_heads(4)
        .with_encoder_layers(2)
        .with_decoder_layers(2)
        .with_dropout(0.1)
        .with_label_smoothing(0.1)
}

fn check_t5(what: &str, config: &T5Config, meshes: &[(usize, usize, usize)], bound: Bound) {
    let row = |length: usize, start: usize| (0..length).map(|i| ((start + 7 * i) % 27 + 2) as i64).collect();
    let batch = |rank: usize, device: &Device| {
        let lengths = [(5, 3), (2, 8), (9, 1), (7, 7)];
        // At these tokens no rounding turns the choice of a router.
        let start = rank + 2;
        let pair = |(a, b): (usize, usize)| TokenPair { source: row(a, b + start), target: row(b, a + start) };
        (T5Batcher::new(config).batch(lengths.map(pair).to_vec(), device), lengths.len())
    };
    for sizes in meshes {
        check((what, &mesh(*sizes)), (|at: &Place| config.init(at), batch), |_| None, bound);
    }
}

#[test]
fn t5_dense() {
    let gated = t5().with_feed_forward(T5FeedForward::GatedGelu).with_tied_head(false).with_scaled_head(false);
    check_t5("T5 1.1", &gated, &[(1, 1, 1), (1, 2, 1)], Bound { loss: 2.0, gradient: Each(40.0) });
    check_t5("T5", &t5(), &[(1, 1, 1), (1, 2, 1)], Bound { loss: 2.0, gradient: Together(3.0) });
}

#[test]
fn t5_with_experts() {
    for gate in [Gate::Switch, Gate::Top2] {
        let moe = T5MoeConfig::new(4)
            .with_gate(gate)
            .with_decoder_sparse_step(2)
            .with_capacity(Capacity::Fixed(2))
            .with_jitter(0.1)
            .with_auxiliary(0.5)
            .with_z(0.1);
        let config = t5().with_moe(Some(moe));
        let meshes = [(1, 1, 1), (2, 1, 2), (1, 2, 1)];
        let gated = config.clone().with_feed_forward(T5FeedForward::GatedGelu);
        check_t5("MoE T5 1.1", &gated, &meshes, Bound { loss: 2.0, gradient: Each(40.0) });
        check_t5("MoE T5", &config, &meshes, Bound { loss: 2.0, gradient: Together(3.0) });
    }
}

fn bert_shape() -> BertConfig {
    BertConfig::new(29)
        .with_d_model(16)
        .with_d_ff(24)
        .with_heads(4)
        .with_layers(3)
        .with_positions(12)
        .with_classes(3)
        .with_deviation(0.2)
}

fn check_bert<H: BertHead>(
    (what, shape): (&str, &BertConfig),
    init: fn(&BertConfig, &Place) -> epl_models::bert::Bert<H>,
    label: fn(usize) -> H::Label,
) {
    let batch = |rank: usize, device: &Device| {
        let item = |row: usize| {
            let length = 3 + (row * 5) % 9;
            let ids = (0..length).map(|token| ((row * 11 + token * 7 + rank) % 29) as i64).collect();
            BertItem::new(ids, (0..length).map(|token| i64::from(token > length / 2)).collect(), label(row))
        };
        (BertBatcher::<H>::new(shape).batch((0..5).map(item).collect(), device), 5)
    };
    for sizes in [(1, 1, 1), (1, 2, 1)] {
        let beside = |name: &str| measured_beside::<H>(shape, name);
        check(
            (what, &mesh(sizes)),
            (|at: &Place| init(shape, at), batch),
            beside,
            Bound { loss: 4.0, gradient: Each(40.0) },
        );
    }
}

/// A label for some tokens of the row, so many as [`check_bert`] gives it.
fn tokens(row: usize) -> Vec<i64> {
    (0..3 + (row * 5) % 9).map(|token| if token % 3 == 0 { (token + row) as i64 } else { -100 }).collect()
}

#[test]
fn bert() {
    let shape = bert_shape();
    check_bert::<QuestionAnswering>(("answers", &shape), BertConfig::init_question_answering, |row| (row % 3, 2));
    check_bert::<SequenceClassification>(("classes", &shape), BertConfig::init_classification, |row| (row % 3) as i64);
    check_bert::<MaskedLanguage>(("tokens", &shape), BertConfig::init_masked_language, tokens);
    check_bert::<Pretraining>(("both", &shape), BertConfig::init_pretraining, |row| PretrainingLabel {
        tokens: tokens(row),
        sentence: (row % 2) as i64,
    });
}

#[test]
fn roberta() {
    let shape = bert_shape().with_architecture(BertArchitecture::Roberta).with_pad(18).with_positions(32);
    check_bert::<SequenceClassification>(("classes", &shape), BertConfig::init_classification, |row| (row % 3) as i64);
    check_bert::<MaskedLanguage>(("tokens", &shape), BertConfig::init_masked_language, tokens);
}

#[test]
fn decoders() {
    let gpt2 = DecoderConfig::new(29).with_d_model(16).with_d_ff(24).with_heads(4).with_layers(2).with_positions(12);
    let llama = DecoderConfig::llama_like(29).with_d_model(16).with_d_ff(24).with_heads(4).with_kv_heads(Some(2));
    let llama = llama.with_layers(2).with_positions(12).with_deviation(0.2).with_dropout(0.1);
    let qwen3 = llama.clone().with_qk_norm(true).with_head_dim(Some(6)).with_tied_head(true);
    let gemma2 = llama.clone().with_head_dim(Some(6)).with_scaled_embeddings(true).with_zero_centered_gamma(true);
    let gemma2 = gemma2.with_sandwich_norm(true).with_windows(vec![Some(3), None]).with_tied_head(true);
    // The root of its width, by which embeddings are scaled, is rounded in 16 bits.
    let gemma2 = gemma2.with_d_model(24).with_attention_softcap(Some(2.0)).with_logit_softcap(Some(4.0));
    let experts = DecoderExpertsConfig::new(4).with_balance(Balance::Batch).with_auxiliary(0.5).with_z(0.1);
    let mixtral = llama.clone().with_experts(Some(experts.clone().with_dense_layers(vec![0]).with_shared(Some(12))));
    // Each token is sent to all of them, so that no rounding turns a choice.
    let all = experts.with_gate(Gate::TopK { experts: 4, renormalise: false });
    let qwen3_moe = qwen3.clone().with_experts(Some(all));
    let shapes = [
        ("GPT-2", gpt2.with_deviation(0.2)),
        ("Llama", llama),
        ("Qwen3", qwen3),
        ("Gemma 2", gemma2),
        ("Mixtral", mixtral),
        ("Qwen3-MoE", qwen3_moe),
    ];
    for (what, shape) in shapes {
        let batch = |rank: usize, device: &Device| {
            let ids = |row: usize| {
                (0..3 + (row * 5) % 9).map(|token| ((row * 11 + token * 7 + rank) % 29) as i64).collect::<Vec<_>>()
            };
            (DecoderBatcher::new(&shape).batch((0..5).map(|row| DecoderItem::new(ids(row))).collect(), device), 5)
        };
        let expert = if shape.experts.is_some() { 2 } else { 1 };
        for sizes in [(1, 1, 1), (1, 2, 1), (2, 1, expert)] {
            check(
                (what, &mesh(sizes)),
                (|at: &Place| shape.init(at), batch),
                |name| decoder::measured_beside(&shape, name),
                Bound { loss: 4.0, gradient: Each(40.0) },
            );
        }
    }
}

fn resnet() -> ResNetConfig {
    ResNetConfig::new(7)
        .with_embedding_size(16)
        .with_hidden_sizes(vec![32, 64])
        .with_depths(vec![1, 1])
        .with_label_smoothing(0.1)
}

/// Images that no rule makes alike.
fn images(rank: usize, device: &Device) -> (ImageBatch, usize) {
    let (rows, shape) = (6, [6, 3, 40, 32]);
    let pixels = (0..rows).flat_map(|row| (0..3840).map(move |i| ((row * 397 + i * i + 1 + rank) as f64).sin()));
    let pixels = Tensor::from_data(TensorData::new(pixels.collect::<Vec<_>>(), shape), device);
    (ImageBatch::new(pixels, (0..rows).map(|row| (row * 3 % 7) as i64).collect()), rows)
}

#[test]
fn resnets() {
    let bound = Bound { loss: 4.0, gradient: Together(5.0) };
    let basic = resnet().with_layer(ResNetLayer::Basic);
    check(("ResNet", &mesh((1, 1, 1))), (|at: &Place| resnet().init(at), images), |_| None, bound);
    check(("ResNet, split", &mesh((1, 2, 1))), (|at: &Place| resnet().init_split(at), images), |_| None, bound);
    check(("basic ResNet", &mesh((2, 1, 1))), (|at: &Place| basic.init(at), images), |_| None, bound);
    let mut colocated = mesh((2, 1, 1));
    colocated.cluster.colocate_split_and_replicate = true;
    colocated.dist.data_parallel_size = None;
    check(("ResNet, bridged", &colocated), (|at: &Place| basic.init_colocated(2, at), images), |_| None, bound);
}

#[test]
fn vits() {
    let shape = ViTConfig::new(7).with_image_size(32).with_patch_size(8).with_d_model(32).with_d_ff(64).with_heads(4);
    let shape = shape.with_layers(2).with_dropout(0.1).with_attention_dropout(0.1).with_deviation(0.1);
    let mae = MaeConfig::new(shape.clone()).with_decoder_d_model(24).with_decoder_d_ff(40).with_decoder_heads(2);
    let mae = mae.with_decoder_layers(2).with_normalised_pixels(true);
    let square = |rank: usize, device: &Device| {
        let (whole, rows) = images(rank, device);
        (ImageBatch::new(whole.pixels.narrow(2, 0, 32), whole.host_labels), rows)
    };
    let hidden = |rank: usize, device: &Device| {
        let (square, rows) = square(rank, device);
        (MaeBatch { pixels: square.pixels, noise: None }, rows)
    };
    let bound = Bound { loss: 4.0, gradient: Each(40.0) };
    for sizes in [(1, 1, 1), (1, 2, 1), (2, 1, 1)] {
        check(("ViT", &mesh(sizes)), (|at: &Place| shape.init(at), square), vit::measured_beside, bound);
        check(("MAE", &mesh(sizes)), (|at: &Place| mae.init(at), hidden), vit::measured_beside, bound);
    }
}

/// Of two classes each.
#[test]
fn resmlps() {
    let shape = ResMlpConfig::new(7).with_image_size(32).with_patch_size(8).with_d_model(32).with_d_ff(64);
    let shape = shape.with_layers(2).with_layer_scale(0.5).with_deviation(0.07).with_label_smoothing(0.1);
    let mixed = |rank: usize, device: &Device| {
        let (whole, rows) = images(rank, device);
        let labels = whole.host_labels.clone();
        let square = ImageBatch::new(whole.pixels.narrow(2, 0, 32), labels.clone());
        let others = labels.iter().map(|label| (label + 2) % 7).collect();
        (square.mixed_with(others, vec![0.7; rows]), rows)
    };
    let bound = Bound { loss: 4.0, gradient: Each(20.0) };
    for sizes in [(1, 1, 1), (1, 2, 1), (2, 1, 1)] {
        check(("ResMLP", &mesh(sizes)), (|at: &Place| shape.init_split(at), mixed), |_| None, bound);
    }
}
