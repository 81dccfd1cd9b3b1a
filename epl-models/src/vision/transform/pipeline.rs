//! Steps from an image to another.

use core::fmt;
use std::sync::Arc;

use ::image::RgbImage;

use super::draws::Draws;
use crate::vision::error::Result;
use crate::vision::image::LabelledImage;

/// One step from an image to another.
///
/// Its `Debug` text says what it is and all its numbers: that of [`Transforms`] tells a run's checkpoints what images go through.
pub trait Transform: fmt::Debug + Send + Sync {
    /// Looks at its numbers, before there is an image.
    ///
    /// # Errors
    ///
    /// The first one that cannot be, with what it should be.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// The image that it makes of another; what is random in it comes from `draws`.
    ///
    /// # Errors
    ///
    /// When it cannot be made of such an image.
    fn apply(&self, image: RgbImage, draws: &mut Draws) -> Result<RgbImage>;
}

/// Steps from an image to another, one after the other. A cheap clone.
///
/// ```
/// use epl_models::vision::transform::{Draws, RandAugment, Transforms};
/// use epl_models::vision::{LabelledImage, Result};
///
/// # fn main() -> Result<()> {
/// let transforms = Transforms::resized_crop(24)?.then(RandAugment::new())?;
/// let image = LabelledImage { pixels: vec![128; 3 * 40 * 30], height: 40, width: 30, label: 7 };
/// let seen = transforms.see(image, &mut Draws::new(1, 0, 0))?;
/// assert_eq!((seen.height, seen.width, seen.label), (24, 24, 7));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Transforms(Vec<Arc<dyn Transform>>);

impl Transforms {
    /// None: images stay as they are.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more, behind the others.
    ///
    /// # Errors
    ///
    /// As its [`check`](Transform::check).
    pub fn then(mut self, transform: impl Transform + 'static) -> Result<Self> {
        transform.check()?;
        self.0.push(Arc::new(transform));
        Ok(self)
    }

    /// What is seen of a labelled image.
    ///
    /// # Errors
    ///
    /// When the image has not three bytes for each of its pixels, or a step cannot be made of such an image.
    pub fn see(&self, image: LabelledImage, draws: &mut Draws) -> Result<LabelledImage> {
        let label = image.label;
        Ok(LabelledImage::of(self.apply(image.into_rgb()?, draws)?, label))
    }
}

impl Transform for Transforms {
    fn apply(&self, image: RgbImage, draws: &mut Draws) -> Result<RgbImage> {
        self.0.iter().try_fold(image, |image, transform| transform.apply(image, draws))
    }
}
