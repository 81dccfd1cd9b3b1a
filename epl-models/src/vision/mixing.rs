//! Images that are mixed with others of their batch: mixup and cutmix.
//!
//! A row of the *global* batch is mixed with the row before it, and the first one with the last, as torchvision's `MixUp` and
//! `CutMix` mix the rows of a batch. Ranks and micro-batches read the sample before their first row for it, so that no layout changes
//! who is mixed with whom.

use burn::config::Config;
use burn::tensor::{Device, Tensor, TensorData};
use epl_core::data::{SampleBatcher, Samples};
use rand::Rng;
use rand_distr::Beta;

use super::augmented::Augmented;
use super::batch::{ImageBatch, ImageBatcher};
use super::error::{Error, Result};
use super::image::LabelledImage;
use super::transform::Draws;

/// The view whose draws say how rows are mixed; images are seen in others.
const MIXING: u64 = u64::MAX;

/// How images are mixed. The defaults, but for the first two, are timm's.
///
/// *mixup: Beyond Empirical Risk Minimization*, Zhang et al., 2017; *CutMix: Regularization Strategy to Train Strong Classifiers with
/// Localizable Features*, Yun et al., 2019.
#[derive(Config, Debug, PartialEq)]
pub struct Mixing {
    /// Both images are added, with shares of which one is drawn from Beta(α, α) with this α; 0: not so.
    #[config(default = 0.0)]
    pub mixup: f64,
    /// A rectangle of the other image is put into an image, whose share of the area is 1 − a number of Beta(α, α) with this α, where the
    /// rectangle lies in the image; 0: not so.
    #[config(default = 0.0)]
    pub cutmix: f64,
    /// How often images are mixed.
    #[config(default = 1.0)]
    pub probability: f64,
    /// How often by a rectangle, where both ways are asked for.
    #[config(default = 0.5)]
    pub switch_probability: f64,
    /// Whether each row draws for itself; otherwise all rows of a global batch are mixed in one way.
    #[config(default = false)]
    pub by_sample: bool,
}

impl Mixing {
    /// Looks at the numbers.
    ///
    /// # Errors
    ///
    /// The first one that cannot be, with what it should be.
    pub fn check(&self) -> Result<()> {
        let refused = |reason: String| Err(Error::Transform { transform: "Mixing", reason });
        for (name, alpha) in [("mixup", self.mixup), ("cutmix", self.cutmix)] {
            if !(alpha >= 0.0 && alpha.is_finite()) {
                return refused(format!("`{name}` is {alpha}; it should be at least 0"));
            }
        }
        if self.mixup == 0.0 && self.cutmix == 0.0 {
            return refused("`mixup` and `cutmix` are 0; give one of them, or mix nothing".into());
        }
        for (name, share) in [("probability", self.probability), ("switch_probability", self.switch_probability)] {
            if !(0.0..=1.0).contains(&share) {
                return refused(format!("`{name}` is {share}; it should be from 0 to 1"));
            }
        }
        Ok(())
    }

    /// How a row of images of that height and width is mixed.
    fn draw(&self, draws: &mut Draws, [height, width]: [usize; 2]) -> Mixture {
        if !draws.happens(self.probability) {
            return Mixture::Neither;
        }
        let both = self.mixup > 0.0 && self.cutmix > 0.0;
        let is_cut = if both { draws.happens(self.switch_probability) } else { self.cutmix > 0.0 };
        let alpha = if is_cut { self.cutmix } else { self.mixup };
        // It was checked that it is positive.
        let share = Beta::new(alpha, alpha).map_or(1.0, |beta| draws.generator().sample(beta));
        if !is_cut {
            return Mixture::Sum { share };
        }
        let half = |side: usize| (0.5 * (1.0 - share).sqrt() * side as f64) as usize;
        let mut part = |side: usize| {
            let (middle, half) = (draws.below(side), half(side));
            [middle.saturating_sub(half), (middle + half).min(side)]
        };
        let (columns, rows) = (part(width), part(height));
        Mixture::Part { rows, columns }
    }
}

/// How an image is mixed with another.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mixture {
    /// It is not.
    Neither,
    /// The sum of both, with the share of the first one.
    Sum { share: f64 },
    /// A part of the other one, from and up to these.
    Part { rows: [usize; 2], columns: [usize; 2] },
}

