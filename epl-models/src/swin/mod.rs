//! Swin and Swin V2: an image as a grid of patches that attend to each other in windows, over stages that halve the grid.
//!
//! ```text
//! segment 0            patches ─ norm ─ block over windows                      ─┐ carry: [rows, grid * grid, width]
//! segment 1            block over shifted windows ─ merge 2 × 2 positions        │ [rows, grid * grid / 4, 2 width]
//! segments 2..B        blocks of further stages, the last of each but the last merges
//! segment B            norm ─ mean over positions                               ─┘ [rows, 1, features]
//! loss                 class layer ─ cross-entropy                                 logits, split by classes where that is asked for
//! ```
//!
//! `transformers` lets positions that a shift has brought together see each other by a score that is smaller by 100 (V2: 200); here
//! they do not at all, which is the same but where a head's scale is near its bound.
//!
//! - [`config`]: the shape of a model, and the known ones;
//! - [`embeddings`]: from an image to the first hidden states; [`merging`]: from a stage to the next; [`stage`]: blocks on one grid;
//! - [`model`]: the whole; [`segments`]: the whole as a chain for the engine;
//! - [`names`], [`import`], [`mod@export`]: checkpoints of Hugging Face.

pub mod config;
pub mod embeddings;
pub mod merging;
pub mod stage;
pub mod model;
pub mod segments;
pub mod names;
pub mod import;
pub mod export;

pub use config::{SwinConfig, SwinVersion};
pub use embeddings::SwinEmbeddings;
pub use export::export;
pub use import::{load, open};
pub use merging::PatchMerging;
pub use model::Swin;
pub use names::SwinNames;
pub use stage::{SwinBlock, SwinStage};
