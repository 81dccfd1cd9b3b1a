//! Causal decoders that write the next token: GPT-2, Llama, Qwen3, Mixtral, Qwen3-MoE and Gemma 2 are one model with options.
//!
//! ```text
//! segment 0        tokens (+ positions) ─ dropout                      ─┐ carry: hidden states
//! segments 1..L    layer i: norm ─ attention (─ norm)                   │
//!                           norm ─ feed-forward (─ norm)                │
//! segment L+1      norm ─ head                                         ─┘ logits, split by classes
//! ```
//!
//! - [`config`], [`experts`], [`preset`]: the shape of a model, and known shapes by name;
//! - [`batch`]: rows of tokens as padded tensors;
//! - [`embeddings`], `layer`: from tokens to hidden states;
//! - [`model`]: the whole; [`segments`]: the whole as a chain for the engine; [`generate`]: what it writes behind a prompt;
//! - [`architecture`]: which model of Hugging Face a shape is; `gpt2`, `llama`: what each calls its parameters and the keys of its
//!   `config.json`, `mixtral`: those of experts, `gemma2`: those that a Llama has not, `rope`: the keys of rotary positions,
//!   `window`: those of windows;
//! - [`names`], [`import`], [`mod@export`]: checkpoints of Hugging Face.

pub mod experts;
pub mod config;
pub mod preset;
pub mod batch;
pub mod carry;
mod layer;
pub mod embeddings;
pub mod model;
pub mod segments;
pub mod generate;
pub mod architecture;
mod rope;
mod window;
mod gpt2;
mod llama;
mod mixtral;
mod gemma2;
pub mod names;
pub mod import;
pub mod export;

pub use crate::rows::IGNORED;
pub use architecture::Architecture;
pub use batch::{DecoderBatch, DecoderBatcher, DecoderItem, DecoderStep};
pub use carry::DecoderCarry;
pub use config::DecoderConfig;
pub use embeddings::DecoderEmbeddings;
pub use experts::DecoderExpertsConfig;
pub use export::export;
pub use generate::DecoderPrompts;
pub use import::{load, open, reference_items};
pub use model::Decoder;
pub use names::{DecoderNames, measured_beside};