impl Mixture {
    /// Mixes another image into one, channel after channel; the share of the first one.
    fn mix(self, image: &mut [f32], other: &[f32], [height, width]: [usize; 2]) -> f64 {
        match self {
            Self::Neither => 1.0,
            Self::Sum { share } => {
                let (own, rest) = (share as f32, (1.0 - share) as f32);
                image.iter_mut().zip(other).for_each(|(pixel, other)| *pixel = own * *pixel + rest * other);
                share
            }
            Self::Part { rows, columns } => {
                let channels = image.chunks_exact_mut(height * width).zip(other.chunks_exact(height * width));
                for (image, other) in channels {
                    for row in rows[0]..rows[1] {
                        let part = row * width + columns[0]..row * width + columns[1];
                        image[part.clone()].copy_from_slice(&other[part]);
                    }
                }
                let area = (rows[1] - rows[0]) * (columns[1] - columns[0]);
                1.0 - area as f64 / (height * width) as f64
            }
        }
    }
}

/// Transforms images, normalises them and mixes them. Made by [`Augmented::mixed`].
#[derive(Clone, Debug)]
pub struct Mixed {
    images: Augmented<ImageBatcher>,
    mixing: Mixing,
}

impl Augmented<ImageBatcher> {
    /// Mixes the images, too: for training alone.
    ///
    /// # Errors
    ///
    /// As [`Mixing::check`].
    pub fn mixed(self, mixing: Mixing) -> Result<Mixed> {
        mixing.check()?;
        Ok(Mixed { images: self, mixing })
    }
}

impl SampleBatcher<LabelledImage, ImageBatch> for Mixed {
    fn partner(&self) -> Option<usize> {
        Some(1)
    }

    fn batch_samples(&self, samples: Samples<LabelledImage>, device: &Device) -> epl_core::Result<ImageBatch> {
        let Samples { all, rows, partners, first } = samples;
        let numbers: Vec<u64> = all[..rows].iter().map(|sample| sample.number).collect();
        let images = self.images.see(all)?;
        let batcher = self.images.batcher();
        batcher.check(&images);
        let (values, sides) = batcher.values(&images);
        let each = values.len() / images.len();
        let mut mixed = values[..rows * each].to_vec();
        let mix = |((row, image), partner): ((usize, &mut [f32]), &usize)| {
            let key = if self.mixing.by_sample { numbers[row] } else { first };
            let mixture = self.mixing.draw(&mut Draws::new(self.images.seed(), key, MIXING), sides);
            mixture.mix(image, &values[partner * each..(partner + 1) * each], sides)
        };
        let shares = mixed.chunks_exact_mut(each).enumerate().zip(&partners).map(mix).collect();
        let label = |row: usize| images[row].label as i64;
        let pixels = TensorData::new(mixed, [rows, 3, sides[0], sides[1]]);
        let batch = ImageBatch::new(Tensor::from_data(pixels, device), (0..rows).map(label).collect());
        Ok(batch.mixed_with(partners.into_iter().map(label).collect(), shares))
    }
}

#[cfg(test)]
mod tests {
    use epl_core::data::Sample;

    use super::*;
    use crate::vision::transform::Transforms;

    /// An image of one byte, which its class is, too.
    fn sample(number: u64, byte: u8) -> Sample<LabelledImage> {
        Sample { item: LabelledImage { pixels: vec![byte; 3 * 64], height: 8, width: 8, label: byte.into() }, number }
    }

    /// Two rows and the partner of the first one.
    fn batch(mixing: Mixing, first: u64) -> ImageBatch {
        let all = vec![sample(first + 4, 100), sample(first + 5, 20), sample(first + 3, 60)];
        let batcher = ImageBatcher::new(256).with_mean([0.0; 3]).with_deviation([1.0 / 255.0; 3]);
        let mixed = Augmented::new(batcher, Transforms::new(), 9).mixed(mixing).unwrap();
        mixed.batch_samples(Samples { all, rows: 2, partners: vec![2, 0], first }, &Device::default()).unwrap()
    }

    /// The pixels of a row, its classes and the share of the first one.
    fn row(batch: &ImageBatch, row: usize) -> (Vec<f64>, [i64; 2], f64) {
        let pixels: Vec<f64> = batch.pixels.to_data().iter().collect();
        let mixed = batch.mixed.as_ref().unwrap();
        let others: Vec<i64> = mixed.others.to_data().iter().collect();
        let each = pixels.len() / 2;
        (pixels[row * each..(row + 1) * each].to_vec(), [batch.host_labels[row], others[row]], mixed.shares[row])
    }

