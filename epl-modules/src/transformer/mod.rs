//! One layer of a transformer, for encoders and decoders: residual parts around attention and a feed-forward network.
//!
//! ```text
//! hidden ─▶ self_attention ─▶ cross_attention ─▶ feed_forward ─▶ hidden
//!                              (to a memory)      dense, or moe ─▶ losses of the router
//!
//! a part, norm before:  x + dropout(f(norm(x)))                T5, GPT-2, Llama
//! a part, norm after:   norm(x + dropout(f(x)))                BERT, the first transformer
//! a part, norms around: x + dropout(output_norm(f(norm(x))))   Gemma 2
//! ```

mod config;
mod frame;
mod attention;
mod feed_forward;
mod input;
mod cache;
mod layer;

pub use attention::AttentionPart;
pub use cache::TransformerCache;
pub use config::{LayerExpertsConfig, TransformerLayerConfig};
pub use feed_forward::FeedForwardPart;
pub use frame::NormOrder;
pub use input::TransformerInput;
pub use layer::{TransformerLayer, TransformerOutput};
