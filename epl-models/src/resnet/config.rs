//! The shape of a ResNet.

use burn::config::Config;
use epl_core::{Error, Result};
use epl_modules::BatchStatistics;
use serde::{Deserialize, Serialize};

/// What a residual layer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResNetLayer {
    /// Two convolutions 3×3: ResNet-18 and 34.
    Basic,
    /// Convolutions 1×1, 3×3, 1×1, of which the middle one is four times narrower: ResNet-50 and deeper.
    Bottleneck,
}

/// How many times narrower a bottleneck is inside.
pub(super) const REDUCTION: usize = 4;

/// The shape of a ResNet. The defaults are those of Hugging Face: ResNet-50.
///
/// ```
/// use epl_models::ResNetConfig;
/// let config = ResNetConfig::resnet18(20).with_label_smoothing(0.1);
/// assert_eq!(ResNetConfig::preset("resnet50", 1000)?, ResNetConfig::new(1000));
/// # Ok::<(), epl_core::Error>(())
/// ```
///
/// *Deep Residual Learning for Image Recognition*, He et al., 2015.
#[derive(Config, Debug, PartialEq)]
pub struct ResNetConfig {
    /// The number of classes.
    pub classes: usize,
    /// The channels of an image.
    #[config(default = 3)]
    pub channels: usize,
    /// The channels behind the stem.
    #[config(default = 64)]
    pub embedding_size: usize,
    /// The channels behind each stage.
    #[config(default = "vec![256, 512, 1024, 2048]")]
    pub hidden_sizes: Vec<usize>,
    /// The residual layers of each stage.
    #[config(default = "vec![3, 4, 6, 3]")]
    pub depths: Vec<usize>,
    /// What a residual layer is made of.
    #[config(default = "ResNetLayer::Bottleneck")]
    pub layer: ResNetLayer,
    /// Whether the first stage halves height and width too, as the others do.
    #[config(default = false)]
    pub downsample_in_first_stage: bool,
    /// Whether a bottleneck halves them in its first convolution; otherwise in its second.
    #[config(default = false)]
    pub downsample_in_bottleneck: bool,
    /// Added to the variance inside the norms.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// The share of a batch's statistics in the running ones.
    #[config(default = 0.1)]
    pub momentum: f64,
    /// Over which rows the norms take mean and variance in training.
    #[config(default = "BatchStatistics::Global")]
    pub statistics: BatchStatistics,
    /// Whether the norms use the running statistics in training too, and leave them as they are: for fine-tuning.
    #[config(default = false)]
    pub fixed_statistics: bool,
    /// The share of a label that is spread over all classes in training.
    #[config(default = 0.0)]
    pub label_smoothing: f64,
}

/// The names that [`ResNetConfig::preset`] knows.
const PRESETS: [(&str, fn(usize) -> ResNetConfig); 6] = [
    ("tiny", ResNetConfig::tiny),
    ("resnet18", ResNetConfig::resnet18),
    ("resnet34", ResNetConfig::resnet34),
    ("resnet50", ResNetConfig::resnet50),
    ("resnet101", ResNetConfig::resnet101),
    ("resnet152", ResNetConfig::resnet152),
];

impl ResNetConfig {
    /// Three stages of one layer: for images of 32×32 pixels and a training run of minutes on two cores.
    pub fn tiny(classes: usize) -> Self {
        Self::basic(classes, [1, 1, 1]).with_embedding_size(16).with_hidden_sizes(vec![16, 32, 64])
    }

    /// 18 layers with weights.
    pub fn resnet18(classes: usize) -> Self {
        Self::basic(classes, [2, 2, 2, 2])
    }

    /// 34 layers with weights.
    pub fn resnet34(classes: usize) -> Self {
        Self::basic(classes, [3, 4, 6, 3])
    }

    /// 50 layers with weights.
    pub fn resnet50(classes: usize) -> Self {
        Self::new(classes)
    }

    /// 101 layers with weights.
    pub fn resnet101(classes: usize) -> Self {
        Self::new(classes).with_depths(vec![3, 4, 23, 3])
    }

    /// 152 layers with weights.
    pub fn resnet152(classes: usize) -> Self {
        Self::new(classes).with_depths(vec![3, 8, 36, 3])
    }

