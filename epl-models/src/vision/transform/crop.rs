//! Parts of images: crops, sizes and mirror images.

use ::image::RgbImage;
use ::image::imageops;
use burn::config::Config;

use super::draws::Draws;
use super::pipeline::Transform;
use super::resample::{Interpolation, cut, resized};
use super::setting::{check_pixels, check_range, check_share, refused};
use crate::vision::error::Result;

/// Brings the short side of an image to a length, and the long one by the same factor.
#[derive(Config, Debug, PartialEq)]
pub struct Resize {
    /// The short side, in pixels.
    pub size: usize,
    /// How pixels are computed.
    #[config(default = "Interpolation::Bilinear")]
    pub interpolation: Interpolation,
}

impl Transform for Resize {
    fn check(&self) -> Result<()> {
        check_pixels("Resize", "size", self.size)
    }

    fn apply(&self, image: RgbImage, _draws: &mut Draws) -> Result<RgbImage> {
        let (width, height) = image.dimensions();
        let (short, long) = (width.min(height), width.max(height));
        let longer = (self.size as u64 * u64::from(long) / u64::from(short)) as u32;
        let size = self.size as u32;
        let sides = if width <= height { [size, longer] } else { [longer, size] };
        Ok(resized(image, sides, self.interpolation))
    }
}

/// The square in the middle of an image.
#[derive(Config, Debug, PartialEq)]
pub struct CenterCrop {
    /// Rows, and pixels of a row.
    pub size: usize,
}

impl Transform for CenterCrop {
    fn check(&self) -> Result<()> {
        check_pixels("CenterCrop", "size", self.size)
    }

    fn apply(&self, image: RgbImage, _draws: &mut Draws) -> Result<RgbImage> {
        let size = self.size as u32;
        let (right, down) = room("CenterCrop", &image, size)?;
        let middle = |room: u32| (f64::from(room) / 2.0).round_ties_even() as u32;
        Ok(cut(&image, (middle(right), middle(down)), [size; 2]))
    }
}

/// A square from a random place of an image with a black margin around it: what images of 32×32 pixels are trained with.
#[derive(Config, Debug, PartialEq)]
pub struct RandomCrop {
    /// Rows, and pixels of a row.
    pub size: usize,
    /// Pixels of the margin at each side.
    #[config(default = 0)]
    pub padding: usize,
}

impl Transform for RandomCrop {
    fn check(&self) -> Result<()> {
        check_pixels("RandomCrop", "size", self.size)?;
        if self.padding > 0 { check_pixels("RandomCrop", "padding", self.padding) } else { Ok(()) }
    }

    fn apply(&self, image: RgbImage, draws: &mut Draws) -> Result<RgbImage> {
        let (size, padding) = (self.size as u32, self.padding as u32);
        let image = if padding > 0 { padded(&image, padding) } else { image };
        let (right, down) = room("RandomCrop", &image, size)?;
        let corner = (draws.below(right as usize + 1) as u32, draws.below(down as usize + 1) as u32);
        Ok(cut(&image, corner, [size; 2]))
    }
}

/// The image in the middle of a black one.
pub(super) fn padded(image: &RgbImage, padding: u32) -> RgbImage {
    let mut larger = RgbImage::new(image.width() + 2 * padding, image.height() + 2 * padding);
    imageops::replace(&mut larger, image, i64::from(padding), i64::from(padding));
    larger
}

/// How far a square can move to the right and down inside an image.
fn room(transform: &'static str, image: &RgbImage, size: u32) -> Result<(u32, u32)> {
    let (width, height) = image.dimensions();
    match (width.checked_sub(size), height.checked_sub(size)) {
        (Some(right), Some(down)) => Ok((right, down)),
        _ => {
            let reason =
                format!("an image of {height}×{width} pixels has no square of {size}; resize it before, or crop less");
            refused(transform, reason)
        }
    }
}

/// How often a part is drawn that must lie in the image.
const TRIES: usize = 10;

/// A random part of an image, resized to a square: what networks for ImageNet are trained with.
///
/// Its share of the image's area and the logarithm of its width ÷ height are drawn evenly; after ten that do not fit, it is the
/// largest part in the middle of a ratio that is allowed. As torchvision's.
///
/// *Going Deeper with Convolutions*, Szegedy et al., 2014.
#[derive(Config, Debug, PartialEq)]
pub struct RandomResizedCrop {
    /// Rows, and pixels of a row.
    pub size: usize,
    /// The least and the largest share of the area.
    #[config(default = "[0.08, 1.0]")]
    pub scale: [f64; 2],
    /// The least and the largest width ÷ height.
    #[config(default = "[3.0 / 4.0, 4.0 / 3.0]")]
    pub ratio: [f64; 2],
    /// How pixels are computed.
    #[config(default = "Interpolation::Bilinear")]
    pub interpolation: Interpolation,
}

