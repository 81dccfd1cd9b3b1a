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
//! - [`batch`]: images as normalised tensors;
//! - `patches`: from images to patches; [`class_layer`]: from features to logits;
//! - [`mod@reference`]: what is stored beside a model of images.
//!
//! What a user can get wrong comes back as [`Error`].

mod error;
mod random;

pub mod image;
pub mod shapes;
pub mod folder;
pub mod batch;
mod patches;
pub mod class_layer;
pub mod reference;

pub use crate::rows::IGNORED;
pub use batch::{ImageBatch, ImageBatcher};
pub use class_layer::{ClassLayer, Labels};
pub(crate) use class_layer::{class_loss, class_weights};
pub use error::{Error, Result};
pub use folder::{ImageFolder, ImageFolderConfig};
pub use image::LabelledImage;
pub(crate) use patches::patches;
pub use reference::reference_batch;
pub use shapes::{Shapes, ShapesConfig, ShapesSplit};