    #[test]
    fn a_sum_has_the_shares_of_its_labels() {
        let (mut shares, mut exchanged) = (Vec::new(), 0);
        for first in 0..60 {
            let batch = batch(Mixing::new().with_mixup(0.8), first);
            let rows = [row(&batch, 0), row(&batch, 1)];
            assert_eq!(rows[0].2, rows[1].2, "one share for the batch");
            for ((pixels, classes, share), pair) in rows.iter().zip([[100, 60], [20, 100]]) {
                // The class with the larger share stands first.
                assert!(*share >= 0.5 && (classes == &pair || classes == &[pair[1], pair[0]]));
                let expected = share * classes[0] as f64 + (1.0 - share) * classes[1] as f64;
                assert!(pixels.iter().all(|pixel| (pixel - expected).abs() < 1e-4), "{pixels:?}, not {expected}");
            }
            exchanged += usize::from(rows[0].1[0] == 60);
            shares.push(rows[0].2);
        }
        assert!((20..40).contains(&exchanged), "{exchanged} of 60 shares are below a half");
        // Of Beta(0.8, 0.8) the larger share is 0.77 in the mean.
        let mean = shares.iter().sum::<f64>() / 60.0;
        assert!((0.72..0.82).contains(&mean), "{mean}");
    }

    #[test]
    fn a_part_has_the_share_of_its_area() {
        let mut parts = Vec::new();
        for first in 0..40 {
            let batch = batch(Mixing::new().with_cutmix(1.0), first);
            let (pixels, classes, share) = row(&batch, 0);
            let of = |class: i64| pixels.iter().filter(|pixel| (**pixel - class as f64).abs() < 1e-4).count();
            let counts = classes.map(of);
            assert_eq!(counts[0] + counts[1], 3 * 64);
            assert!((counts[0] as f64 / 192.0 - share).abs() < 1e-9, "{counts:?}, {share}");
            parts.push(counts[1]);
        }
        assert!(parts.contains(&0) && parts.iter().any(|part| *part > 40), "{parts:?}");
        // As torchvision: half sides of ⌊0.5 √(1 − 0.51) · side⌋ around a middle, cut at the image's edges.
        let mut image = vec![0.0; 8 * 10];
        let share = Mixture::Part { rows: [0, 3], columns: [4, 10] }.mix(&mut image, &[1.0; 80], [8, 10]);
        assert_eq!((share, image.iter().sum::<f32>()), (1.0 - 18.0 / 80.0, 18.0));
        assert_eq!((image[3], image[4], image[29], image[34]), (0.0, 1.0, 1.0, 0.0));
    }

    #[test]
    fn rows_draw_for_themselves_where_they_are_to() {
        let both = Mixing::new().with_mixup(1.0).with_cutmix(1.0);
        let by_sample = |first| batch(both.clone().with_by_sample(true), first);
        assert!((0..5).any(|first| row(&by_sample(first), 0).2 != row(&by_sample(first), 1).2));
        let (pixels, classes, share) = row(&batch(both.clone().with_probability(0.0), 0), 0);
        assert!(pixels.iter().all(|pixel| (pixel - 100.0).abs() < 1e-4));
        assert_eq!((classes, share), ([100, 60], 1.0));
        let is_sum = |first| {
            let pixels = row(&batch(both.clone(), first), 0).0;
            pixels.iter().any(|pixel| (pixel - 100.0).abs() > 1e-3 && (pixel - 60.0).abs() > 1e-3)
        };
        let sums = (0..60).filter(|first| is_sum(*first)).count();
        assert!((18..42).contains(&sums), "{sums} of 60 are sums");
    }

    #[test]
    fn impossible_settings_are_refused_by_name() {
        let message = |mixing: Mixing| mixing.check().unwrap_err().to_string();
        assert!(message(Mixing::new()).contains("Mixing: `mixup` and `cutmix` are 0"));
        assert!(message(Mixing::new().with_mixup(-1.0)).contains("`mixup` is -1; it should be at least 0"));
        assert!(message(Mixing::new().with_cutmix(1.0).with_probability(2.0)).contains("`probability` is 2"));
    }
}
