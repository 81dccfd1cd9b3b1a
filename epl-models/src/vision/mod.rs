//! Images for classification models: what is seen, and how it becomes a batch.
//!
//! ```text
//! shapes ──┐
//!          ├─> Dataset<LabelledImage> ──ImageBatcher──> ImageBatch ──> a model
//! folder ──┘
//! ```
//!
//! - [`image`]: an image in bytes, with its class;
//! - [`shapes`]: images by rule: coloured shapes, split in training and held-out images;
//! - [`folder`]: images from files, a folder a class;
//! - [`batch`]: images as normalised tensors.
//!
//! What a user can get wrong comes back as [`Error`].

mod error;
mod random;

pub mod image;
pub mod shapes;
pub mod folder;
pub mod batch;

pub use batch::{IGNORED, ImageBatch, ImageBatcher};
pub use error::{Error, Result};
pub use folder::{ImageFolder, ImageFolderConfig};
pub use image::LabelledImage;
pub use shapes::{Shapes, ShapesConfig, ShapesSplit};
