//! What `transformers` calls the norms of a Gemma 2, and its keys of `config.json` that a Llama has not.

use epl_modules::Activation;
use serde_json::{Map, Value};

use super::config::DecoderConfig;
use crate::huggingface::{JsonConfig, Result, activation_name};

/// The norms around each part.
pub(super) const NORMS: [(&str, &str); 4] = [
    ("self_attention.norm", "input_layernorm"),
    ("self_attention.output_norm", "post_attention_layernorm"),
    ("feed_forward.norm", "pre_feedforward_layernorm"),
    ("feed_forward.output_norm", "post_feedforward_layernorm"),
];

/// What it has besides the rest of a Llama.
pub(super) fn read(json: &JsonConfig, config: DecoderConfig) -> Result<DecoderConfig> {
    if json.flag_or("use_bidirectional_attention", false)? {
        return Err(json.error("use_bidirectional_attention", "is true; no position sees later ones here"));
    }
    Ok(config
        .with_scaled_embeddings(true)
        .with_zero_centered_gamma(true)
        .with_sandwich_norm(true)
        .with_query_pre_attn_scalar(Some(json.count_or("query_pre_attn_scalar", 256)?))
        .with_attention_softcap(json.unless_null("attn_logit_softcapping", Some(50.0), JsonConfig::number)?)
        .with_logit_softcap(json.unless_null("final_logit_softcapping", Some(30.0), JsonConfig::number)?))
}

/// The keys of a Llama become those that [`read`] reads.
pub(super) fn write(config: &DecoderConfig, keys: &mut Map<String, Value>) {
    let activation = match config.activation {
        // The same by another name, which the published files have.
        Activation::GeluNew => "gelu_pytorch_tanh",
        other => activation_name(other),
    };
    keys.remove("hidden_act");
    keys.insert("hidden_activation".into(), activation.into());
    keys.insert("query_pre_attn_scalar".into(), config.query_pre_attn_scalar.unwrap_or(config.head_width()).into());
    keys.insert("attn_logit_softcapping".into(), config.attention_softcap.into());
    keys.insert("final_logit_softcapping".into(), config.logit_softcap.into());
    keys.insert("use_bidirectional_attention".into(), Value::Null);
}
