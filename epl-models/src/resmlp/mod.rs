//! ResMLP: an image as a sequence of patches, which layers mix across patches and across channels, without attention.
//!
//! ```text
//! segment 0        patches ─ layer                                      ─┐ carry: [rows, patches, d_model]
//! segments 1..L    layer: affine ─ product across patches ─ scale ─ +    │
//!                         affine ─ MLP across channels ─ scale ─ +       │
//! segment L        affine ─ mean over the patches                       ─┘ [rows, 1, d_model]
//! loss             class layer ─ cross-entropy                             logits, split by classes where that is asked for
//! ```
//!
//! - [`config`]: the shape of a model, and the known ones;
//! - [`affine`]: what stands in the place of a norm; [`layer`]: one layer;
//! - [`model`]: the whole; [`segments`]: the whole as a chain for the engine;
//! - [`names`], [`import`], [`mod@export`]: checkpoints of timm.

pub mod config;
pub mod affine;
pub mod layer;
pub mod model;
pub mod segments;
pub mod names;
pub mod import;
pub mod export;

pub use affine::Affine;
pub use config::ResMlpConfig;
pub use export::export;
pub use import::{load, open};
pub use layer::ResMlpLayer;
pub use model::ResMlp;
pub use names::ResMlpNames;
