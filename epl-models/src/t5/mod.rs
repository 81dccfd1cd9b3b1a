//! T5, dense or with experts: an encoder and a decoder of equal blocks.
//!
//! ```text
//! segment 0         embedding ─ dropout ─ encoder block 0        ─┐ carry: hidden states, the position bias of
//! segments 1..E     encoder block i          (the last: ─ norm)   │ the stack, the encoder's output, the sums of
//! segment E         embedding ─ dropout ─ decoder block 0         │ the router's losses
//! segments ..E+D    decoder block i                               │
//! segment E+D       norm ─ head                                  ─┘ logits, split by classes
//! ```
//!
//! - [`config`], [`preset`]: the shape of a model, and known shapes by name;
//! - [`batch`]: token pairs as padded tensors;
//! - `block`: what a block is, a [`TransformerLayer`](epl_modules::TransformerLayer); [`stack`]: what blocks make;
//! - [`model`]: the whole; [`segments`]: the whole as a chain for the engine;
//! - [`generate`]: greedy generation under any layout;
//! - `tying`, [`names`], [`import`], [`mod@export`]: checkpoints of Hugging Face.

pub mod config;
pub mod preset;
pub mod batch;
pub mod carry;
mod block;
pub mod stack;
pub mod model;
pub mod segments;
pub mod generate;
mod tying;
pub mod names;
pub mod import;
pub mod export;

pub use crate::rows::IGNORED;
pub use batch::{T5Batch, T5Batcher};
pub use carry::T5Carry;
pub use config::{T5Config, T5FeedForward, T5MoeConfig};
pub use export::export;
pub use import::{load, open, reference_pairs};
pub use model::T5;
pub use names::T5Names;
pub use preset::UnknownPreset;
pub use stack::Stack;
