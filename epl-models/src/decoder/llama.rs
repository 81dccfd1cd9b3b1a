//! What `transformers` calls the parameters of a Llama and of a Qwen3, and the keys of their `config.json`.

use epl_modules::Activation;
use serde_json::{Map, Value, json};

use super::architecture::Architecture;
use super::config::DecoderConfig;
use super::rope;
use crate::huggingface::{JsonConfig, NameTable, Result, activation_name, written_tokens};

/// The parameters.
pub(super) fn names() -> NameTable {
    let layer = |part: &str| format!("model.layers.*.{part}");
    let table = NameTable::new()
        .same("embeddings.tokens.weight", "model.embed_tokens.weight")
        .same("final_norm.gamma", "model.norm.weight")
        .transposed("head.weight", "lm_head.weight");
    let norms = [
        ("self_attention.norm", "input_layernorm"),
        ("self_attention.heads.query_norm", "self_attn.q_norm"),
        ("self_attention.heads.key_norm", "self_attn.k_norm"),
        ("feed_forward.norm", "post_attention_layernorm"),
    ];
    let table = norms.into_iter().fold(table, |table, (ours, stored)| {
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
    check_variant(json)?;
    let qwen3 = architecture == Architecture::Qwen3;
    let heads = json.count("num_attention_heads")?;
    // What `transformers` takes where a file does not say; of a null, each head of queries has its own of keys.
    let key_heads = if qwen3 && !json.says("num_key_value_heads") { 32 } else { heads };
    let positions = if qwen3 { 32_768 } else { 2048 };
    let config = DecoderConfig::llama_like(json.count("vocab_size")?)
        .with_d_model(json.count("hidden_size")?)
        .with_d_ff(json.count("intermediate_size")?)
        .with_heads(heads)
        .with_kv_heads(Some(json.count_or("num_key_value_heads", key_heads)?))
        .with_layers(json.count("num_hidden_layers")?)
        .with_positions(json.count_or("max_position_embeddings", positions)?)
        .with_rotary(Some(rope::read(json)?))
        .with_qk_norm(qwen3)
        .with_epsilon(json.number_or("rms_norm_eps", 1e-6)?)
        .with_activation(json.activation_or("hidden_act", Activation::Silu)?)
        .with_attention_bias(json.flag_or("attention_bias", false)?)
        .with_feed_forward_bias(!qwen3 && json.flag_or("mlp_bias", false)?)
        .with_tied_head(json.flag_or("tie_word_embeddings", false)?)
        .with_attention_dropout(json.number_or("attention_dropout", 0.0)?)
        .with_deviation(json.number_or("initializer_range", 0.02)?)
        .with_pad(json.token("pad_token_id")?);
    match (json.has("head_dim"), qwen3) {
        (true, _) => Ok(config.with_head_dim(Some(json.count("head_dim")?))),
        // Where a Qwen3 does not say, `transformers` takes this.
        (false, true) => Ok(config.with_head_dim(Some(128))),
        (false, false) => Ok(config),
    }
}

/// Refuses variants that would compute something else.
fn check_variant(json: &JsonConfig) -> Result<()> {
    if json.flag_or("use_sliding_window", false)? {
        return Err(json.error("use_sliding_window", "is true; every position sees all before it here"));
    }
    if !json.has("layer_types") {
        return Ok(());
    }
    match json.texts("layer_types")?.into_iter().find(|kind| *kind != "full_attention") {
        Some(other) => Err(json.error("layer_types", format!("has a `{other}`; supported is full_attention"))),
        None => Ok(()),
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
        Architecture::Qwen3 => {
            keys.insert("layer_types".into(), vec!["full_attention"; config.layers].into());
            keys.insert("use_sliding_window".into(), false.into());
            keys.insert("sliding_window".into(), Value::Null);
        }
        _ => {
            keys.insert("mlp_bias".into(), config.feed_forward_bias.into());
        }
    }
    keys.extend(config.rotary.iter().flat_map(rope::write));
    keys
}
