//! Transformers: `burn::nn::transformer`.

mod decoder;
mod encoder;
mod feed_forward;

pub use decoder::{
    TransformerDecoder, TransformerDecoderAutoregressiveCache, TransformerDecoderConfig, TransformerDecoderInput,
    TransformerDecoderLayer, TransformerDecoderLayerAutoregressiveCache,
};
pub use encoder::{
    TransformerEncoder, TransformerEncoderAutoregressiveCache, TransformerEncoderConfig, TransformerEncoderInput,
    TransformerEncoderLayer, TransformerEncoderLayerAutoregressiveCache,
};
pub use feed_forward::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
