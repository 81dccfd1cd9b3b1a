//! Patches of images as a sequence of vectors.

use burn::tensor::Tensor;
use epl_comm::{Error, unwind};
use epl_modules::ReplicatedConv2d;

/// The vectors of patches, row by row: the products of a convolution that moves by a patch.
///
/// # Shapes
///
/// - pixels: `[rows, channels, height, width]`
/// - output: `[rows, patches, features]`
///
/// # Errors
///
/// Unwinds with an error when images have another number of channels, height or width than the model's.
pub(crate) fn patches(projection: &ReplicatedConv2d, pixels: Tensor<4>, image: [usize; 3]) -> Tensor<3> {
    let [_, channels, height, width] = pixels.dims();
    if [channels, height, width] != image {
        let [own_channels, own_height, own_width] = image;
        unwind(Error::invalid(format!(
            "images of {channels} channels and {height}×{width} pixels, for a model of {own_channels} channels and \
             {own_height}×{own_width}; bring images to that size, or make the model with their `image_size`"
        )));
    }
    projection.forward(pixels).flatten::<3>(2, 3).swap_dims(1, 2)
}