    fn basic<const STAGES: usize>(classes: usize, depths: [usize; STAGES]) -> Self {
        let shape = Self::new(classes).with_layer(ResNetLayer::Basic).with_depths(depths.to_vec());
        shape.with_hidden_sizes(vec![64, 128, 256, 512])
    }

    /// The names that [`preset`](Self::preset) knows.
    pub fn presets() -> Vec<&'static str> {
        PRESETS.iter().map(|(name, _)| *name).collect()
    }

    /// A known shape, by name.
    ///
    /// # Errors
    ///
    /// For another name, with those that there are.
    pub fn preset(name: &str, classes: usize) -> Result<Self> {
        let known = PRESETS.iter().find(|(known, _)| *known == name);
        let unknown =
            || Error::invalid(format!("there is no ResNet `{name}`; there are {}", Self::presets().join(", ")));
        known.map(|(_, config)| config(classes)).ok_or_else(unknown)
    }

    /// The features of an image: the channels behind the last stage.
    pub fn features(&self) -> usize {
        self.hidden_sizes.last().copied().unwrap_or(self.embedding_size)
    }

    /// Checks the numbers. How the model fits a layout, its layers check.
    ///
    /// # Errors
    ///
    /// The first number that cannot be, with what it should be.
    pub fn validate(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::invalid(format!("ResNet: {message}")));
        let counts = [("classes", self.classes), ("channels", self.channels), ("embedding_size", self.embedding_size)];
        let sizes = self.hidden_sizes.iter().map(|size| ("hidden_sizes", *size));
        let depths = self.depths.iter().map(|depth| ("depths", *depth));
        if let Some((name, _)) = counts.into_iter().chain(sizes).chain(depths).find(|(_, count)| *count == 0) {
            return invalid(format!("`{name}` is or has 0; it should be at least 1"));
        }
        let (sizes, depths) = (self.hidden_sizes.len(), self.depths.len());
        if sizes != depths || sizes == 0 {
            return invalid(format!(
                "{sizes} hidden sizes and {depths} depths; give one of each for every stage, and one stage at least"
            ));
        }
        let narrow = self.hidden_sizes.iter().find(|size| !size.is_multiple_of(REDUCTION));
        if let (Some(size), ResNetLayer::Bottleneck) = (narrow, self.layer) {
            return invalid(format!("`hidden_sizes` has {size}; a bottleneck needs a multiple of {REDUCTION}"));
        }
        if !(0.0..1.0).contains(&self.label_smoothing) {
            let smoothing = self.label_smoothing;
            return invalid(format!("`label_smoothing` is {smoothing}; it should be at least 0 and below 1"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_possible_and_an_unknown_name_lists_them() {
        for name in ResNetConfig::presets() {
            assert!(ResNetConfig::preset(name, 7).unwrap().validate().is_ok(), "{name}");
        }
        let message = ResNetConfig::preset("resnet20", 7).unwrap_err().to_string();
        assert!(message.contains("no ResNet `resnet20`; there are tiny, resnet18"), "{message}");
    }

    #[test]
    fn impossible_numbers_are_refused_by_name() {
        let message = |config: ResNetConfig| config.validate().unwrap_err().to_string();
        assert!(message(ResNetConfig::new(0)).contains("`classes` is or has 0"));
        assert!(message(ResNetConfig::new(5).with_depths(vec![3, 0, 6, 3])).contains("`depths` is or has 0"));
        assert!(message(ResNetConfig::new(5).with_depths(vec![3])).contains("4 hidden sizes and 1 depths"));
        assert!(message(ResNetConfig::tiny(5).with_depths(vec![]).with_hidden_sizes(vec![])).contains("0 hidden"));
        let narrow = ResNetConfig::new(5).with_hidden_sizes(vec![8, 16, 30, 32]);
        assert!(message(narrow.clone()).contains("has 30; a bottleneck needs a multiple of 4"));
        assert!(narrow.with_layer(ResNetLayer::Basic).validate().is_ok());
        assert!(message(ResNetConfig::new(5).with_label_smoothing(1.0)).contains("`label_smoothing` is 1"));
    }
}
