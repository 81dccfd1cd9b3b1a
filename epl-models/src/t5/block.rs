//! A block of the encoder or of the decoder.

use burn::module::Module;
use burn::tensor::{Bool, Int, Tensor};
use epl_core::Place;
use epl_modules::TokenMask;
use epl_modules::{AttentionCache, AttentionInput};

use super::attention::AttentionPart;
use super::config::{T5Config, T5MoeConfig};
use super::feed_forward::{FeedForwardPart, RouterLosses};

/// Attention to its own stack, in the decoder attention to the encoder's output, and a feed-forward network.
#[derive(Module, Debug)]
pub struct Block {
    /// Attention to the positions of its own stack.
    pub self_attention: AttentionPart,
    /// Attention to the encoder's output; in the decoder only.
    pub cross_attention: Option<AttentionPart>,
    /// The feed-forward network, or its experts.
    pub feed_forward: FeedForwardPart,
}

/// What a block sees beside its hidden states.
#[derive(Clone, Debug)]
pub struct Surroundings<'a> {
    /// The position bias of the stack. Shape `[1, local heads, queries, keys]`.
    pub bias: Tensor<4>,
    /// Which tokens are real, on the host.
    pub real: &'a TokenMask,
    /// What the block attends to.
    pub view: View<'a>,
}

/// What a block attends to.
#[derive(Clone, Debug)]
pub enum View<'a> {
    /// An encoder block: the whole source but its padding.
    Source {
        /// True at padding. Shape `[rows, source length]`.
        padding: &'a Tensor<2, Bool>,
    },
    /// A decoder block: what stands before in the target, and the encoder's output.
    Target {
        /// The encoder's output. Shape `[rows, source length, d_model]`.
        memory: &'a Tensor<3>,
        /// True at its padding. Shape `[rows, source length]`.
        padding: &'a Tensor<2, Bool>,
    },
}

/// The keys and values that a decoder block keeps between the steps of generation.
#[derive(Clone, Debug, Default)]
pub struct BlockCache {
    target: AttentionCache,
    memory: AttentionCache,
}

impl BlockCache {
    /// Keeps some rows of the batch.
    ///
    /// # Shapes
    ///
    /// - rows: `[kept]`
    #[must_use]
    pub fn select(self, rows: &Tensor<1, Int>) -> Self {
        Self { target: self.target.select(rows.clone()), memory: self.memory.select(rows.clone()) }
    }
}

impl Block {
    /// Makes an encoder block.
    pub fn encoder(config: &T5Config, moe: Option<&T5MoeConfig>, place: &Place) -> Self {
        Self {
            self_attention: AttentionPart::new(config, &place.child("self_attention")),
            cross_attention: None,
            feed_forward: FeedForwardPart::new(config, moe, &place.child("feed_forward")),
        }
    }

    /// Makes a decoder block.
    pub fn decoder(config: &T5Config, moe: Option<&T5MoeConfig>, place: &Place) -> Self {
        let cross_attention = AttentionPart::new(config, &place.child("cross_attention"));
        Self { cross_attention: Some(cross_attention), ..Self::encoder(config, moe, place) }
    }

    /// Applies the block; with a cache, to new positions only.
    ///
    /// # Shapes
    ///
    /// - hidden, output: `[rows, positions, d_model]`
    pub fn forward(
        &self,
        hidden: Tensor<3>,
        around: &Surroundings<'_>,
        cache: Option<&mut BlockCache>,
    ) -> (Tensor<3>, Option<RouterLosses>) {
        let bias = around.bias.clone();
        let (target, memory) = cache.map(|cache| (&mut cache.target, &mut cache.memory)).unzip();
        let own = |states| {
            let input = AttentionInput::self_attention(states).with_bias(bias);
            match &around.view {
                View::Source { padding } => input.with_padding((*padding).clone()),
                // Padding stands behind all real tokens, where no real one looks.
                View::Target { .. } => input.causal(),
            }
        };
        let mut hidden = self.self_attention.forward(hidden, own, target);
        if let (Some(part), View::Target { memory: output, padding }) = (&self.cross_attention, &around.view) {
            let cross =
                |states| AttentionInput::cross_attention(states, (*output).clone()).with_padding((*padding).clone());
            hidden = part.forward(hidden, cross, memory);
        }
        self.feed_forward.forward(hidden, around.real)
    }
}
