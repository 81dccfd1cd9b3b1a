//! Two views of each image.

use burn::config::Config;
use burn::data::dataset::{Dataset, DatasetError};
use epl_core::{Error, Result};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::vision::LabelledImage;

/// How views differ from their image.
///
/// A view is a rectangle of the image, brought to the image's size, perhaps mirrored, with other colours. It depends on the seed,
/// on the item's number and on which of both views it is, and on nothing else.
#[derive(Config, Debug, PartialEq)]
pub struct ViewsConfig {
    /// How often each image is shown, in other views each time: the items are so many times the images.
    #[config(default = 1)]
    pub repeats: usize,
    /// The smallest share of the image's area that a view shows, above 0. Its sides are as 3 to 4 at most, but for where a side
    /// ends with the image.
    #[config(default = 0.2)]
    pub smallest: f64,
    /// How many of the views are mirrored, in `[0, 1]`.
    #[config(default = 0.5)]
    pub mirrored: f64,
    /// All colours are multiplied by up to one more or less this, in `[0, 1]`.
    #[config(default = 0.4)]
    pub brightness: f64,
    /// Distances from the mean grey are multiplied by up to one more or less this, in `[0, 1]`.
    #[config(default = 0.4)]
    pub contrast: f64,
    /// Each of red, green and blue is multiplied by up to one more or less this, in `[0, 1]`.
    #[config(default = 0.1)]
    pub tint: f64,
    /// Seed of all views.
    #[config(default = 0)]
    pub seed: u64,
}

/// A dataset of two views of each image of another one.
#[derive(Clone, Debug)]
pub struct Views<D> {
    images: D,
    config: ViewsConfig,
}

impl ViewsConfig {
    /// Views of the images of a dataset.
    ///
    /// # Errors
    ///
    /// When a share is none that can be, or an image is shown 0 times.
    pub fn init<D: Dataset<LabelledImage>>(&self, images: D) -> Result<Views<D>> {
        let invalid = |message: String| Err(Error::invalid(format!("views: {message}")));
        if self.repeats == 0 {
            return invalid("`repeats` is 0; it should be at least 1".to_string());
        }
        if !(self.smallest > 0.0 && self.smallest <= 1.0) {
            return invalid(format!("`smallest` is {}; it should be above 0 and at most 1", self.smallest));
        }
        let shares = [
            ("mirrored", self.mirrored),
            ("brightness", self.brightness),
            ("contrast", self.contrast),
            ("tint", self.tint),
        ];
        match shares.iter().find(|(_, share)| !(0.0..=1.0).contains(share)) {
            Some((name, share)) => invalid(format!("`{name}` is {share}; it should be at least 0 and at most 1")),
            None => Ok(Views { images, config: self.clone() }),
        }
    }
}

impl<D: Dataset<LabelledImage>> Dataset<[LabelledImage; 2]> for Views<D> {
    fn get(&self, index: usize) -> Result<[LabelledImage; 2], DatasetError> {
        let image = self.images.get(index % self.images.len())?;
        Ok([0, 1].map(|view| {
            let mut random = ChaCha8Rng::seed_from_u64(self.config.seed);
            random.set_stream(2 * index as u64 + view);
            self.config.view(&image, &mut random)
        }))
    }

    fn len(&self) -> usize {
        self.images.len() * self.config.repeats
    }
}

impl ViewsConfig {
    fn view(&self, image: &LabelledImage, random: &mut ChaCha8Rng) -> LabelledImage {
        let rectangle = self.rectangle([image.height, image.width], random);
        let is_mirrored = random.random_bool(self.mirrored);
        let mut factor = |share: f64| 1.0 + share * random.random_range(-1.0..=1.0);
        let (brightness, contrast) = (factor(self.brightness), factor(self.contrast));
        let tint = [0; 3].map(|_| factor(self.tint));
        let values = image.pixels.iter().map(|byte| f64::from(*byte));
        let grey = values.sum::<f64>() / image.pixels.len().max(1) as f64;
        let mut pixels = Vec::with_capacity(image.pixels.len());
        for row in 0..image.height {
            for column in 0..image.width {
                let column = if is_mirrored { image.width - 1 - column } else { column };
                let colour = rectangle.colour_at(image, [row, column]);
                pixels.extend((0..3).map(|channel| {
                    let value = (grey + (colour[channel] - grey) * contrast) * brightness * tint[channel];
                    value.round().clamp(0.0, 255.0) as u8
                }));
            }
        }
        LabelledImage { pixels, ..*image }
    }

