//! The forms of known models, written out in plain tensor operations on one rank.

use burn::module::Param;
use burn::tensor::{Bool, DType, Device, Tensor, TensorData};
use epl_core::{Pass, testing};
use epl_modules::transformer::{AttentionPart, FeedForwardPart};
use epl_modules::{
    Activation, MultiHeadAttention, Norm, NormKind, NormOrder, RmsNorm, RotaryConfig, SplitLinear, TransformerInput,
    TransformerLayer, TransformerLayerConfig,
};

use super::net::alone;
use super::{Outcome, assert_close, host, noise};

const D_MODEL: usize = 12;
const HEADS: usize = 3;
const SHAPE: [usize; 3] = [2, 5, D_MODEL];
const MEMORY: [usize; 3] = [2, 4, D_MODEL];
/// So small that all waves are short.
const THETA: f64 = 20.0;

/// Attention heads, norm and network of BERT: the norms stand behind the parts.
pub(crate) fn bert(limit: f64) {
    let config = TransformerLayerConfig::new(D_MODEL, HEADS, 20).with_norm_order(NormOrder::Post).with_epsilon(1e-12);
    check("BERT", &config, false, limit);
}

/// The norms stand before the parts; no position sees later ones.
pub(crate) fn gpt2(limit: f64) {
    let config = TransformerLayerConfig::new(D_MODEL, HEADS, 20).with_activation(Activation::GeluNew);
    check("GPT-2", &config, true, limit);
}

/// All heads share one of keys, and positions turn them.
pub(crate) fn llama(limit: f64) {
    check("Llama", &llama_config(HEADS).with_n_kv_heads(Some(1)), true, limit);
}

/// Heads are wider than their share of the features, and normalised before they are turned.
pub(crate) fn qwen3(limit: f64) {
    let config = llama_config(4).with_n_kv_heads(Some(2)).with_head_dim(Some(6));
    check("Qwen3", &config.with_qk_norm(true).with_attention_bias(Some(true)), true, limit);
}

/// The norms stand behind the parts, before the residual; scores are cosines, times the scale of their head, at most 100.
pub(crate) fn swin_v2(limit: f64) {
    let config = TransformerLayerConfig::new(D_MODEL, HEADS, 20).with_norm_order(NormOrder::PostResidual);
    check("Swin V2", &config.with_cosine(true).with_key_bias(Some(false)), false, limit);
}

/// Norms around each part, whose scales are one and `gamma`; scores of another scale with a limit, within a window.
pub(crate) fn gemma2(limit: f64) {
    let config = llama_config(4).with_n_kv_heads(Some(2)).with_head_dim(Some(6)).with_activation(Activation::GeluNew);
    let config = config.with_norm_order(NormOrder::Sandwich).with_zero_centered_gamma(true);
    check("Gemma 2", &config.with_scale(Some(0.7)).with_attention_softcap(Some(0.4)).with_window(Some(2)), true, limit);
}

fn llama_config(heads: usize) -> TransformerLayerConfig {
    TransformerLayerConfig::new(D_MODEL, heads, 20)
        .with_norm(NormKind::RmsNorm)
        .with_epsilon(1e-6)
        .with_activation(Activation::Silu)
        .with_gated(true)
        .with_bias(false)
        .with_rotary(Some(RotaryConfig::new().with_theta(THETA)))
}

/// The decoder of "Attention is all you need".
pub(crate) fn first_decoder(limit: f64) {
    let config = TransformerLayerConfig::new(D_MODEL, HEADS, 20)
        .with_norm_order(NormOrder::Post)
        .with_activation(Activation::Relu)
        .with_cross_attention(true);
    check("decoder", &config, true, limit);
}

