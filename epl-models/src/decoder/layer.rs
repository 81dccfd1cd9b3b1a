//! What a layer of a decoder is, and how parameters start.

use burn::nn::Initializer;
use epl_modules::{NormOrder, TransformerLayerConfig};

use super::config::DecoderConfig;

/// A layer: norms before the parts.
pub(super) fn layer(config: &DecoderConfig) -> TransformerLayerConfig {
    let parts = 2 * config.layers;
    let shrunk = config.deviation / (parts as f64).sqrt();
    let last = Initializer::Normal { mean: 0.0, std: shrunk };
    TransformerLayerConfig::new(config.d_model, config.heads, config.d_ff)
        .with_norm_order(NormOrder::Pre)
        .with_norm(config.norm)
        .with_epsilon(config.epsilon)
        .with_n_kv_heads(config.kv_heads)
        .with_head_dim(config.head_dim)
        .with_rotary(config.rotary)
        .with_qk_norm(config.qk_norm)
        .with_activation(config.activation)
        .with_gated(config.gated)
        .with_bias(config.feed_forward_bias)
        .with_attention_bias(Some(config.attention_bias))
        .with_dropout(config.dropout)
        .with_attention_dropout(config.attention_dropout)
        .with_initializer(Some(normal(config)))
        .with_output_initializer(config.scaled_output.then_some(last))
        .with_bias_initializer(Some(Initializer::Zeros))
}

pub(super) fn normal(config: &DecoderConfig) -> Initializer {
    Initializer::Normal { mean: 0.0, std: config.deviation }
}
