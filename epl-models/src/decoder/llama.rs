//! What `transformers` calls the parameters of a Llama and of those that follow it, and the keys of their `config.json`.

use epl_modules::Activation;
use serde_json::{Map, Value, json};

use super::architecture::Architecture;
use super::config::DecoderConfig;
use super::{gemma2, mixtral, rope, window};
use crate::huggingface::{JsonConfig, NameTable, Result, activation_name, written_tokens};

/// Norms before each part.
const NORMS: [(&str, &str); 2] =
    [("self_attention.norm", "input_layernorm"), ("feed_forward.norm", "post_attention_layernorm")];

/// Norms of queries and keys.
const OF_HEADS: [(&str, &str); 2] =
    [("self_attention.heads.query_norm", "self_attn.q_norm"), ("self_attention.heads.key_norm", "self_attn.k_norm")];

/// The parameters.
pub(super) fn names(architecture: Architecture) -> NameTable {
    let layer = |part: &str| format!("model.layers.*.{part}");
    let table = NameTable::new()
        .same("embeddings.tokens.weight", "model.embed_tokens.weight")
        .same("final_norm.gamma", "model.norm.weight")
        .transposed("head.weight", "lm_head.weight");
    let norms = if architecture == Architecture::Gemma2 { &gemma2::NORMS[..] } else { &NORMS };
    let table = norms.iter().chain(&OF_HEADS).fold(table, |table, (ours, stored)| {
        table.same(&format!("layers.*.{ours}.gamma"), &layer(&format!("{stored}.weight")))
    });
    let linear = [
        ("self_attention.heads.query", "self_attn.q_proj"),
        ("self_attention.heads.key", "self_attn.k_proj"),
        ("self_attention.heads.value", "self_attn.v_proj"),
        ("self_attention.heads.output", "self_attn.o_proj"),
        // What is called the gate there is what the function is applied to.
        ("feed_forward.dense.input", "mlp.gate_proj"),
        ("feed_forward.dense.gate", "mlp.up_proj"),
        ("feed_forward.dense.output", "mlp.down_proj"),
    ];
    linear.into_iter().fold(table, |table, (ours, stored)| table.linear(&format!("layers.*.{ours}"), &layer(stored)))
}

/// The shape; not the tokens that end a text, which another file may say.
pub(super) fn read(json: &JsonConfig, architecture: Architecture) -> Result<DecoderConfig> {
    let (heads, layers) = (json.count("num_attention_heads")?, json.count("num_hidden_layers")?);
    let defaults = Defaults::of(architecture);
    // A null says that each head of queries has its own of keys.
    let key_heads = defaults.key_heads.filter(|_| !json.says("num_key_value_heads")).unwrap_or(heads);
    let config = DecoderConfig::llama_like(json.count("vocab_size")?)
        .with_d_model(json.count("hidden_size")?)
        .with_d_ff(json.count("intermediate_size")?)
        .with_heads(heads)
        .with_kv_heads(Some(json.count_or("num_key_value_heads", key_heads)?))
        .with_layers(layers)
        .with_positions(json.count_or("max_position_embeddings", defaults.positions)?)
        .with_rotary(Some(rope::read(json, defaults.theta)?))
        .with_windows(window::read(json, architecture, layers)?)
        .with_qk_norm(matches!(architecture, Architecture::Qwen3 | Architecture::Qwen3Moe))
        .with_epsilon(json.number_or("rms_norm_eps", defaults.epsilon)?)
        .with_activation(json.activation_or(defaults.activation.0, defaults.activation.1)?)
        .with_experts(mixtral::read(json, architecture, layers)?)
        .with_attention_bias(json.flag_or("attention_bias", false)?)
        .with_feed_forward_bias(architecture == Architecture::Llama && json.flag_or("mlp_bias", false)?)
        .with_tied_head(json.flag_or("tie_word_embeddings", defaults.tied_head)?)
        .with_attention_dropout(json.number_or("attention_dropout", 0.0)?)
        .with_deviation(json.number_or("initializer_range", 0.02)?)
        .with_pad(json.token("pad_token_id")?);
    let head_dim = if json.has("head_dim") { Some(json.count("head_dim")?) } else { defaults.head_dim };
    let config = config.with_head_dim(head_dim);
    if architecture == Architecture::Gemma2 { gemma2::read(json, config) } else { Ok(config) }
}

/// What `transformers` takes where a file does not say.
struct Defaults {
    /// Of none there are as many as heads.
    key_heads: Option<usize>,
    head_dim: Option<usize>,
    positions: usize,
    epsilon: f64,
    theta: f64,
    /// The key of the function, and which one it is.
    activation: (&'static str, Activation),
    tied_head: bool,
}

impl Defaults {
    fn of(architecture: Architecture) -> Self {
        let activation = ("hidden_act", Activation::Silu);
        let (epsilon, theta) = (1e-6, 10_000.0);
        let llama =
            Self { key_heads: None, head_dim: None, positions: 2048, epsilon, theta, activation, tied_head: false };
        match architecture {
            Architecture::Qwen3 => Self { key_heads: Some(32), head_dim: Some(128), positions: 32_768, ..llama },
            Architecture::Qwen3Moe => Self { key_heads: Some(4), positions: 32_768, ..llama },
            Architecture::Mixtral => {
                Self { key_heads: Some(8), positions: 131_072, epsilon: 1e-5, theta: 1_000_000.0, ..llama }
            }
            Architecture::Gemma2 => Self {
                key_heads: Some(4),
                head_dim: Some(256),
                positions: 8192,
                activation: ("hidden_activation", Activation::GeluNew),
                tied_head: true,
                ..llama
            },
            Architecture::Gpt2 | Architecture::Llama => llama,
        }
    }
}

/// The keys that [`read`] reads.
pub(super) fn write(config: &DecoderConfig, architecture: Architecture) -> Map<String, Value> {
    let keys = json!({
        "model_type": architecture.model_type(),
        "architectures": [architecture.class()],
        "vocab_size": config.vocab,
        "hidden_size": config.d_model,
        "intermediate_size": config.d_ff,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_heads(),
        "head_dim": config.head_width(),
        "num_hidden_layers": config.layers,
        "max_position_embeddings": config.positions,
        "rms_norm_eps": config.epsilon,
        "hidden_act": activation_name(config.activation),
        "attention_bias": config.attention_bias,
        "tie_word_embeddings": config.tied_head,
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.deviation,
        "pad_token_id": config.pad,
        "eos_token_id": written_tokens(&config.ends),
    });
    let mut keys = if let Value::Object(keys) = keys { keys } else { Map::new() };
    match architecture {
        Architecture::Qwen3 | Architecture::Qwen3Moe => {}
        Architecture::Gemma2 => gemma2::write(config, &mut keys),
        Architecture::Mixtral => {
            keys.remove("attention_bias");
        }
        Architecture::Gpt2 | Architecture::Llama => {
            keys.insert("mlp_bias".into(), config.feed_forward_bias.into());
        }
    }
    keys.extend(window::write(config, architecture));
    keys.extend(mixtral::write(config, architecture));
    keys.extend(config.rotary.iter().flat_map(rope::write));
    keys
}
