//! Some operations by chance, all of one strength.

use ::image::RgbImage;
use burn::config::Config;

use super::draws::Draws;
use super::pipeline::Transform;
use super::setting::refused;
use super::{affine, blur, colour};
use crate::vision::error::Result;

/// Some operations by chance, one after the other, each as strong as all. Operations and strengths are those of torchvision.
///
/// *RandAugment: Practical automated data augmentation with a reduced search space*, Cubuk et al., 2019.
#[derive(Config, Debug, PartialEq)]
pub struct RandAugment {
    /// How many operations an image goes through.
    #[config(default = 2)]
    pub operations: usize,
    /// How strong they are, of the [`strengths`](Self::strengths) that there are.
    #[config(default = 9)]
    pub magnitude: usize,
    /// How many strengths there are, from nothing on.
    #[config(default = 31)]
    pub strengths: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
}

impl Operation {
    pub(super) const ALL: [Operation; 14] = [
        Operation::Identity,
        Operation::ShearX,
        Operation::ShearY,
        Operation::TranslateX,
        Operation::TranslateY,
        Operation::Rotate,
        Operation::Brightness,
        Operation::Color,
        Operation::Contrast,
        Operation::Sharpness,
        Operation::Posterize,
        Operation::Solarize,
        Operation::AutoContrast,
        Operation::Equalize,
    ];

    /// What it is at no strength and at the greatest one, for an image of these sides; none, if it has one strength.
    fn range(self, (width, height): (u32, u32)) -> Option<[f64; 2]> {
        const MOVES: f64 = 150.0 / 331.0;
        Some(match self {
            Self::Identity | Self::AutoContrast | Self::Equalize => return None,
            Self::ShearX | Self::ShearY => [0.0, 0.3],
            Self::TranslateX => [0.0, MOVES * f64::from(width)],
            Self::TranslateY => [0.0, MOVES * f64::from(height)],
            Self::Rotate => [0.0, 30.0],
            Self::Brightness | Self::Color | Self::Contrast | Self::Sharpness => [0.0, 0.9],
            Self::Posterize => [8.0, 4.0],
            Self::Solarize => [1.0, 0.0],
        })
    }

    /// Whether it goes either way.
    fn is_signed(self) -> bool {
        !matches!(self, Self::Identity | Self::AutoContrast | Self::Equalize | Self::Posterize | Self::Solarize)
    }

    pub(super) fn apply(self, image: RgbImage, by: f64) -> RgbImage {
        let sides = image.dimensions();
        let factor = (1.0 + by) as f32;
        match self {
            Self::Identity => image,
            Self::ShearX => affine::moved(&image, affine::shear_x(by)),
            Self::ShearY => affine::moved(&image, affine::shear_y(by)),
            Self::TranslateX => affine::moved(&image, affine::translate(by.trunc(), 0.0)),
            Self::TranslateY => affine::moved(&image, affine::translate(0.0, by.trunc())),
            Self::Rotate => affine::moved(&image, affine::rotate(by, sides)),
            Self::Brightness => colour::brightness(image, factor),
            Self::Color => colour::saturation(image, factor),
            Self::Contrast => colour::contrast(image, factor),
            Self::Sharpness => blur::sharpness(image, factor),
            Self::Posterize => colour::posterize(image, by.round_ties_even() as u32),
            Self::Solarize => colour::solarize(image, 255.0 * by),
            Self::AutoContrast => colour::auto_contrast(image),
            Self::Equalize => colour::equalize(image),
        }
    }
}

impl RandAugment {
    /// How strong an operation is; 0, if it has one strength.
    pub(super) fn strength(&self, operation: Operation, sides: (u32, u32)) -> f64 {
        let Some([none, all]) = operation.range(sides) else { return 0.0 };
        // In single precision, each rounded once, as PyTorch's `linspace`, whose second half counts from its end.
        let (none, all) = (none as f32, all as f32);
        let step = (all - none) / (self.strengths - 1) as f32;
        let strength = match self.magnitude < self.strengths / 2 {
            true => step.mul_add(self.magnitude as f32, none),
            false => step.mul_add(-((self.strengths - 1 - self.magnitude) as f32), all),
        };
        f64::from(strength)
    }
}

impl Transform for RandAugment {
    fn check(&self) -> Result<()> {
        if self.strengths < 2 {
            return refused("RandAugment", format!("`strengths` is {}; it should be at least 2", self.strengths));
        }
        match self.magnitude < self.strengths {
            true => Ok(()),
            false => {
                let (magnitude, strengths) = (self.magnitude, self.strengths);
                let reason = format!(
                    "`magnitude` is {magnitude} of {strengths} `strengths`, which count from 0; give a lower one"
                );
                refused("RandAugment", reason)
            }
        }
    }

    fn apply(&self, mut image: RgbImage, draws: &mut Draws) -> Result<RgbImage> {
        for _ in 0..self.operations {
            let operation = Operation::ALL[draws.below(Operation::ALL.len())];
            let strength = self.strength(operation, image.dimensions());
            let is_turned = operation.is_signed() && draws.happens(0.5);
            image = operation.apply(image, if is_turned { -strength } else { strength });
        }
        Ok(image)
    }
}
