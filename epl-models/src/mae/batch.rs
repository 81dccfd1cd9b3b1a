//! Images to be filled in.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, Tensor};

use crate::vision::{ImageBatcher, LabelledImage};

/// Images, of whose classes nothing is said.
#[derive(Clone, Debug)]
pub struct MaeBatch {
    /// The normalised pixels. Shape `[rows, channels, height, width]`.
    pub pixels: Tensor<4>,
    /// A number for each patch of each image; those with the smallest stay. Default: drawn from the seed, the step and the
    /// sample
    pub noise: Option<Vec<Vec<f32>>>,
}

epl_core::batch!(MaeBatch { pixels, noise });

/// Makes a [`MaeBatch`] of images.
#[derive(Clone, Debug)]
pub struct MaeBatcher(ImageBatcher);

impl MaeBatcher {
    /// Of images that are normalised so; their classes are not looked at.
    pub fn new(images: ImageBatcher) -> Self {
        Self(images)
    }
}

impl Batcher<LabelledImage, MaeBatch> for MaeBatcher {
    fn batch(&self, images: Vec<LabelledImage>, device: &Device) -> MaeBatch {
        MaeBatch { pixels: self.0.pixels(&images, device), noise: None }
    }
}
