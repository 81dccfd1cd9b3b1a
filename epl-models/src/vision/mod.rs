//! Images for classification models: what is seen, and how it becomes a batch.
//!
//! ```text
//! shapes ───┐
//! folder ───┼─> Dataset<LabelledImage> ──Augmented: Transforms──ImageBatcher──Mixed──> ImageBatch ──> a model
//! cifar10 ──┤
//! mnist ────┘
//! ```
//!
//! - [`image`]: an image in bytes, with its class;
//! - [`shapes`]: images by rule: coloured shapes, split in training and held-out images;
//! - [`folder`]: images from files, a folder a class;
//! - [`stored`]: images in memory; [`cifar`], [`mod@mnist`]: from the files of CIFAR-10 and 100, MNIST and Fashion-MNIST;
//! - [`transform`]: what images go through: crops, colours, RandAugment;
//! - [`batch`]: images as normalised tensors;
//! - [`augmented`]: images that are transformed first, once or as two views; [`mixing`]: mixup and cutmix;
//! - `patches`: patches as a sequence; [`class_layer`]: from features to logits;
//! - [`mod@reference`]: what is stored beside a model of images.
//!
//! What a user can get wrong comes back as [`Error`].

mod error;
mod random;

pub mod image;
pub mod shapes;
pub mod folder;
pub mod stored;
pub mod cifar;
pub mod mnist;
pub mod transform;
pub mod batch;
pub mod augmented;
pub mod mixing;
mod patches;
pub mod class_layer;
pub mod reference;

pub use crate::rows::IGNORED;
pub use augmented::{Augmented, Views};
pub use batch::{ImageBatch, ImageBatcher, MixedLabels};
pub use cifar::{cifar10, cifar100};
pub use class_layer::{ClassLayer, Labels};
pub(crate) use class_layer::{class_loss, class_weights};
pub use error::{Error, Result};
pub use folder::ImageFolder;
pub use image::LabelledImage;
pub use mixing::{Mixed, Mixing};
pub use mnist::mnist;
pub(crate) use patches::patches;
pub use reference::reference_batch;
pub use shapes::{Shapes, ShapesConfig, ShapesSplit};
pub use stored::{Split, StoredImages};
pub use transform::{Draws, Transform, Transforms};
