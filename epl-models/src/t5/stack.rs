//! The encoder or the decoder: equal blocks between an embedding and a norm.

use burn::module::Module;
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_core::Place;
use epl_modules::{Dropout, DropoutConfig, RelativeBias, RelativeBiasConfig, RmsNorm, RmsNormConfig, TransformerLayer};

use super::block;
use super::config::T5Config;

/// The encoder or the decoder.
#[derive(Module, Debug)]
pub struct Stack {
    /// The position bias, which all blocks share.
    pub bias: RelativeBias,
    /// The blocks.
    pub blocks: Vec<TransformerLayer>,
    /// The norm behind the last block.
    pub final_norm: RmsNorm,
    dropout: Dropout,
    final_dropout: Dropout,
}

impl Stack {
    /// Makes the encoder.
    pub fn encoder(config: &T5Config, place: &Place) -> Self {
        let block = |index| block::encoder(config, config.encoder_moe(index)).init(&block_place(place, index));
        Self::new(config, true, (0..config.encoder_layers).map(block).collect(), place)
    }

    /// Makes the decoder.
    pub fn decoder(config: &T5Config, place: &Place) -> Self {
        let block = |index| block::decoder(config, config.decoder_moe(index)).init(&block_place(place, index));
        Self::new(config, false, (0..config.decoder_layers).map(block).collect(), place)
    }

    fn new(config: &T5Config, bidirectional: bool, blocks: Vec<TransformerLayer>, place: &Place) -> Self {
        let normal = Initializer::Normal { mean: 0.0, std: (config.d_model as f64).powf(-0.5) };
        let bias = RelativeBiasConfig::new(config.heads)
            .with_n_buckets(config.relative_buckets)
            .with_max_distance(config.relative_max_distance)
            .with_bidirectional(bidirectional)
            .with_initializer(normal);
        Self {
            bias: bias.init(&place.child("bias")),
            blocks,
            final_norm: RmsNormConfig::new(config.d_model)
                .with_epsilon(config.epsilon)
                .init(&place.child("final_norm")),
            dropout: DropoutConfig::new(config.dropout).init(&place.child("dropout")),
            final_dropout: DropoutConfig::new(config.dropout).init(&place.child("final_dropout")),
        }
    }

    /// What stands before the first block.
    ///
    /// # Shapes
    ///
    /// - embedded, output: `[rows, positions, d_model]`
    pub fn enter(&self, embedded: Tensor<3>) -> Tensor<3> {
        self.dropout.forward(embedded)
    }

    /// What stands behind the last block.
    ///
    /// # Shapes
    ///
    /// - hidden, output: `[rows, positions, d_model]`
    pub fn leave(&self, hidden: Tensor<3>) -> Tensor<3> {
        self.final_dropout.forward(self.final_norm.forward(hidden))
    }
}

fn block_place(place: &Place, index: usize) -> Place {
    place.child("blocks").child(&index.to_string())
}
