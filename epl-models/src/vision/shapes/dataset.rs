//! The images as datasets.

use burn::config::Config;
use burn::data::dataset::{Dataset, DatasetError};

use super::form::Form;
use super::painter::{COLOURS, paint};
use crate::vision::error::{Error, Result};
use crate::vision::image::LabelledImage;

/// The classes: every shape in every colour.
pub const CLASSES: usize = Form::ALL.len() * COLOURS.len();

/// Smaller images show no shape.
const SMALLEST: usize = 8;

/// How many images there are of what size.
///
/// An image depends on the seed, its number and the split alone: place, size, turn, tint and background of the shape,
/// and noise. The classes take turns. No training image is a held-out one: their numbers differ.
#[derive(Config, Debug, PartialEq)]
pub struct ShapesConfig {
    /// Training images.
    #[config(default = 20_000)]
    pub training: usize,
    /// Held-out images.
    #[config(default = 2_000)]
    pub held_out: usize,
    /// Rows, and pixels of a row.
    #[config(default = 32)]
    pub size: usize,
    /// Seed of all images.
    #[config(default = 0)]
    pub seed: u64,
}

/// The two sides of the split.
#[derive(Clone, Debug)]
pub struct ShapesSplit {
    /// What the model learns from.
    pub training: Shapes,
    /// What it is judged by.
    pub held_out: Shapes,
}

impl ShapesConfig {
    /// The two datasets. Images are painted when they are asked for.
    ///
    /// # Errors
    ///
    /// [`Error::Number`] for a side without images, or images that are too small.
    pub fn init(&self) -> Result<ShapesSplit> {
        let numbers = [("training", self.training, 1), ("held_out", self.held_out, 1), ("size", self.size, SMALLEST)];
        if let Some((name, found, least)) = numbers.into_iter().find(|(_, found, least)| found < least) {
            return Err(Error::Number { name, found, least });
        }
        let side = |images, parity| Shapes { images, parity, size: self.size, seed: self.seed };
        Ok(ShapesSplit { training: side(self.training, 0), held_out: side(self.held_out, 1) })
    }
}

/// Images of coloured shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shapes {
    images: usize,
    /// Training images have even numbers, held-out ones odd numbers.
    parity: u64,
    size: usize,
    seed: u64,
}

impl Shapes {
    /// The name of a class, such as "red disc".
    ///
    /// # Panics
    ///
    /// When there is no such class.
    pub fn class_name(label: usize) -> String {
        format!("{} {}", COLOURS[label % COLOURS.len()].0, Form::ALL[label / COLOURS.len()].name())
    }
}

impl Dataset<LabelledImage> for Shapes {
    fn get(&self, index: usize) -> Result<LabelledImage, DatasetError> {
        assert!(index < self.images, "image {index} of {}", self.images);
        Ok(paint(self.seed, 2 * index as u64 + self.parity, index % CLASSES, self.size))
    }

    fn len(&self) -> usize {
        self.images
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn split(config: ShapesConfig) -> ShapesSplit {
        config.init().unwrap()
    }

    #[test]
    fn an_image_depends_on_seed_number_and_split_alone() {
        let config = ShapesConfig::new().with_training(50).with_held_out(50);
        let (all, again) = (split(config.clone()), split(config.clone().with_training(3)));
        let first = all.training.get(2).unwrap();
        assert_eq!(first, again.training.get(2).unwrap());
        assert_ne!(first.pixels, split(config.with_seed(1)).training.get(2).unwrap().pixels);
        let images = [&all.training, &all.held_out].map(|side| side.iter().map(|image| image.unwrap().pixels));
        assert_eq!(images.into_iter().flatten().collect::<HashSet<_>>().len(), 100, "no two images are the same");
    }

    #[test]
    fn classes_take_turns_and_have_names() {
        let images = split(ShapesConfig::new().with_training(45).with_size(16)).training;
        let labels: Vec<usize> = images.iter().map(|image| image.unwrap().label).collect();
        assert_eq!(labels, (0..45).map(|index| index % 20).collect::<Vec<_>>());
        let names: HashSet<String> = (0..CLASSES).map(Shapes::class_name).collect();
        assert_eq!(names.len(), 20);
        assert!(names.contains("red disc") && names.contains("yellow ring"));
    }

    #[test]
    fn a_shape_has_its_colour_and_stands_on_grey() {
        let images = split(ShapesConfig::new().with_training(4).with_size(24)).training;
        // Red, green and blue discs.
        for (image, strongest) in images.iter().map(|image| image.unwrap()).zip([0, 1, 2]) {
            assert_eq!((image.height, image.width, image.pixels.len()), (24, 24, 3 * 24 * 24));
            let spread = |pixel: &[u8; 3]| pixel.iter().max().unwrap() - pixel.iter().min().unwrap();
            let pixels = (0..24 * 24).map(|at| image.pixel(at / 24, at % 24));
            let coloured: Vec<[u8; 3]> = pixels.filter(|pixel| spread(pixel) > 90).collect();
            // A disc of radius 0.22 to 0.38 of the side covers 15 % to 45 % of the image.
            assert!((60..300).contains(&coloured.len()), "{} coloured pixels", coloured.len());
            let sum = |channel: usize| coloured.iter().map(|pixel| u64::from(pixel[channel])).sum::<u64>();
            assert!((0..3).all(|channel| sum(strongest) >= sum(channel)), "class {}", image.label);
        }
    }

    #[test]
    fn impossible_numbers_are_refused() {
        let message = |config: ShapesConfig| config.init().unwrap_err().to_string();
        assert!(message(ShapesConfig::new().with_training(0)).contains("`training` is 0"));
        assert!(message(ShapesConfig::new().with_held_out(0)).contains("`held_out` is 0"));
        assert!(message(ShapesConfig::new().with_size(7)).contains("`size` is 7; it should be at least 8"));
    }
}
