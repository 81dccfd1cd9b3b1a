//! What images are commonly trained and judged with.

use super::crop::{CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize};
use super::pipeline::Transforms;
use crate::vision::error::Result;

impl Transforms {
    /// What an image is judged by: a square of 7/8 of its short side, from its middle; as 224 pixels of 256.
    ///
    /// # Errors
    ///
    /// When the square has no pixel.
    pub fn evaluation(size: usize) -> Result<Self> {
        Self::new().then(Resize::new(size.saturating_mul(8).div_ceil(7)))?.then(CenterCrop::new(size))
    }

    /// What networks for large images are trained with: a random part of the image, sometimes mirrored.
    ///
    /// # Errors
    ///
    /// When the square has no pixel.
    pub fn resized_crop(size: usize) -> Result<Self> {
        Self::new().then(RandomResizedCrop::new(size))?.then(RandomHorizontalFlip::new())
    }

    /// What networks for small images are trained with: a square of the image and its black margin, sometimes mirrored.
    ///
    /// # Errors
    ///
    /// When the square has no pixel.
    pub fn padded_crop(size: usize, padding: usize) -> Result<Self> {
        Self::new().then(RandomCrop::new(size).with_padding(padding))?.then(RandomHorizontalFlip::new())
    }
}
