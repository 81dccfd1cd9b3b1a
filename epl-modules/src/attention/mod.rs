//! Attention split by heads over the tensor axis.
//!
//! ```text
//! x copied ─┬─ query columns ─ q heads ─ norm ─ turn ─┐
//!           ├─ key columns ─── k heads ─ norm ─ turn ─┼─ softmax(q kᵀ · scale + bias) v ── output rows ── all-reduce ──> y
//!           └─ value columns ─ v heads ───────────────┘
//! ```
//!
//! A rank computes whole heads, so nothing crosses the axis between the two all-reduces (one in forward, one in
//! backward). Several heads of queries may share one of keys and values (grouped queries), which is on the same rank. The norms,
//! the rotation by positions (`rotary`), a softcap of the scaled products and a sliding window are options; so are windows of a grid
//! (`windows`, `window_bias`), each of which attends to itself.

mod cache;
mod input;
mod checks;
mod heads;
mod weighing;
mod weights;
mod rotary;
mod on_host;
mod scaled_dot_product;
mod multi_head;
mod relative_bias;
mod windows;
mod window_bias;

pub use cache::AttentionCache;
pub use input::AttentionInput;
pub use multi_head::{MultiHeadAttention, MultiHeadAttentionConfig};
pub use relative_bias::{RelativeBias, RelativeBiasConfig};
pub use rotary::{RotaryConfig, RotaryScaling};
pub use window_bias::{DistanceNetwork, WindowBias, WindowBiasConfig};
pub use windows::Windows;

pub(crate) use checks::check_heads;
