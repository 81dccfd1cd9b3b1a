//! What images go through before they become a batch: one mechanism for all datasets.
//!
//! ```text
//! Dataset<LabelledImage> ─ Augmented(Transforms, seed) ─> any Batcher of LabelledImage ─> ImageBatch, MaeBatch
//!                          Views([Transforms; 2], seed) ─> a Batcher of [LabelledImage; 2]
//! ```
//!
//! All work on bytes, as torchvision's on images of Pillow, whose operations, roundings and strengths they have
//! (`tools/make_image_fixture.py`). A step of your own implements [`Transform`]. What is random follows from the run's seed and the
//! sample's number: see [`Draws`].
//!
//! - [`pipeline`]: one step, and steps after each other; [`draws`]: what is random in a sample;
//! - [`crop`]: parts, sizes, mirror images; `resample`: images of another size;
//! - [`jitter`]: colours by chance, transforms that happen sometimes; [`rand_augment`]: operations by chance;
//! - [`blur`], `colour`, `affine`: what these compute;
//! - `recipes`: what images are commonly trained and judged with; `setting`: checks of numbers.

mod setting;
pub mod draws;
pub mod pipeline;
mod affine;
mod colour;
mod resample;
pub mod crop;
pub mod blur;
pub mod jitter;
pub mod rand_augment;
mod recipes;
#[cfg(test)]
mod against_pillow;

pub use ::image::RgbImage;
pub use blur::GaussianBlur;
pub use crop::{CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize};
pub use draws::Draws;
pub use jitter::{ColorJitter, RandomApply, RandomGrayscale, RandomSolarize};
pub use pipeline::{Transform, Transforms};
pub use rand_augment::RandAugment;
pub use resample::Interpolation;
