//! ResNet: a backbone of residual layers, and a class layer that every rank holds whole or that is split.
//!
//! ```text
//! segment 0        stem: convolution 7×7 ─ norm ─ relu ─ max-pool  ─┐ carry: [rows, channels, height, width]
//! segments 1..=S   stage: residual layers                           │
//! segment S+1      average over the image                          ─┘ [rows, channels, 1, 1]
//! loss             class layer ─ cross-entropy                        logits, split by classes
//! ```
//!
//! - [`config`]: the shape of a model, and the known ones;
//! - `conv_norm`, [`layer`], [`backbone`]: from a convolution to the features of an image;
//! - [`model`]: the whole; [`segments`]: the whole as a chain for the engine;
//! - [`names`], [`import`], [`mod@export`]: checkpoints of Hugging Face.

pub mod config;
mod conv_norm;
pub mod layer;
pub mod backbone;
pub mod model;
pub mod segments;
pub mod names;
pub mod import;
pub mod export;

pub use backbone::Backbone;
pub use config::{ResNetConfig, ResNetLayer};
pub use export::export;
pub use import::{load, open};
pub use model::ResNet;
pub use names::ResNetNames;
