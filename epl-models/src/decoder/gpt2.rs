//! What `transformers` calls the parameters of a GPT-2, and the keys of its `config.json`.

use serde_json::{Map, Value, json};

use super::architecture::Architecture;
use super::config::DecoderConfig;
use crate::huggingface::{JsonConfig, NameTable, Result, activation_name, written_tokens};

/// The parameters. Its linear layers are stored as `[inputs, outputs]`; one makes queries, keys and values.
pub(super) fn names(prefix: &str) -> NameTable {
    let layer = |part: &str| format!("{prefix}h.*.{part}");
    let table = NameTable::new()
        .same("embeddings.tokens.weight", &format!("{prefix}wte.weight"))
        .same("embeddings.positions", &format!("{prefix}wpe.weight"))
        .transposed("head.weight", "lm_head.weight");
    let norms = [
        ("layers.*.self_attention.norm", layer("ln_1")),
        ("layers.*.feed_forward.norm", layer("ln_2")),
        ("final_norm", format!("{prefix}ln_f")),
    ];
    let table = norms.iter().fold(table, |table, (ours, stored)| {
        let table = table.same(&format!("{ours}.gamma"), &format!("{stored}.weight"));
        table.same(&format!("{ours}.beta"), &format!("{stored}.bias"))
    });
    let linear = [
        ("layers.*.self_attention.heads.output", layer("attn.c_proj")),
        ("layers.*.feed_forward.dense.input", layer("mlp.c_fc")),
        ("layers.*.feed_forward.dense.output", layer("mlp.c_proj")),
    ];
    ["weight", "bias"].into_iter().fold(table, |table, field| {
        let fused = ["query", "key", "value"].map(|part| format!("layers.*.self_attention.heads.{part}.{field}"));
        let table = table.beside(&fused.each_ref().map(String::as_str), &format!("{}.{field}", layer("attn.c_attn")));
        let same = |table: NameTable, (ours, stored): &(&str, String)| {
            table.same(&format!("{ours}.{field}"), &format!("{stored}.{field}"))
        };
        linear.iter().fold(table, same)
    })
}

/// The shape; not the tokens that end a text, which another file may say.
pub(super) fn read(json: &JsonConfig) -> Result<DecoderConfig> {
    for (key, known) in
        [("add_cross_attention", false), ("scale_attn_by_inverse_layer_idx", false), ("scale_attn_weights", true)]
    {
        if json.flag_or(key, known)? != known {
            return Err(json.error(key, format!("is {}; a GPT-2 has {known} here", !known)));
        }
    }
    let config = DecoderConfig::new(json.count("vocab_size")?);
    let d_model = json.count("n_embd")?;
    Ok(config
        .with_d_model(d_model)
        .with_d_ff(json.count_or("n_inner", 4 * d_model)?)
        .with_heads(json.count("n_head")?)
        .with_layers(json.count("n_layer")?)
        .with_positions(json.count("n_positions")?)
        .with_epsilon(json.number_or("layer_norm_epsilon", 1e-5)?)
        .with_activation(json.activation_or("activation_function", epl_modules::Activation::GeluNew)?)
        .with_tied_head(json.flag_or("tie_word_embeddings", true)?)
        .with_embedding_dropout(json.number_or("embd_pdrop", 0.1)?)
        .with_dropout(json.number_or("resid_pdrop", 0.1)?)
        .with_attention_dropout(json.number_or("attn_pdrop", 0.1)?)
        .with_deviation(json.number_or("initializer_range", 0.02)?)
        .with_pad(json.token("pad_token_id")?))
}

/// The keys that [`read`] reads.
pub(super) fn write(config: &DecoderConfig) -> Map<String, Value> {
    let keys = json!({
        "model_type": Architecture::Gpt2.model_type(),
        "architectures": [Architecture::Gpt2.class()],
        "vocab_size": config.vocab,
        "n_embd": config.d_model,
        "n_inner": (config.d_ff != 4 * config.d_model).then_some(config.d_ff),
        "n_head": config.heads,
        "n_layer": config.layers,
        "n_positions": config.positions,
        "layer_norm_epsilon": config.epsilon,
        "activation_function": activation_name(config.activation),
        "tie_word_embeddings": config.tied_head,
        "embd_pdrop": config.embedding_dropout,
        "resid_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "initializer_range": config.deviation,
        "pad_token_id": config.pad,
        "eos_token_id": written_tokens(&config.ends),
        "add_cross_attention": false,
        "scale_attn_weights": true,
        "scale_attn_by_inverse_layer_idx": false,
    });
    if let Value::Object(keys) = keys { keys } else { Map::new() }
}
