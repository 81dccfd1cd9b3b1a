//! Two views of each image as tensors.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, Tensor};

use crate::vision::{ImageBatcher, LabelledImage};

/// Two views of each image, of whose classes nothing is said.
#[derive(Clone, Debug)]
pub struct MocoBatch {
    /// The normalised pixels of one view. Shape `[rows, channels, height, width]`.
    pub first: Tensor<4>,
    /// Those of the other one, in the same order. The same shape.
    pub second: Tensor<4>,
}

epl_core::batch!(MocoBatch { first, second });

/// Makes a [`MocoBatch`] of pairs of views, such as those of [`Views`](crate::vision::Views).
#[derive(Clone, Debug)]
pub struct MocoBatcher(ImageBatcher);

impl MocoBatcher {
    /// Of images that are normalised so; their classes are not looked at.
    pub fn new(images: ImageBatcher) -> Self {
        Self(images)
    }
}

impl Batcher<[LabelledImage; 2], MocoBatch> for MocoBatcher {
    fn batch(&self, pairs: Vec<[LabelledImage; 2]>, device: &Device) -> MocoBatch {
        let (first, second): (Vec<_>, Vec<_>) = pairs.into_iter().map(|[first, second]| (first, second)).unzip();
        MocoBatch { first: self.0.pixels(&first, device), second: self.0.pixels(&second, device) }
    }
}