impl RandomResizedCrop {
    /// The corner and the sides of the part.
    fn part(&self, (width, height): (u32, u32), draws: &mut Draws) -> ((u32, u32), [u32; 2]) {
        let area = f64::from(width) * f64::from(height);
        for _ in 0..TRIES {
            let target = area * draws.uniform(self.scale);
            let ratio = draws.uniform(self.ratio.map(f64::ln)).exp();
            let sides = [(target * ratio).sqrt(), (target / ratio).sqrt()].map(|side| side.round_ties_even() as u32);
            if (1..=width).contains(&sides[0]) && (1..=height).contains(&sides[1]) {
                let mut place = |room: u32| draws.below(room as usize + 1) as u32;
                return ((place(width - sides[0]), place(height - sides[1])), sides);
            }
        }
        let ([least, largest], ratio) = (self.ratio, f64::from(width) / f64::from(height));
        // At least a pixel of an image that is one pixel wide.
        let side = |length: f64| (length.round_ties_even() as u32).max(1);
        let sides = match ratio {
            ratio if ratio < least => [width, side(f64::from(width) / least)],
            ratio if ratio > largest => [side(f64::from(height) * largest), height],
            _ => [width, height],
        };
        (((width - sides[0]) / 2, (height - sides[1]) / 2), sides)
    }
}

impl Transform for RandomResizedCrop {
    fn check(&self) -> Result<()> {
        check_pixels("RandomResizedCrop", "size", self.size)?;
        check_range("RandomResizedCrop", "scale", self.scale)?;
        check_share("RandomResizedCrop", "scale", self.scale[1])?;
        check_range("RandomResizedCrop", "ratio", self.ratio)
    }

    fn apply(&self, image: RgbImage, draws: &mut Draws) -> Result<RgbImage> {
        let (corner, sides) = self.part(image.dimensions(), draws);
        // Cut first, so that the work does not grow with what is cut off.
        Ok(resized(cut(&image, corner, sides), [self.size as u32; 2], self.interpolation))
    }
}

/// The mirror image, sometimes.
#[derive(Config, Debug, PartialEq)]
pub struct RandomHorizontalFlip {
    /// How often.
    #[config(default = 0.5)]
    pub probability: f64,
}

impl Transform for RandomHorizontalFlip {
    fn check(&self) -> Result<()> {
        check_share("RandomHorizontalFlip", "probability", self.probability)
    }

