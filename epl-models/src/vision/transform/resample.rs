//! Images of another size.

use ::image::RgbImage;
use ::image::imageops::{self, FilterType};
use serde::{Deserialize, Serialize};

/// How the pixels between pixels are computed. An image that is made smaller is smoothed, as Pillow and torchvision (`antialias`) do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Interpolation {
    /// By the two neighbours along each side.
    Bilinear,
    /// By four neighbours along each side (Keys, 1981, with a = −½).
    Bicubic,
}

/// The image with another width and height.
pub(super) fn resized(image: RgbImage, [width, height]: [u32; 2], interpolation: Interpolation) -> RgbImage {
    if image.dimensions() == (width, height) {
        return image;
    }
    let filter = match interpolation {
        Interpolation::Bilinear => FilterType::Triangle,
        Interpolation::Bicubic => FilterType::CatmullRom,
    };
    imageops::resize(&image, width, height, filter)
}

/// A part of an image, from its left upper corner.
pub(super) fn cut(image: &RgbImage, (x, y): (u32, u32), [width, height]: [u32; 2]) -> RgbImage {
    imageops::crop_imm(image, x, y, width, height).to_image()
}
