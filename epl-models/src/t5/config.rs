//! The shape of a T5, dense or with experts.

use burn::config::Config;
use epl_modules::moe::{Capacity, Gate};
use serde::{Deserialize, Serialize};

use crate::rows::is_token;

/// The feed-forward part of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum T5FeedForward {
    /// `relu(x · input) · output`: the first T5, and the Switch Transformer.
    Relu,
    /// `(gelu(x · gate) ∘ (x · input)) · output`, with the approximate GELU: T5 version 1.1.
    GatedGelu,
}

/// The shape of a T5. The defaults are those of Hugging Face's `t5-small`.
///
/// ```
/// use epl_models::t5::{T5FeedForward, T5Config};
/// let config = T5Config::new(32_000).with_d_model(256).with_feed_forward(T5FeedForward::GatedGelu);
/// assert_eq!(T5Config::preset("moe_t5_small")?.encoder_layers, 4);
/// # Ok::<(), epl_models::t5::UnknownPreset>(())
/// ```
///
/// *Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer*, Raffel et al., 2020;
/// with experts, *Switch Transformers*, Fedus et al., 2022, and *GShard*, Lepikhin et al., 2021.
#[derive(Config, Debug, PartialEq)]
pub struct T5Config {
    /// The number of tokens.
    pub vocab: usize,
    /// The width of the hidden states.
    #[config(default = 512)]
    pub d_model: usize,
    /// The width of one head. Heads together need not be as wide as the hidden states.
    #[config(default = 64)]
    pub d_kv: usize,
    /// The width inside the feed-forward part, and inside each expert.
    #[config(default = 2048)]
    pub d_ff: usize,
    /// Attention heads.
    #[config(default = 8)]
    pub heads: usize,
    /// Blocks of the encoder.
    #[config(default = 6)]
    pub encoder_layers: usize,
    /// Blocks of the decoder.
    #[config(default = 6)]
    pub decoder_layers: usize,
    /// Buckets of relative positions.
    #[config(default = 32)]
    pub relative_buckets: usize,
    /// Relative positions from this distance on share a bucket.
    #[config(default = 128)]
    pub relative_max_distance: usize,
    /// Probability with which embeddings, attention weights, hidden features (those of experts too) and the output
    /// of every part are dropped.
    #[config(default = 0.1)]
    pub dropout: f64,
    /// The feed-forward part.
    #[config(default = "T5FeedForward::Relu")]
    pub feed_forward: T5FeedForward,
    /// Whether the head is the embedding; otherwise it has a weight of its own.
    #[config(default = true)]
    pub tied_head: bool,
    /// Whether the hidden states are multiplied by d_model^-½ before the head: the first T5 and Switch do, 1.1
    /// does not.
    #[config(default = true)]
    pub scaled_head: bool,
    /// Added to the mean square inside the norms.
    #[config(default = 1e-6)]
    pub epsilon: f64,
    /// The padding token.
    #[config(default = 0)]
    pub pad: i64,
    /// The token that ends a sequence.
    #[config(default = 1)]
    pub eos: i64,
    /// Tokens that end a text that is generated. Default: `eos`
    pub ends: Option<Vec<i64>>,
    /// The token that the decoder starts with.
    #[config(default = 0)]
    pub decoder_start: i64,
    /// The share of the target's probability that is spread over all tokens in training.
    #[config(default = 0.0)]
    pub label_smoothing: f64,
    /// Experts, if there are any.
    pub moe: Option<T5MoeConfig>,
}

/// The experts of a [`T5Config`].
///
/// Which blocks have experts follows Hugging Face's Switch: with a step of n, the blocks i with i mod n = 1; with 1,
/// all; with 0, none.
#[derive(Config, Debug, PartialEq)]
pub struct T5MoeConfig {
    /// Experts of a layer.
    pub experts: usize,
    /// How a token chooses.
    #[config(default = "Gate::Top2")]
    pub gate: Gate,
    /// Every how many blocks the encoder has experts.
    #[config(default = 1)]
    pub encoder_sparse_step: usize,
    /// Every how many blocks the decoder has experts.
    #[config(default = 1)]
    pub decoder_sparse_step: usize,
    /// How many tokens of one sequence an expert takes.
    #[config(default = "Capacity::Factor { train: 1.25, eval: 2.0 }")]
    pub capacity: Capacity,
    /// The factor of the load balancing loss.
    #[config(default = 0.01)]
    pub auxiliary: f64,
    /// The factor of the router's z loss.
    #[config(default = 0.0)]
    pub z: f64,
    /// The router's input is multiplied by numbers from 1 ± jitter in training.
    #[config(default = 0.0)]
    pub jitter: f64,
    /// Whether padding is routed too: for equality with Hugging Face, else a waste of room.
    #[config(default = false)]
    pub route_padding: bool,
}