    fn apply(&self, mut image: RgbImage, draws: &mut Draws) -> Result<RgbImage> {
        if draws.happens(self.probability) {
            imageops::flip_horizontal_in_place(&mut image);
        }
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use ::image::Rgb;

    use super::*;

    /// Red grows to the right, green downwards.
    fn gradient(width: u32, height: u32) -> RgbImage {
        let byte = |at: u32, side: u32| (255 * at / (side - 1).max(1)) as u8;
        RgbImage::from_fn(width, height, |x, y| Rgb([byte(x, width), byte(y, height), 7]))
    }

    fn draws(sample: u64) -> Draws {
        Draws::new(3, sample, 0)
    }

    #[test]
    fn the_middle_is_kept() {
        let image = Resize::new(50).apply(gradient(301, 100), &mut draws(0)).unwrap();
        assert_eq!(image.dimensions(), (150, 50));
        let square = CenterCrop::new(50).apply(image, &mut draws(0)).unwrap();
        let [left, right] = [0, 49].map(|x| f64::from(square.get_pixel(x, 25)[0]));
        // The middle third of the width, all of the height.
        assert!((left - 85.0).abs() < 4.0 && (right - 170.0).abs() < 4.0, "{left} to {right}");
        assert!(square.get_pixel(25, 0)[1] < 6 && square.get_pixel(25, 49)[1] > 249);
        assert_eq!(Resize::new(4).apply(gradient(1, 9), &mut draws(0)).unwrap().dimensions(), (4, 36));
        let refused = CenterCrop::new(5).apply(gradient(4, 9), &mut draws(0)).unwrap_err().to_string();
        assert!(
            refused.contains("CenterCrop: an image of 9×4 pixels has no square of 5; resize it before"),
            "{refused}"
        );
    }

    #[test]
    fn random_squares_move_into_the_margin() {
        let crop = RandomCrop::new(8).with_padding(2);
        let white = RgbImage::from_pixel(8, 8, Rgb([255; 3]));
        let mut black: Vec<usize> = Vec::new();
        for sample in 0..60 {
            let square = crop.apply(white.clone(), &mut draws(sample)).unwrap();
            assert_eq!(square, crop.apply(white.clone(), &mut draws(sample)).unwrap());
            black.push(square.pixels().filter(|pixel| pixel.0 == [0; 3]).count());
        }
        // A square that moved by two pixels along both sides has 6 × 6 of the image.
        assert!(black.contains(&0) && black.contains(&28) && black.iter().all(|black| *black <= 28), "{black:?}");
        assert!(RandomCrop::new(13).with_padding(2).apply(white, &mut draws(0)).is_err());
    }

    #[test]
    fn half_of_the_images_are_mirrored() {
        let flipped = |sample| {
            let flip = RandomHorizontalFlip::new();
            flip.apply(gradient(9, 3), &mut draws(sample)).unwrap().get_pixel(0, 0)[0] == 255
        };
        let count = (0..200).filter(|sample| flipped(*sample)).count();
        assert!((70..130).contains(&count), "{count} of 200");
    }

    #[test]
    fn parts_have_the_areas_and_ratios_that_are_asked_for() {
        let crop = RandomResizedCrop::new(16).with_scale([0.2, 0.6]).with_ratio([0.5, 2.0]);
        let (mut shares, mut ratios) = (Vec::new(), Vec::new());
        for sample in 0..300 {
            let ((x, y), [width, height]) = crop.part((400, 300), &mut draws(sample));
            assert!(x + width <= 400 && y + height <= 300);
            shares.push(f64::from(width * height) / 120_000.0);
            ratios.push(f64::from(width) / f64::from(height));
        }
        let all = |values: &[f64], low: f64, high: f64| values.iter().all(|value| (low..high).contains(value));
        assert!(all(&shares, 0.195, 0.605) && all(&ratios, 0.49, 2.04), "{shares:?}");
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        // Parts that are too high do not fit, so that shares below the mean are drawn a little more often.
        assert!((0.36..0.41).contains(&mean(&shares)), "{}", mean(&shares));
        let logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
        assert!(mean(&logarithms).abs() < 0.15, "{}", mean(&logarithms));
    }

    #[test]
    fn what_never_fits_is_cut_from_the_middle() {
        let whole = RandomResizedCrop::new(4).with_scale([1.0, 1.0]);
        for (size, expected) in [
            // Ten times as wide as high, or as high as wide, so that no part of the whole area has an allowed ratio.
            ((100, 10), ((43, 0), [13, 10])),
            ((10, 100), ((0, 43), [10, 13])),
        ] {
            assert_eq!(whole.part(size, &mut draws(1)), expected);
        }
        let square = whole.clone().with_ratio([1.0, 1.0]);
        assert_eq!(square.part((20, 20), &mut draws(0)), ((0, 0), [20, 20]));
        assert_eq!(
            RandomResizedCrop::new(4).with_ratio([3.0, 4.0]).with_scale([1.0, 1.0]).part((1, 9), &mut draws(0)).1,
            [1, 1]
        );
        let image = RandomResizedCrop::new(6).apply(gradient(40, 30), &mut draws(0)).unwrap();
        assert_eq!(image.dimensions(), (6, 6));
    }

    #[test]
    fn impossible_settings_are_refused_by_name() {
        let message = |transform: &dyn Transform| transform.check().unwrap_err().to_string();
        assert!(message(&Resize::new(0)).contains("Resize: `size` is 0; it should be from 1"));
        assert!(message(&RandomResizedCrop::new(8).with_scale([0.5, 0.2])).contains("`scale` is from 0.5 to 0.2"));
        assert!(message(&RandomResizedCrop::new(8).with_scale([0.5, 1.2])).contains("`scale` is 1.2"));
        assert!(message(&RandomResizedCrop::new(8).with_ratio([0.0, 1.0])).contains("`ratio` is from 0 to 1"));
        assert!(message(&RandomHorizontalFlip::new().with_probability(1.5)).contains("`probability` is 1.5"));
        assert!(message(&RandomCrop::new(8).with_padding(usize::MAX)).contains("`padding` is"));
    }
}