fn tensor<const D: usize>(stream: usize, shape: [usize; D], device: &Device) -> Tensor<D> {
    let values: Vec<f64> = (0..shape.iter().product()).map(|index| noise(stream, index, 0, 0)).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Scales and shifts that are not one and zero.
fn stir(norm: &mut Norm, stream: usize, device: &Device) {
    let numbers = |stream| Param::from_tensor(tensor::<1>(stream, [D_MODEL], device));
    match norm {
        Norm::LayerNorm(norm) => (norm.gamma, norm.beta) = (numbers(stream), Some(numbers(stream + 1))),
        Norm::RmsNorm(norm) => norm.gamma = numbers(stream),
    }
}

fn stir_heads(heads: &mut MultiHeadAttention, device: &Device) {
    for (stream, norm) in [(40, &mut heads.query_norm), (50, &mut heads.key_norm)] {
        if let Some(norm) = norm {
            norm.gamma = Param::from_tensor(tensor::<1>(stream, [heads.head_dim], device));
        }
    }
    if let Some(scale) = &mut heads.logit_scale {
        *scale = Param::from_tensor(Tensor::from_data([[[0.5]], [[5.0]], [[1.5]]], device));
    }
}

/// Compares the output, and the gradients of the input and of the memory.
fn check(what: &str, config: &TransformerLayerConfig, causal: bool, limit: f64) {
    testing::run((1, 1, 1), |epl| {
        let device = epl.place().device();
        let mut layer = alone(config, &epl)?;
        stir(&mut layer.self_attention.norm, 10, device);
        stir(&mut layer.feed_forward.norm, 20, device);
        stir_heads(&mut layer.self_attention.heads, device);
        let behind = [(60, &mut layer.self_attention.output_norm), (70, &mut layer.feed_forward.output_norm)];
        behind.into_iter().for_each(|(stream, norm)| norm.iter_mut().for_each(|norm| stir(norm, stream, device)));
        if let Some(part) = &mut layer.cross_attention {
            stir(&mut part.norm, 30, device);
        }
        epl.context().begin(Pass { step: 0, training: false, samples: [0, 1].into(), empty: false });
        let padding = [[false, false, false, false, true], [false, false, true, true, true]];
        let padding = Tensor::<2, Bool>::from_data(padding, device);
        let memory_padding = Tensor::<2, Bool>::from_data([[false, false, false, true], [false; 4]], device);

        let x = tensor(1, SHAPE, device).require_grad();
        let memory = tensor(2, MEMORY, device).require_grad();
        let mut input = TransformerInput::new(x.clone()).with_padding(padding.clone());
        if config.cross_attention {
            input = input.with_memory(memory.clone(), Some(memory_padding.clone()));
        }
        let ours = layer.forward(if causal { input.causal() } else { input }).hidden;
        let own = hidden_pairs(&padding, SHAPE[1], |query, key| causal && !sees(config.window, query, key));
        let other = hidden_pairs(&memory_padding, SHAPE[1], |_, _| false);
        let theirs = compute(&layer, (x.clone(), own), (memory.clone(), other), config);

        let results = |output: Tensor<3>| {
            let gradients = (output.clone() * tensor(3, SHAPE, device)).sum().backward();
            let mut outcome = Outcome::from([
                ("output".to_string(), host(output.inner())),
                ("x".to_string(), host(x.grad(&gradients).expect("tracked"))),
            ]);
            outcome.extend(memory.grad(&gradients).map(|gradient| ("memory".to_string(), host(gradient))));
            outcome
        };
        let (ours, theirs) = (results(ours), results(theirs));
        assert_eq!(theirs.contains_key("memory"), config.cross_attention);
        assert_close(what, &ours, &theirs, limit);
        Ok(())
    });
}

/// Whether a query sees a key of its own sequence.
fn sees(window: Option<usize>, query: usize, key: usize) -> bool {
    key <= query && window.is_none_or(|window| query - key < window)
}

/// The pairs that are padding, or are not seen. Shape `[rows, queries, keys]`.
fn hidden_pairs(padding: &Tensor<2, Bool>, queries: usize, unseen: impl Fn(usize, usize) -> bool) -> Tensor<3, Bool> {
    let [rows, keys] = padding.dims();
    let padding: Vec<bool> = padding.clone().into_data().iter::<bool>().collect();
    let mut hidden = Vec::new();
    for row in 0..rows {
        for query in 0..queries {
            hidden.extend((0..keys).map(|key| padding[row * keys + key] || unseen(query, key)));
        }
    }
    Tensor::from_data(TensorData::new(hidden, [rows, queries, keys]), &Device::flex())
}

type Seen = (Tensor<3>, Tensor<3, Bool>);

/// The layer by its formulas.
fn compute(layer: &TransformerLayer, own: Seen, memory: Seen, config: &TransformerLayerConfig) -> Tensor<3> {
    let framed = |norms: (&Norm, &Option<Norm>), x: Tensor<3>, f: &dyn Fn(Tensor<3>) -> Tensor<3>| {
        let behind = |y: Tensor<3>| norms.1.as_ref().map_or(y.clone(), |norm| normalised(norm, y));
        match config.norm_order {
            NormOrder::Pre | NormOrder::Sandwich => x.clone() + behind(f(normalised(norms.0, x))),
            NormOrder::Post => normalised(norms.0, x.clone() + f(x)),
            NormOrder::PostResidual => x.clone() + normalised(norms.0, f(x)),
        }
    };
    let attended = |part: &AttentionPart, x: Tensor<3>, memory: Option<Tensor<3>>, hidden: &Tensor<3, Bool>| {
        framed((&part.norm, &part.output_norm), x, &|states| {
            attention(&part.heads, (states, memory.clone()), hidden, config)
        })
    };
    let mut x = attended(&layer.self_attention, own.0, None, &own.1);
    if let Some(part) = &layer.cross_attention {
        x = attended(part, x, Some(memory.0), &memory.1);
    }
    let part = &layer.feed_forward;
    framed((&part.norm, &part.output_norm), x, &|states| network(part, states, config.activation))
}

fn linear(layer: &SplitLinear, x: Tensor<3>) -> Tensor<3> {
    let y = x.matmul(layer.weight.val().unsqueeze());
    match &layer.bias {
        Some(bias) => y + bias.val().unsqueeze(),
        None => y,
    }
}

fn normalised(norm: &Norm, x: Tensor<3>) -> Tensor<3> {
    match norm {
        Norm::LayerNorm(norm) => {
            let centred = x.clone() - x.mean_dim(2);
            let variance = (centred.clone() * centred.clone()).mean_dim(2);
            let shift = norm.beta.as_ref().expect("by default").val().unsqueeze();
            centred / (variance + norm.epsilon).sqrt() * norm.gamma.val().unsqueeze() + shift
        }
        Norm::RmsNorm(norm) => {
            let square = (x.clone() * x.clone()).mean_dim(2);
            let one = if norm.zero_centered_gamma { 1.0 } else { 0.0 };
            x / (square + norm.epsilon).sqrt() * (norm.gamma.val().unsqueeze() + one)
        }
    }
}

/// Head by head.
fn attention(
    heads: &MultiHeadAttention,
    (x, memory): (Tensor<3>, Option<Tensor<3>>),
    hidden: &Tensor<3, Bool>,
    config: &TransformerLayerConfig,
) -> Tensor<3> {
    let turns = config.rotary.is_some() && memory.is_none();
    let source = memory.unwrap_or_else(|| x.clone());
    let (width, shared) = (heads.head_dim, heads.n_heads / heads.n_kv_heads);
    let (query, key) = (linear(&heads.query, x), linear(&heads.key, source.clone()));
    let value = linear(&heads.value, source);
    let of = |all: &Tensor<3>, index: usize| all.clone().narrow(2, index * width, width);
    let prepared = |x: Tensor<3>, norm: &Option<RmsNorm>| {
        let x = norm.as_ref().map_or(x.clone(), |norm| normalised(&Norm::RmsNorm(norm.clone()), x));
        if turns { turned(x) } else { x }
    };
    let head = |index: usize| {
        let query = prepared(of(&query, index), &heads.query_norm);
        let key = prepared(of(&key, index / shared), &heads.key_norm);
        // Burn's gradient of a division by a number rounds it to f32.
        let scores = match &heads.logit_scale {
            Some(scale) => {
                let unit = |x: Tensor<3>| x.clone() / (x.clone() * x).sum_dim(2).sqrt();
                let scale: f64 = scale.val().into_data().iter::<f64>().nth(index).expect("one for each head");
                unit(query).matmul(unit(key).transpose()) * scale.exp().min(100.0)
            }
            None => query.matmul(key.transpose()) * config.scale.unwrap_or((width as f64).powf(-0.5)),
        };
        let scores = config.attention_softcap.map_or(scores.clone(), |cap| (scores * (1.0 / cap)).tanh() * cap);
        let weights = scores.exp().mask_fill(hidden.clone(), 0.0);
        let sum = weights.clone().sum_dim(2);
        // A query that sees nothing has zeros.
        let sum = sum.clone().mask_fill(sum.equal_elem(0.0), 1.0);
        (weights / sum).matmul(of(&value, index / shared))
    };
    linear(&heads.output, Tensor::cat((0..heads.n_heads).map(head).collect(), 2))
}

/// Each pair of features, which lie half a head apart, is multiplied by its rotation.
fn turned(x: Tensor<3>) -> Tensor<3> {
    let [_, positions, width] = x.dims();
    let pairs = width / 2;
    let feature = |index: usize| x.clone().narrow(2, index, 1);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        // In f32, as the layer's.
        let frequency = 1.0 / (THETA as f32).powf(2.0 * pair as f32 / width as f32);
        let table = |f: fn(f32) -> f32| {
            let values: Vec<f32> = (0..positions).map(|position| f(position as f32 * frequency)).collect();
            let values = TensorData::new(values, [1, positions, 1]);
            Tensor::<3>::from_data(values, (&x.device(), DType::F32)).cast(x.dtype())
        };
        let (sine, cosine) = (table(f32::sin), table(f32::cos));
        let (a, b) = (feature(pair), feature(pair + pairs));
        first.push(a.clone() * cosine.clone() - b.clone() * sine.clone());
        second.push(a * sine + b * cosine);
    }
    Tensor::cat(first.into_iter().chain(second).collect(), 2)
}

