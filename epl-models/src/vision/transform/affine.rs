//! Images that are moved, sheared and turned; what comes from outside is black.

use ::image::RgbImage;

/// Where a pixel comes from: `(a x + b y + c, d x + e y + f)` as `[a, b, c, d, e, f]`.
pub(super) type Matrix = [f64; 6];

/// Each row is moved by `by` times its number to the left.
pub(super) fn shear_x(by: f64) -> Matrix {
    [1.0, by, 0.0, 0.0, 1.0, 0.0]
}

/// Each column is moved by `by` times its number upwards.
pub(super) fn shear_y(by: f64) -> Matrix {
    [1.0, 0.0, 0.0, by, 1.0, 0.0]
}

/// The image moves by so many pixels to the right, and down.
pub(super) fn translate(right: f64, down: f64) -> Matrix {
    [1.0, 0.0, -right, 0.0, 1.0, -down]
}

/// The image turns against the clock around its middle.
pub(super) fn rotate(degrees: f64, (width, height): (u32, u32)) -> Matrix {
    let (sin, cos) = (-degrees.to_radians()).sin_cos();
    let (x, y) = (f64::from(width) / 2.0, f64::from(height) / 2.0);
    [cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y]
}

/// Bits behind the point.
const FRACTION: u32 = 16;

/// Takes each pixel from the nearest one, as Pillow does: in fixed point, so that the same pixels are taken.
pub(super) fn moved(image: &RgbImage, matrix: Matrix) -> RgbImage {
    let (width, height) = image.dimensions();
    let fixed = |value: f64| (value * f64::from(1 << FRACTION) + 0.5).floor() as i64;
    let [a, b, c, d, e, f] = matrix;
    let [right_x, right_y, down_x, down_y] = [a, d, b, e].map(fixed);
    let (start_x, start_y) = (fixed(c + 0.5 * a + 0.5 * b), fixed(f + 0.5 * d + 0.5 * e));
    let inside = |at: i64, side: u32| u32::try_from(at >> FRACTION).ok().filter(|at| *at < side);
    RgbImage::from_fn(width, height, |column, row| {
        let (column, row) = (i64::from(column), i64::from(row));
        let x = inside(start_x + column * right_x + row * down_x, width);
        let y = inside(start_y + column * right_y + row * down_y, height);
        match (x, y) {
            (Some(x), Some(y)) => *image.get_pixel(x, y),
            _ => ::image::Rgb([0; 3]),
        }
    })
}
