//! From tokens to the first hidden states.

use burn::module::{Module, Param};
use burn::tensor::{Int, Tensor};
use epl_core::model::precision::{in_wide, widen};
use epl_core::{Context, Place};
use epl_modules::embedding::lookup;
use epl_modules::{Dropout, DropoutConfig, SplitEmbedding, SplitEmbeddingConfig};

use super::config::DecoderConfig;
use super::layer::normal;

/// A vector for the token and, where positions are learned, one for its position.
#[derive(Module, Debug)]
pub struct DecoderEmbeddings {
    /// The vectors of the tokens, split over the tensor axis.
    pub tokens: SplitEmbedding,
    /// The vectors of the positions, `[positions, d_model]`, if they are learned.
    pub positions: Option<Param<Tensor<2>>>,
    /// Dropout of the sum.
    pub dropout: Dropout,
    #[module(skip)]
    scaled: bool,
    #[module(skip)]
    context: Context,
}

impl DecoderEmbeddings {
    pub(super) fn new(config: &DecoderConfig, place: &Place) -> Self {
        let positions = || place.child("positions").param([config.positions, config.d_model], normal(config));
        Self {
            tokens: SplitEmbeddingConfig::new(config.vocab, config.d_model)
                .with_initializer(normal(config))
                .init(&place.child("tokens")),
            positions: config.rotary.is_none().then(positions),
            dropout: DropoutConfig::new(config.embedding_dropout).init(&place.child("dropout")),
            scaled: config.scaled_embeddings,
            context: place.context().clone(),
        }
    }

    /// The vectors of rows of tokens, of which each begins at position 0. Collective over the tensor axis.
    ///
    /// # Shapes
    ///
    /// - ids: `[rows, length]`
    /// - output: `[rows, length, d_model]`
    pub fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        self.forward_at(ids, None)
    }

    /// The same at these positions, or from 0.
    ///
    /// # Shapes
    ///
    /// - ids, positions: `[rows, length]`
    /// - output: `[rows, length, d_model]`
    pub fn forward_at(&self, ids: Tensor<2, Int>, positions: Option<Tensor<2, Int>>) -> Tensor<3> {
        let length = ids.dims()[1];
        let tokens = self.tokens.forward(ids);
        // In 16 bits the root is rounded, as it was when the published models were trained.
        let tokens = if self.scaled { tokens * (self.tokens.d_model as f64).sqrt() } else { tokens };
        let sum = match &self.positions {
            Some(table) => {
                self.context.count_flops(Some(table.id), 0.0);
                let positions = match positions {
                    Some(positions) => lookup(table.val(), positions),
                    None => table.val().narrow(0, 0, length).unsqueeze::<3>(),
                };
                // The gradient of a position is a sum over all rows: not in 16 bits.
                in_wide(tokens, |tokens| tokens + widen(positions))
            }
            None => tokens,
        };
        self.dropout.forward(sum)
    }
}
