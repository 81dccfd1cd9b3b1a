//! From a decoded image to a square of the right size.

use ::image::RgbImage;
use ::image::imageops::{self, FilterType};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// The share of the short side that a random square takes: 224 pixels of 256.
const SHARE: f64 = 7.0 / 8.0;

/// The largest square in the middle.
pub(super) fn centre(image: &RgbImage, size: u32) -> RgbImage {
    let (width, height) = image.dimensions();
    let side = width.min(height);
    square(image, ((width - side) / 2, (height - side) / 2), side, size)
}

/// A slightly smaller square from a random place, mirrored every other time.
pub(super) fn random(image: &RgbImage, size: u32, random: &mut ChaCha8Rng) -> RgbImage {
    let (width, height) = image.dimensions();
    let side = ((f64::from(width.min(height)) * SHARE).round() as u32).max(1);
    let corner = (random.random_range(0..=width - side), random.random_range(0..=height - side));
    let square = square(image, corner, side, size);
    if random.random_bool(0.5) { imageops::flip_horizontal(&square) } else { square }
}

/// A square of an image, resized. Cut first, so that the work does not grow with what is cut off.
fn square(image: &RgbImage, (x, y): (u32, u32), side: u32, size: u32) -> RgbImage {
    let cut = imageops::crop_imm(image, x, y, side, side).to_image();
    if side == size { cut } else { imageops::resize(&cut, size, size, FilterType::Triangle) }
}

#[cfg(test)]
mod tests {
    use ::image::Rgb;

    use super::*;
    use crate::vision::random::generator;

    /// Red grows to the right, green downwards.
    fn gradient(width: u32, height: u32) -> RgbImage {
        let byte = |at: u32, side: u32| (255 * at / (side - 1).max(1)) as u8;
        RgbImage::from_fn(width, height, |x, y| Rgb([byte(x, width), byte(y, height), 7]))
    }

    #[test]
    fn the_middle_is_kept() {
        let square = centre(&gradient(301, 100), 50);
        assert_eq!(square.dimensions(), (50, 50));
        let [left, right] = [0, 49].map(|x| f64::from(square.get_pixel(x, 25)[0]));
        // The middle third of the width, all of the height.
        assert!((left - 85.0).abs() < 4.0 && (right - 170.0).abs() < 4.0, "{left} to {right}");
        assert!(square.get_pixel(25, 0)[1] < 6 && square.get_pixel(25, 49)[1] > 249);
        assert_eq!(centre(&gradient(1, 9), 4).dimensions(), (4, 4));
    }

    #[test]
    fn random_squares_move_and_turn() {
        let image = gradient(64, 64);
        let squares: Vec<RgbImage> = (0..20).map(|number| random(&image, 56, &mut generator(3, number))).collect();
        assert!(squares.iter().all(|square| square.dimensions() == (56, 56)));
        let mirrored = squares.iter().filter(|square| square.get_pixel(0, 0)[0] > square.get_pixel(55, 0)[0]).count();
        assert!((4..=16).contains(&mirrored), "{mirrored} of 20 are mirrored");
        let tops: Vec<u8> = squares.iter().map(|square| square.get_pixel(0, 0)[1]).collect();
        assert!(tops.iter().any(|top| *top != tops[0]));
        assert_eq!(squares[4], random(&image, 56, &mut generator(3, 4)));
    }
}
