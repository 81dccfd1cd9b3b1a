//! Images that are blurred and sharpened.

use ::image::{Rgb, RgbImage};
use burn::config::Config;

use super::colour::blend;
use super::draws::Draws;
use super::pipeline::Transform;
use super::setting::{check_range, refused};
use crate::vision::error::Result;

/// Blurred by a Gaussian curve whose deviation is drawn; beyond its edges the image goes on as its mirror image. As torchvision's.
#[derive(Config, Debug, PartialEq)]
pub struct GaussianBlur {
    /// Over how many pixels along each side it goes; an odd number. SimCLR takes a tenth of an image's side.
    pub kernel: usize,
    /// The least and the largest deviation, in pixels.
    #[config(default = "[0.1, 2.0]")]
    pub sigma: [f64; 2],
}

impl Transform for GaussianBlur {
    fn check(&self) -> Result<()> {
        if self.kernel.is_multiple_of(2) {
            return refused(
                "GaussianBlur",
                format!("`kernel` is {}; it should be an odd number of pixels", self.kernel),
            );
        }
        check_range("GaussianBlur", "sigma", self.sigma)
    }

    fn apply(&self, image: RgbImage, draws: &mut Draws) -> Result<RgbImage> {
        let (width, height) = image.dimensions();
        if self.kernel / 2 >= width.min(height) as usize {
            let reason = format!(
                "`kernel` is {}, for an image of {height}×{width} pixels; it should be below twice the short side",
                self.kernel
            );
            return refused("GaussianBlur", reason);
        }
        Ok(blurred(&image, &curve(self.kernel, draws.uniform(self.sigma))))
    }
}

/// The values of the curve, whose sum is 1.
fn curve(kernel: usize, sigma: f64) -> Vec<f64> {
    let middle = (kernel / 2) as f64;
    let values: Vec<f64> = (0..kernel).map(|at| (-0.5 * ((at as f64 - middle) / sigma).powi(2)).exp()).collect();
    let sum: f64 = values.iter().sum();
    values.iter().map(|value| value / sum).collect()
}

/// First along the rows, then along the columns.
fn blurred(image: &RgbImage, curve: &[f64]) -> RgbImage {
    let (width, height) = (image.width() as usize, image.height() as usize);
    let reach = curve.len() / 2;
    // The place `reach` before `at`, and those behind it, in a line that is mirrored at its ends.
    let mirrored = |at: usize, step: usize, length: usize| {
        let place = (at + step) as isize - reach as isize;
        let last = length as isize - 1;
        (last - (last - place.abs()).abs()) as usize
    };
    let mut rows = vec![[0.0; 3]; width * height];
    for (y, row) in rows.chunks_exact_mut(width).enumerate() {
        for (x, sum) in row.iter_mut().enumerate() {
            for (step, weight) in curve.iter().enumerate() {
                let pixel = image.get_pixel(mirrored(x, step, width) as u32, y as u32).0;
                sum.iter_mut().zip(pixel).for_each(|(sum, byte)| *sum += weight * f64::from(byte));
            }
        }
    }
    RgbImage::from_fn(width as u32, height as u32, |x, y| {
        let mut sums = [0.0; 3];
        for (step, weight) in curve.iter().enumerate() {
            let values: [f64; 3] = rows[mirrored(y as usize, step, height) * width + x as usize];
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
        }
        Rgb(sums.map(|sum| sum.round_ties_even() as u8))
    })
}

/// Smoothed at 0, the image at 1, sharper above it; its outermost pixels stay.
pub(super) fn sharpness(image: RgbImage, factor: f32) -> RgbImage {
    let smooth = smoothed(&image);
    let mut sharp = image;
    for (pixel, smooth) in sharp.pixels_mut().zip(smooth.pixels()) {
        pixel.0 = core::array::from_fn(|channel| blend(smooth.0[channel], pixel.0[channel], factor));
    }
    sharp
}

/// Each pixel by the 3×3 around it, of which the middle counts five times. In single precision, as Pillow computes it.
fn smoothed(image: &RgbImage) -> RgbImage {
    let (width, height) = image.dimensions();
    RgbImage::from_fn(width, height, |x, y| {
        if x == 0 || y == 0 || x + 1 == width || y + 1 == height {
            return *image.get_pixel(x, y);
        }
        Rgb(core::array::from_fn(|channel| {
            let around = (0..9).map(|at| f32::from(image.get_pixel(x + at % 3 - 1, y + at / 3 - 1)[channel]));
            let sum: f32 = around.enumerate().map(|(at, byte)| if at == 4 { 5.0 * byte } else { byte }).sum();
            (sum / 13.0 + 0.5) as u8
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_settings_are_refused() {
        let even = GaussianBlur::new(4).check().unwrap_err().to_string();
        assert!(even.contains("GaussianBlur: `kernel` is 4; it should be an odd number"), "{even}");
        assert!(GaussianBlur::new(3).with_sigma([0.0, 1.0]).check().is_err());
        let mut draws = Draws::new(0, 0, 0);
        let small = GaussianBlur::new(9).apply(RgbImage::new(4, 8), &mut draws).unwrap_err().to_string();
        assert!(small.contains("`kernel` is 9, for an image of 8×4 pixels"), "{small}");
        let plain = RgbImage::from_pixel(5, 8, Rgb([9, 90, 200]));
        assert_eq!(GaussianBlur::new(9).apply(plain.clone(), &mut draws).unwrap(), plain);
    }
}
