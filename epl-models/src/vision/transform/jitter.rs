//! Colours by chance, and transforms that happen by chance.

use ::image::RgbImage;
use burn::config::Config;

use super::colour;
use super::draws::Draws;
use super::pipeline::{Transform, Transforms};
use super::setting::{check_share, refused};
use crate::vision::error::Result;

/// Brightness, contrast, saturation and hue by chance, in an order by chance. As torchvision's.
#[derive(Config, Debug, PartialEq)]
pub struct ColorJitter {
    /// Brightness is multiplied by a number from 1 − this, or 0, to 1 + this.
    #[config(default = 0.0)]
    pub brightness: f64,
    /// Likewise the contrast.
    #[config(default = 0.0)]
    pub contrast: f64,
    /// Likewise the saturation.
    #[config(default = 0.0)]
    pub saturation: f64,
    /// Hues are turned by at most this share of a turn, either way; at most a half.
    #[config(default = 0.0)]
    pub hue: f64,
}

impl Transform for ColorJitter {
    fn check(&self) -> Result<()> {
        for (name, strength) in
            [("brightness", self.brightness), ("contrast", self.contrast), ("saturation", self.saturation)]
        {
            if !(strength >= 0.0 && strength.is_finite()) {
                return refused("ColorJitter", format!("`{name}` is {strength}; it should be at least 0"));
            }
        }
        match (0.0..=0.5).contains(&self.hue) {
            true => Ok(()),
            false => refused("ColorJitter", format!("`hue` is {}; it should be from 0 to 0.5", self.hue)),
        }
    }

    fn apply(&self, mut image: RgbImage, draws: &mut Draws) -> Result<RgbImage> {
        let mut order = [0, 1, 2, 3];
        draws.shuffle(&mut order);
        let factors = [self.brightness, self.contrast, self.saturation]
            .map(|strength| draws.uniform([(1.0 - strength).max(0.0), 1.0 + strength]) as f32);
        let turn = draws.uniform([-self.hue, self.hue]);
        for step in order {
            image = match step {
                0 if self.brightness > 0.0 => colour::brightness(image, factors[0]),
                1 if self.contrast > 0.0 => colour::contrast(image, factors[1]),
                2 if self.saturation > 0.0 => colour::saturation(image, factors[2]),
                3 if self.hue > 0.0 => colour::hue(image, turn),
                _ => image,
            };
        }
        Ok(image)
    }
}

/// Grey instead of colours, sometimes.
#[derive(Config, Debug, PartialEq)]
pub struct RandomGrayscale {
    /// How often.
    #[config(default = 0.1)]
    pub probability: f64,
}

impl Transform for RandomGrayscale {
    fn check(&self) -> Result<()> {
        check_share("RandomGrayscale", "probability", self.probability)
    }

    fn apply(&self, image: RgbImage, draws: &mut Draws) -> Result<RgbImage> {
        Ok(if draws.happens(self.probability) { colour::each(image, |pixel| [colour::grey(pixel); 3]) } else { image })
    }
}

/// The negative of all bytes from a threshold on, sometimes.
#[derive(Config, Debug, PartialEq)]
pub struct RandomSolarize {
    /// The smallest byte that is turned.
    #[config(default = 128)]
    pub threshold: u8,
    /// How often.
    #[config(default = 0.5)]
    pub probability: f64,
}

impl Transform for RandomSolarize {
    fn check(&self) -> Result<()> {
        check_share("RandomSolarize", "probability", self.probability)
    }

    fn apply(&self, image: RgbImage, draws: &mut Draws) -> Result<RgbImage> {
        let is_turned = draws.happens(self.probability);
        Ok(if is_turned { colour::solarize(image, self.threshold.into()) } else { image })
    }
}

/// All of some transforms, sometimes.
#[derive(Clone, Debug)]
pub struct RandomApply {
    /// What happens.
    pub transforms: Transforms,
    /// How often.
    pub probability: f64,
}

impl RandomApply {
    /// These, so often.
    pub fn new(transforms: Transforms, probability: f64) -> Self {
        Self { transforms, probability }
    }
}

impl Transform for RandomApply {
    fn check(&self) -> Result<()> {
        check_share("RandomApply", "probability", self.probability)
    }

    fn apply(&self, image: RgbImage, draws: &mut Draws) -> Result<RgbImage> {
        if draws.happens(self.probability) { self.transforms.apply(image, draws) } else { Ok(image) }
    }
}

#[cfg(test)]
mod tests {
    use ::image::Rgb;

    use super::*;

    fn image() -> RgbImage {
        RgbImage::from_fn(6, 5, |x, y| Rgb([40 * x as u8, 50 * y as u8, 120]))
    }

    #[test]
    fn what_has_no_strength_changes_nothing() {
        for sample in 0..8 {
            let mut draws = Draws::new(1, sample, 0);
            assert_eq!(ColorJitter::new().apply(image(), &mut draws).unwrap(), image());
            let changed = ColorJitter::new().with_brightness(0.8).apply(image(), &mut draws).unwrap();
            assert_ne!(changed, image());
        }
    }

    #[test]
    fn what_happens_sometimes_happens_so_often() {
        let grey = |probability: f64, sample| {
            let transform = RandomGrayscale::new().with_probability(probability);
            transform.apply(image(), &mut Draws::new(1, sample, 0)).unwrap() != image()
        };
        let often = |probability| (0..400).filter(|sample| grey(probability, *sample)).count();
        assert_eq!([often(0.0), often(1.0)], [0, 400]);
        assert!((70..130).contains(&often(0.25)), "{}", often(0.25));
        let solarized = |probability: f64| {
            let transforms = Transforms::new().then(RandomSolarize::new().with_probability(1.0)).unwrap();
            RandomApply::new(transforms, probability).apply(image(), &mut Draws::new(1, 0, 0)).unwrap()
        };
        assert_eq!(solarized(0.0), image());
        assert_eq!(solarized(1.0).get_pixel(5, 4).0, [55, 55, 120]);
    }

    #[test]
    fn impossible_settings_are_refused_by_name() {
        let message = |transform: &dyn Transform| transform.check().unwrap_err().to_string();
        assert!(message(&ColorJitter::new().with_contrast(-0.1)).contains("ColorJitter: `contrast` is -0.1"));
        assert!(message(&ColorJitter::new().with_hue(0.6)).contains("`hue` is 0.6; it should be from 0 to 0.5"));
        assert!(message(&RandomGrayscale::new().with_probability(-1.0)).contains("`probability` is -1"));
        assert!(message(&RandomApply::new(Transforms::new(), 2.0)).contains("RandomApply: `probability` is 2"));
    }
}