impl T5Config {
    /// The same model for another number of tokens.
    #[must_use]
    pub fn with_vocab(mut self, vocab: usize) -> Self {
        self.vocab = vocab;
        self
    }

    /// The tokens that end a text that is generated.
    pub fn end_tokens(&self) -> Vec<i64> {
        self.ends.clone().unwrap_or_else(|| vec![self.eos])
    }

    /// The width of all heads together.
    pub fn d_heads(&self) -> usize {
        self.heads * self.d_kv
    }

    /// The experts of an encoder block, if it has any.
    pub fn encoder_moe(&self, block: usize) -> Option<&T5MoeConfig> {
        self.moe.as_ref().filter(|moe| Self::is_sparse(block, moe.encoder_sparse_step))
    }

    /// The experts of a decoder block, if it has any.
    pub fn decoder_moe(&self, block: usize) -> Option<&T5MoeConfig> {
        self.moe.as_ref().filter(|moe| Self::is_sparse(block, moe.decoder_sparse_step))
    }

    /// Whether a block has experts, with a step of so many.
    pub(super) fn is_sparse(block: usize, step: usize) -> bool {
        match step {
            0 => false,
            1 => true,
            step => block % step == 1,
        }
    }

    /// Whether any block has experts.
    pub fn has_experts(&self) -> bool {
        (0..self.encoder_layers).any(|block| self.encoder_moe(block).is_some())
            || (0..self.decoder_layers).any(|block| self.decoder_moe(block).is_some())
    }

    /// Checks the numbers. How the model fits a layout, its layers check.
    ///
    /// # Errors
    ///
    /// The first number that cannot be, with what it should be.
    pub fn validate(&self) -> epl_core::Result<()> {
        let counts = [
            ("vocab", self.vocab),
            ("d_model", self.d_model),
            ("d_kv", self.d_kv),
            ("d_ff", self.d_ff),
            ("heads", self.heads),
            ("encoder_layers", self.encoder_layers),
            ("decoder_layers", self.decoder_layers),
        ];
        let invalid = |message: String| Err(epl_core::Error::invalid(format!("T5: {message}")));
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return invalid(format!("`{name}` is 0; it should be at least 1"));
        }
        for (name, share) in [("dropout", self.dropout), ("label_smoothing", self.label_smoothing)] {
            if !(0.0..1.0).contains(&share) {
                return invalid(format!("`{name}` is {share}; it should be at least 0 and below 1"));
            }
        }
        for (name, token) in [("pad", self.pad), ("eos", self.eos), ("decoder_start", self.decoder_start)] {
            if !is_token(token, self.vocab) {
                return invalid(format!("`{name}` is token {token}; the tokens are 0 to {}", self.vocab - 1));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_blocks_follow_hugging_face() {
        let sparse = |step| (0..6).filter(|block| T5Config::is_sparse(*block, step)).collect::<Vec<_>>();
        assert_eq!(sparse(0), [0; 0]);
        assert_eq!(sparse(1), [0, 1, 2, 3, 4, 5]);
        assert_eq!(sparse(2), [1, 3, 5]);
        assert_eq!(sparse(3), [1, 4]);
    }

    #[test]
    fn impossible_numbers_are_refused_by_name() {
        let message = |config: T5Config| config.validate().unwrap_err().to_string();
        assert!(T5Config::new(100).validate().is_ok());
        assert!(message(T5Config::new(100).with_heads(0)).contains("`heads` is 0"));
        assert!(message(T5Config::new(100).with_eos(100)).contains("`eos` is token 100; the tokens are 0 to 99"));
        assert!(message(T5Config::new(100).with_dropout(1.0)).contains("`dropout` is 1"));
    }
}