fn network(part: &FeedForwardPart, x: Tensor<3>, activation: Activation) -> Tensor<3> {
    let mlp = part.dense.as_ref().expect("no experts");
    let inside = activated(linear(&mlp.input, x.clone()), activation);
    let inside = match &mlp.gate {
        Some(gate) => inside * linear(gate, x),
        None => inside,
    };
    linear(&mlp.output, inside)
}

fn activated(x: Tensor<3>, activation: Activation) -> Tensor<3> {
    match activation {
        Activation::Relu => (x.clone() + x.abs()) / 2.0,
        Activation::Gelu => {
            // Burn's gradient of erf is right to 4e-9 only: the slope of Φ is written out.
            let at = x.clone().detach();
            let phi = ((at.clone() / 2.0_f64.sqrt()).erf() + 1.0) / 2.0;
            let density = (at.clone() * at.clone() / -2.0).exp() / (2.0 * core::f64::consts::PI).sqrt();
            x.clone() * phi + at.clone() * density * (x - at)
        }
        Activation::GeluNew => {
            let cube = x.clone() * x.clone() * x.clone();
            let inside = (x.clone() + cube * 0.044_715) * (2.0 / core::f64::consts::PI).sqrt();
            x * (inside.tanh() + 1.0) / 2.0
        }
        Activation::Silu => x.clone() / (x.neg().exp() + 1.0),
    }
}
