//! Images for classification models: what is seen, how it becomes a batch, how answers are scored.
//!
//! ```text
//! shapes ──┐
//!          ├─> Dataset<LabelledImage> ──ImageBatcher──> ImageBatch ──> a model
//! folder ──┘                                            logits, labels ──> TopHits
//! ```
//!
//! - [`image`]: an image in bytes, with its class;
//! - [`shapes`]: images by rule: coloured shapes, split in training and held-out images;
//! - [`folder`]: images from files, a folder a class;
//! - [`batch`]: images as normalised tensors;
//! - [`hits`]: how often the class is the first, or among the first five.
//!
//! What a user can get wrong comes back as [`Error`].

mod error;
mod random;

pub mod image;
pub mod shapes;
pub mod folder;
pub mod batch;
pub mod hits;

pub use batch::{IGNORED, ImageBatch, ImageBatcher};
pub use error::{Error, Result};
pub use folder::{ImageFolder, ImageFolderConfig};
pub use hits::TopHits;
pub use image::LabelledImage;
pub use shapes::{Shapes, ShapesConfig, ShapesSplit};
