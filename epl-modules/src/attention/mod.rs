//! Attention split by heads over the tensor axis.
//!
//! ```text
//! x copied ─┬─ query columns ─ q heads ─┐
//!           ├─ key columns ─── k heads ─┼─ softmax(q kᵀ · scale + bias) v ── output rows ── all-reduce ──> y
//!           └─ value columns ─ v heads ─┘
//! ```
//!
//! A rank computes whole heads, so nothing crosses the axis between the two all-reduces (one in forward, one in
//! backward).

mod cache;
mod input;
mod heads;
mod weighing;
mod weights;
mod on_host;
mod scaled_dot_product;
mod multi_head;
mod relative_bias;

pub use cache::AttentionCache;
pub use input::AttentionInput;
pub use multi_head::{MultiHeadAttention, MultiHeadAttentionConfig};
pub use relative_bias::{RelativeBias, RelativeBiasConfig};

pub(crate) use multi_head::check_heads;
