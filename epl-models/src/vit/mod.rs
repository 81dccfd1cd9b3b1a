//! ViT: an image as a sequence of patches, read by the encoder of a transformer.
//!
//! ```text
//! segment 0        patches + class token + positions ─ layer   ─┐ carry: [rows, patches + 1, d_model]
//! segments 1..L    layer: norm before each part                 │
//! segment L        norm of the class token                     ─┘ [rows, 1, d_model]
//! loss             class layer ─ cross-entropy                     logits, split by classes where that is asked for
//! ```
//!
//! - [`config`]: the shape of a model, and the known ones;
//! - `positions`: those that are not learned; [`embeddings`]: from an image to the first hidden states;
//! - [`model`]: the whole; [`segments`]: the whole as a chain for the engine;
//! - [`names`], [`import`], [`mod@export`]: checkpoints of Hugging Face.

pub mod config;
mod positions;
pub mod embeddings;
pub mod model;
pub mod segments;
pub mod names;
pub mod import;
pub mod export;

pub use config::ViTConfig;
pub use embeddings::PatchEmbeddings;
pub use export::export;
pub use import::{load, open};
pub use model::ViT;
pub(crate) use names::encoder_names;
pub use names::{ViTNames, measured_beside};
pub(crate) use positions::sine_cosine;
