//! Attention as a residual part of a block.

use burn::module::Module;
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_core::Place;
use epl_modules::{
    AttentionCache, AttentionInput, Dropout, DropoutConfig, MultiHeadAttention, MultiHeadAttentionConfig, RmsNorm,
    RmsNormConfig,
};

use super::config::T5Config;

/// x + dropout(attention(norm(x))), to itself or to the encoder's output.
#[derive(Module, Debug)]
pub struct AttentionPart {
    /// Normalises what enters.
    pub norm: RmsNorm,
    /// The heads.
    pub heads: MultiHeadAttention,
    dropout: Dropout,
}

impl AttentionPart {
    /// Makes the part. The scores are not divided by √d_kv: the queries start that much smaller.
    pub fn new(config: &T5Config, place: &Place) -> Self {
        let T5Config { d_model, d_kv, heads, dropout, .. } = *config;
        let normal = |fan: usize| Initializer::Normal { mean: 0.0, std: (fan as f64).powf(-0.5) };
        let attention = MultiHeadAttentionConfig::new(d_model, heads)
            .with_head_dim(Some(d_kv))
            .with_dropout(dropout)
            .with_bias(false)
            .with_scale(false)
            .with_initializer(normal(d_model))
            .with_query_initializer(Some(normal(d_model * d_kv)))
            .with_output_initializer(Some(normal(heads * d_kv)));
        Self {
            norm: RmsNormConfig::new(d_model).with_epsilon(config.epsilon).init(&place.child("norm")),
            heads: attention.init(&place.child("heads")),
            dropout: DropoutConfig::new(dropout).init(place),
        }
    }

    /// Attends to what `input` makes of the normalised states; with a cache, from new positions only.
    ///
    /// # Shapes
    ///
    /// - hidden, output: `[rows, positions, d_model]`
    pub fn forward(
        &self,
        hidden: Tensor<3>,
        input: impl FnOnce(Tensor<3>) -> AttentionInput,
        cache: Option<&mut AttentionCache>,
    ) -> Tensor<3> {
        let input = input(self.norm.forward(hidden.clone()));
        let attended = match cache {
            Some(cache) => self.heads.forward_cache(input, cache),
            None => self.heads.forward(input),
        };
        hidden + self.dropout.forward(attended)
    }
}
