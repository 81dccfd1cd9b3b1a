//! An image in bytes, with its class.

use ::image::RgbImage;

use super::error::{Error, Result};

/// An image of three bytes a pixel (red, green, blue), row by row from the top, with the number of its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelledImage {
    /// `height · width · 3` bytes.
    pub pixels: Vec<u8>,
    /// Rows.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
    /// The number of the class, from 0.
    pub label: usize,
}

impl LabelledImage {
    /// The bytes of one pixel.
    ///
    /// # Panics
    ///
    /// When there is no such pixel.
    pub fn pixel(&self, row: usize, column: usize) -> [u8; 3] {
        assert!(row < self.height && column < self.width, "pixel ({row}, {column}) of {}×{}", self.height, self.width);
        let at = 3 * (row * self.width + column);
        [self.pixels[at], self.pixels[at + 1], self.pixels[at + 2]]
    }

    /// Of an image that was decoded or transformed.
    pub(super) fn of(image: RgbImage, label: usize) -> Self {
        let (width, height) = (image.width() as usize, image.height() as usize);
        Self { pixels: image.into_raw(), height, width, label }
    }

    /// The same, to be transformed.
    pub(super) fn into_rgb(self) -> Result<RgbImage> {
        let (bytes, height, width) = (self.pixels.len(), self.height, self.width);
        let wrong = || Error::Pixels { bytes, height, width };
        // `RgbImage` takes more bytes, too.
        let is_whole = height.checked_mul(width).and_then(|pixels| pixels.checked_mul(3)) == Some(bytes);
        let (Ok(columns), Ok(rows), true) = (u32::try_from(width), u32::try_from(height), is_whole && bytes > 0) else {
            return Err(wrong());
        };
        RgbImage::from_raw(columns, rows, self.pixels).ok_or_else(wrong)
    }
}
