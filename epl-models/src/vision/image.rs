//! An image in bytes, with its class.

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
}
