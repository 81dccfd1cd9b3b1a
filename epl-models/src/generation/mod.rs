//! How text is written token by token: which token comes next, by the scores that a model gives all of them.
//!
//! ```text
//! logits of the last position ─▶ penalties ─▶ greedy:  the largest
//!                                          ─▶ sampled: temperature ─▶ top k ─▶ top p ─▶ min p ─▶ drawn by (seed, row, position)
//!                                          ─▶ beams:   the best continuations of all, by the sum of their logarithms
//! ```
//!
//! What a model is asked for in which order is `transformers`' (`generate`), so that the same settings write the same tokens.
//!
//! - [`config`]: the settings;
//! - `scores`: what is done to the scores of one row;
//! - `draws`: a token by chance;
//! - `beams`: the best sequences of one prompt;
//! - `agreed`: what ranks must be given alike;
//! - [`run`]: the steps.

pub mod config;
mod scores;
mod draws;
mod beams;
mod agreed;
pub mod run;

pub use agreed::check;
pub(crate) use beams::Continuation;
pub use config::GenerationConfig;
pub use run::{Generative, PromptRows, generate, generate_told};