    /// A rectangle inside an image of this height and width.
    fn rectangle(&self, [height, width]: [usize; 2], random: &mut ChaCha8Rng) -> Rectangle {
        let area = random.random_range(self.smallest..=1.0) * (height * width) as f64;
        let longest = (4.0_f64 / 3.0).ln();
        let ratio = random.random_range(-longest..=longest).exp();
        let sides = [(area / ratio).sqrt().min(height as f64), (area * ratio).sqrt().min(width as f64)];
        let start = [(height, sides[0]), (width, sides[1])]
            .map(|(extent, side)| random.random_range(0.0..=(extent as f64 - side).max(0.0)));
        Rectangle { start, scale: [sides[0] / height as f64, sides[1] / width as f64] }
    }
}

/// A part of an image that is shown in its size.
struct Rectangle {
    /// The upper left corner, in pixels of the image.
    start: [f64; 2],
    /// Pixels of the image that a pixel shows, down and across.
    scale: [f64; 2],
}

impl Rectangle {
    /// The colour at a pixel of the view: of the four pixels around its middle, by their distances.
    fn colour_at(&self, image: &LabelledImage, at: [usize; 2]) -> [f64; 3] {
        let last = [image.height - 1, image.width - 1];
        let [(top, bottom, down), (left, right, across)] = [0, 1].map(|axis| {
            let middle = self.start[axis] + (at[axis] as f64 + 0.5) * self.scale[axis] - 0.5;
            let middle = middle.clamp(0.0, last[axis] as f64);
            let low = middle.floor() as usize;
            (low, (low + 1).min(last[axis]), middle - low as f64)
        });
        let [[a, b], [c, d]] = [top, bottom].map(|row| [left, right].map(|column| image.pixel(row, column)));
        core::array::from_fn(|channel| {
            let along = |from: [u8; 3], to: [u8; 3]| {
                f64::from(from[channel]) * (1.0 - across) + f64::from(to[channel]) * across
            };
            along(a, b) * (1.0 - down) + along(c, d) * down
        })
    }
}

#[cfg(test)]
mod tests {
    use burn::data::dataset::InMemDataset;

    use super::*;
    use crate::vision::ShapesConfig;

    fn views(config: &ViewsConfig) -> Views<crate::vision::Shapes> {
        config.init(ShapesConfig::new().with_training(5).with_size(16).init().unwrap().training).unwrap()
    }

    #[test]
    fn views_depend_on_seed_item_and_view_alone() {
        let config = ViewsConfig::new().with_repeats(3);
        let (all, again) = (views(&config), views(&config));
        assert_eq!(all.len(), 15);
        let item = |views: &Views<_>, index| Dataset::<[LabelledImage; 2]>::get(views, index).unwrap();
        assert_eq!(item(&all, 7), item(&again, 7));
        let [first, second] = item(&all, 7);
        assert_eq!((first.height, first.width, first.pixels.len(), first.label), (16, 16, 3 * 256, 2));
        assert_ne!(first, second);
        assert_ne!(item(&all, 7), item(&all, 12), "the same image again");
        assert_ne!(item(&all, 7), item(&views(&config.with_seed(1)), 7));
    }

    #[test]
    fn an_image_without_any_change_is_itself_or_its_mirror() {
        let pixels: Vec<u8> = (0..60).map(|at| (at * 4) as u8).collect();
        let image = LabelledImage { pixels: pixels.clone(), height: 4, width: 5, label: 1 };
        let of = |mirrored: f64| {
            let config = ViewsConfig::new().with_smallest(1.0).with_brightness(0.0).with_contrast(0.0).with_tint(0.0);
            let views = config.with_mirrored(mirrored).init(InMemDataset::new(vec![image.clone()])).unwrap();
            views.get(0).unwrap()[0].clone()
        };
        // Of another ratio of the sides a little is cut off: the middle stays near.
        let far = |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(far(&of(0.0).pixels, &pixels) <= 40);
        let row = |pixels: &[u8], row: usize| pixels[row * 15..][..15].to_vec();
        let mirror = |pixels: &[u8]| -> Vec<u8> {
            (0..4).flat_map(|at| row(pixels, at).chunks(3).rev().flatten().copied().collect::<Vec<_>>()).collect()
        };
        assert_eq!(mirror(&of(0.0).pixels), of(1.0).pixels);
    }

    #[test]
    fn impossible_numbers_are_refused() {
        let message = |config: ViewsConfig| config.init(InMemDataset::new(vec![])).map(drop).unwrap_err().to_string();
        assert!(message(ViewsConfig::new().with_repeats(0)).contains("`repeats` is 0; it should be at least 1"));
        for smallest in [0.0, 1.5, f64::NAN] {
            assert!(message(ViewsConfig::new().with_smallest(smallest)).contains("`smallest` is"), "{smallest}");
        }
        assert!(message(ViewsConfig::new().with_tint(1.1)).contains("`tint` is 1.1; it should be at least 0"));
        assert!(message(ViewsConfig::new().with_mirrored(-0.1)).contains("`mirrored` is -0.1"));
    }
}
