//! What a layer of the encoder is, and how parameters start.

use burn::nn::Initializer;
use epl_modules::{NormKind, NormOrder, ReplicatedLinearConfig, TransformerLayerConfig};

use super::config::BertConfig;

/// A layer of the encoder: norms behind the parts, biases everywhere.
pub(super) fn layer(config: &BertConfig) -> TransformerLayerConfig {
    TransformerLayerConfig::new(config.d_model, config.heads, config.d_ff)
        .with_norm_order(NormOrder::Post)
        .with_norm(NormKind::LayerNorm)
        .with_epsilon(config.epsilon)
        .with_activation(config.activation)
        .with_dropout(config.dropout)
        .with_attention_dropout(config.attention_dropout)
        .with_initializer(Some(normal(config)))
        .with_bias_initializer(Some(Initializer::Zeros))
}

/// A linear layer of a head.
pub(super) fn linear(config: &BertConfig, outputs: usize) -> ReplicatedLinearConfig {
    ReplicatedLinearConfig::new(config.d_model, outputs)
        .with_initializer(normal(config))
        .with_bias_initializer(Some(Initializer::Zeros))
}

pub(super) fn normal(config: &BertConfig) -> Initializer {
    Initializer::Normal { mean: 0.0, std: config.deviation }
}
