//! What a block of the encoder or of the decoder is.

use burn::nn::Initializer;
use epl_modules::{Activation, LayerExpertsConfig, NormKind, NormOrder, TransformerLayerConfig};

use super::config::{T5Config, T5FeedForward, T5MoeConfig};

/// A block of the encoder, with experts if `moe` says so.
///
/// The scores are not divided by √d_kv: the queries start that much smaller.
pub(super) fn encoder(config: &T5Config, moe: Option<&T5MoeConfig>) -> TransformerLayerConfig {
    let T5Config { d_model, d_kv, d_ff, heads, dropout, .. } = *config;
    let (activation, gated) = match config.feed_forward {
        T5FeedForward::Relu => (Activation::Relu, false),
        T5FeedForward::GatedGelu => (Activation::GeluNew, true),
    };
    TransformerLayerConfig::new(d_model, heads, d_ff)
        .with_norm_order(NormOrder::Pre)
        .with_norm(NormKind::RmsNorm)
        .with_epsilon(config.epsilon)
        .with_head_dim(Some(d_kv))
        .with_scale(Some(1.0))
        .with_score_bias(true)
        .with_activation(activation)
        .with_gated(gated)
        .with_bias(false)
        .with_dropout(dropout)
        .with_attention_dropout(dropout)
        .with_activation_dropout(dropout)
        .with_experts(moe.map(experts))
        .with_initializer(Some(Initializer::KaimingNormal { gain: 1.0, fan_out_only: false }))
        .with_query_initializer(Some(Initializer::KaimingNormal {
            gain: (d_kv as f64).powf(-0.5),
            fan_out_only: false,
        }))
}

/// A block of the decoder, which also attends to the encoder's output.
pub(super) fn decoder(config: &T5Config, moe: Option<&T5MoeConfig>) -> TransformerLayerConfig {
    encoder(config, moe).with_cross_attention(true)
}

fn experts(moe: &T5MoeConfig) -> LayerExpertsConfig {
    LayerExpertsConfig::new(moe.experts)
        .with_gate(moe.gate)
        .with_capacity(moe.capacity)
        .with_jitter(moe.jitter)
        .with_route_padding(moe.route_padding)
}
