//! From tokens to the first hidden states.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::{Int, Tensor};
use epl_core::Place;
use epl_modules::embedding::lookup;
use epl_modules::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig, SplitEmbedding, SplitEmbeddingConfig};

use super::batch::BertBatch;
use super::config::BertConfig;
use super::layer::normal;

/// The sum of a vector for the token, one for its position and one for its type, normalised.
#[derive(Module, Debug)]
pub struct BertEmbeddings {
    /// The vectors of the tokens, split over the tensor axis.
    pub words: SplitEmbedding,
    /// The vectors of the positions.
    pub positions: Embedding,
    /// The vectors of the types.
    pub token_types: Embedding,
    /// Normalises the sum.
    pub norm: LayerNorm,
    /// Dropout of the sum.
    pub dropout: Dropout,
    #[module(skip)]
    first_position: usize,
}

impl BertEmbeddings {
    pub(super) fn new(config: &BertConfig, place: &Place) -> Self {
        let table = |rows: usize, name: &str| {
            EmbeddingConfig::new(rows, config.d_model).with_initializer(normal(config)).init(&place.child(name))
        };
        Self {
            words: SplitEmbeddingConfig::new(config.vocab, config.d_model)
                .with_initializer(normal(config))
                .init(&place.child("words")),
            positions: table(config.positions, "positions"),
            token_types: table(config.token_types, "token_types"),
            norm: LayerNormConfig::new(config.d_model).with_epsilon(config.epsilon).init(&place.child("norm")),
            dropout: DropoutConfig::new(config.dropout).init(&place.child("dropout")),
            first_position: config.first_position(),
        }
    }

    /// The vectors of a batch. Collective over the tensor axis.
    ///
    /// # Shapes
    ///
    /// - output: `[rows, length, d_model]`
    pub fn forward<L>(&self, batch: &BertBatch<L>) -> Tensor<3> {
        let sum = self.words_and_positions(batch) + lookup(self.token_types.weight.val(), batch.token_types.clone());
        self.dropout.forward(self.norm.forward(sum))
    }

    fn words_and_positions<L>(&self, batch: &BertBatch<L>) -> Tensor<3> {
        let ([rows, length], first) = (batch.dims(), self.first_position as i64);
        let positions = Tensor::<1, Int>::arange(first..first + length as i64, &batch.ids.device()).unsqueeze::<2>();
        let at = |positions| self.words.forward(batch.ids.clone()) + lookup(self.positions.weight.val(), positions);
        if first == 0 {
            return at(positions);
        }
        // Padding has the position before, and learns neither it nor its word.
        let both = at(positions.expand([rows, length]).mask_fill(batch.padding.clone(), first - 1));
        let is_padding = batch.padding.clone().unsqueeze_dim::<3>(2).expand(both.dims());
        both.clone().mask_where(is_padding, both.detach())
    }
}
