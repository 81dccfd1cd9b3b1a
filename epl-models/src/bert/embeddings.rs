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
        let words = self.words.forward(batch.ids.clone());
        let positions = || match &batch.positions {
            Some(positions) => lookup(self.positions.weight.val(), positions.clone()),
            None => {
                let numbers = Tensor::<1, Int>::arange(0..batch.dims()[1] as i64, &batch.ids.device());
                lookup(self.positions.weight.val(), numbers.unsqueeze::<2>())
            }
        };
        // Where the padding token stands, its vector learns nothing, as in `transformers`; of a RoBERTa its position neither.
        let not_learned = |vectors: Tensor<3>| match &batch.pads {
            Some(pads) => {
                let pads = pads.clone().unsqueeze_dim::<3>(2).expand(vectors.dims());
                vectors.clone().mask_where(pads, vectors.detach())
            }
            None => vectors,
        };
        match batch.positions {
            Some(_) => not_learned(words + positions()),
            None => not_learned(words) + positions(),
        }
    }
}
