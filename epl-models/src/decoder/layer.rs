//! What a layer of a decoder is, and how parameters start.

use burn::nn::Initializer;
use epl_modules::{LayerExpertsConfig, NormOrder, TransformerLayerConfig};

use super::config::DecoderConfig;
use super::experts::DecoderExpertsConfig;

/// Layer `index`.
pub(super) fn layer(config: &DecoderConfig, index: usize) -> TransformerLayerConfig {
    let experts = config.experts_of(index);
    let d_ff = experts.and_then(|experts| experts.d_ff).unwrap_or(config.d_ff);
    let parts = 2 * config.layers;
    let shrunk = config.deviation / (parts as f64).sqrt();
    let last = Initializer::Normal { mean: 0.0, std: shrunk };
    TransformerLayerConfig::new(config.d_model, config.heads, d_ff)
        .with_norm_order(if config.sandwich_norm { NormOrder::Sandwich } else { NormOrder::Pre })
        .with_norm(config.norm)
        .with_epsilon(config.epsilon)
        .with_zero_centered_gamma(config.zero_centered_gamma)
        .with_n_kv_heads(config.kv_heads)
        .with_head_dim(config.head_dim)
        .with_rotary(config.rotary)
        .with_qk_norm(config.qk_norm)
        .with_scale(config.query_pre_attn_scalar.map(|scalar| (scalar as f64).powf(-0.5)))
        .with_attention_softcap(config.attention_softcap)
        .with_window(config.window_of(index))
        .with_activation(config.activation)
        .with_gated(config.gated)
        .with_experts(experts.map(routed))
        .with_bias(config.feed_forward_bias)
        .with_attention_bias(Some(config.attention_bias))
        .with_dropout(config.dropout)
        .with_attention_dropout(config.attention_dropout)
        .with_initializer(Some(normal(config)))
        .with_output_initializer(config.scaled_output.then_some(last))
        .with_bias_initializer(Some(Initializer::Zeros))
}

fn routed(experts: &DecoderExpertsConfig) -> LayerExpertsConfig {
    LayerExpertsConfig::new(experts.experts)
        .with_gate(experts.gate)
        .with_capacity(experts.capacity)
        .with_balance(experts.balance)
        .with_shared(experts.shared)
        .with_bias_rate(experts.bias_rate)
}

pub(super) fn normal(config: &DecoderConfig) -> Initializer {
    Initializer::Normal { mean: 0.0, std: config.deviation }
}
