//! MAE: a ViT that learns images by filling in the patches that it does not see.
//!
//! ```text
//! segment 0          patches that stay + class token + positions ─ layer  ─┐ carry: [rows, 1 + kept, d_model]
//! segments 1..L      layers of the encoder, which sees a quarter           │
//! segment L          norm ─ product ─ mask tokens in the gaps + positions ─ layer of the decoder
//! segments L+1..L+M  layers of the decoder                                 │ [rows, 1 + patches, decoder_d_model]
//! segment L+M        norm ─ product                                       ─┘ [rows, patches, pixels of a patch]
//! ```
//!
//! - [`config`]: the shape of a model; [`batch`]: images;
//! - [`masking`]: which patches stay; [`decoder`]: from what the encoder saw to pixels;
//! - [`model`]: the whole; [`segments`]: the whole as a chain for the engine;
//! - [`names`], [`import`], [`mod@export`]: checkpoints of Hugging Face, from which a [`ViT`](crate::ViT) goes on to learn classes.
//!
//! *Masked Autoencoders Are Scalable Vision Learners*, He et al., 2021 ([arXiv:2111.06377](https://arxiv.org/abs/2111.06377)).

pub mod config;
pub mod batch;
pub mod masking;
pub mod decoder;
pub mod model;
pub mod segments;
pub mod names;
pub mod import;
pub mod export;

pub use batch::{MaeBatch, MaeBatcher};
pub use config::MaeConfig;
pub use decoder::MaeDecoder;
pub use export::export;
pub use import::{load, open, reference_batch};
pub use masking::Masking;
pub use model::Mae;
pub use names::MaeNames;
