//! Attention: `burn::nn::attention`.

mod cache;
mod cross;
mod input;
mod multi_head;
mod weighing;

pub use burn::nn::attention::{
    GeneratePaddingMask, SeqLengthOption, generate_autoregressive_mask, generate_padding_mask,
};
pub use cache::MhaCache;
pub use cross::{CrossAttention, CrossAttentionCache, CrossAttentionConfig};
pub use input::{MhaInput, MhaOutput};
pub use multi_head::{MultiHeadAttention, MultiHeadAttentionConfig};
