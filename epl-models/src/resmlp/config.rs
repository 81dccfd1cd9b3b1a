//! The shape of a ResMLP.

use burn::config::Config;
use burn::nn::Initializer;
use epl_core::{Error, Result};
use epl_modules::{Activation, ParallelMlpConfig, ReplicatedLinearConfig};

/// The shape of a ResMLP. The defaults are those of ResMLP-S12 for images of 224×224 pixels.
///
/// ```
/// use epl_models::ResMlpConfig;
/// let config = ResMlpConfig::s12(1000).with_drop_path(0.1);
/// assert_eq!(ResMlpConfig::preset("s24", 1000)?.layers, 24);
/// assert_eq!(config.patches(), 196);
/// # Ok::<(), epl_core::Error>(())
/// ```
///
/// *ResMLP: Feedforward networks for image classification with data-efficient training*, Touvron et al., 2021.
#[derive(Config, Debug, PartialEq)]
pub struct ResMlpConfig {
    /// The number of classes.
    pub classes: usize,
    /// The height and width of an image, in pixels.
    #[config(default = 224)]
    pub image_size: usize,
    /// The height and width of a patch, in pixels; it divides that of an image.
    #[config(default = 16)]
    pub patch_size: usize,
    /// The channels of an image.
    #[config(default = 3)]
    pub channels: usize,
    /// The width of the hidden states.
    #[config(default = 384)]
    pub d_model: usize,
    /// The width inside the feed-forward part.
    #[config(default = 1536)]
    pub d_ff: usize,
    /// Layers.
    #[config(default = 12)]
    pub layers: usize,
    /// What each part's output is multiplied by at first, channel by channel: the smaller, the more layers there are.
    #[config(default = 0.1)]
    pub layer_scale: f64,
    /// Probability with which a part is left out for a sample.
    #[config(default = 0.0)]
    pub drop_path: f64,
    /// The deviation of the weights' first values; biases start at zero.
    #[config(default = 0.02)]
    pub deviation: f64,
    /// The share of a label that is spread over all classes in training.
    #[config(default = 0.0)]
    pub label_smoothing: f64,
}

/// The names that [`ResMlpConfig::preset`] knows.
const PRESETS: [(&str, fn(usize) -> ResMlpConfig); 5] = [
    ("shapes", ResMlpConfig::shapes),
    ("s12", ResMlpConfig::s12),
    ("s24", ResMlpConfig::s24),
    ("s36", ResMlpConfig::s36),
    ("b24", ResMlpConfig::b24),
];

impl ResMlpConfig {
    /// 4 layers of 64, for images of 32×32 pixels in patches of 4×4: to learn coloured shapes within minutes on two cores.
    pub fn shapes(classes: usize) -> Self {
        Self::new(classes).with_layers(4).with_d_model(64).with_d_ff(256).with_image_size(32).with_patch_size(4)
    }

    /// ResMLP-S12: 12 layers of 384, 15 million parameters.
    pub fn s12(classes: usize) -> Self {
        Self::new(classes)
    }

    /// ResMLP-S24: 24 layers of 384, 30 million parameters.
    pub fn s24(classes: usize) -> Self {
        Self::new(classes).with_layers(24).with_layer_scale(1e-5)
    }

    /// ResMLP-S36: 36 layers of 384, 45 million parameters.
    pub fn s36(classes: usize) -> Self {
        Self::new(classes).with_layers(36).with_layer_scale(1e-6)
    }

    /// ResMLP-B24/8: 24 layers of 768, in patches of 8×8 pixels, 129 million parameters.
    pub fn b24(classes: usize) -> Self {
        let wide = Self::new(classes).with_layers(24).with_d_model(768).with_d_ff(3072);
        wide.with_patch_size(8).with_layer_scale(1e-6)
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
            || Error::invalid(format!("there is no ResMLP `{name}`; there are {}", Self::presets().join(", ")));
        known.map(|(_, config)| config(classes)).ok_or_else(unknown)
    }

    /// Patches of an image.
    pub fn patches(&self) -> usize {
        (self.image_size / self.patch_size).pow(2)
    }

    /// Checks the numbers. How the model fits a layout, its layers check.
    ///
    /// # Errors
    ///
    /// The first number that cannot be, with what it should be.
    pub fn validate(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::invalid(format!("ResMLP: {message}")));
        let counts = [
            ("classes", self.classes),
            ("image_size", self.image_size),
            ("patch_size", self.patch_size),
            ("channels", self.channels),
            ("d_model", self.d_model),
            ("d_ff", self.d_ff),
            ("layers", self.layers),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return invalid(format!("`{name}` is 0; it should be at least 1"));
        }
        if !self.image_size.is_multiple_of(self.patch_size) {
            let (image, patch) = (self.image_size, self.patch_size);
            return invalid(format!("`image_size` {image} is no multiple of `patch_size` {patch}"));
        }
        if !self.layer_scale.is_finite() {
            return invalid(format!("`layer_scale` is {}; it should be a number", self.layer_scale));
        }
        let shares = [("drop_path", self.drop_path), ("label_smoothing", self.label_smoothing)];
        match shares.iter().find(|(_, share)| !(0.0..1.0).contains(share)) {
            Some((name, share)) => invalid(format!("`{name}` is {share}; it should be at least 0 and below 1")),
            None => Ok(()),
        }
    }

    /// How weights start.
    pub(crate) fn initializer(&self) -> Initializer {
        Initializer::Normal { mean: 0.0, std: self.deviation }
    }

    /// A linear layer that each rank holds whole.
    pub(super) fn linear(&self, d_input: usize, d_output: usize) -> ReplicatedLinearConfig {
        let layer = ReplicatedLinearConfig::new(d_input, d_output).with_initializer(self.initializer());
        layer.with_bias_initializer(Some(Initializer::Zeros))
    }

    /// The feed-forward part of a layer.
    pub(super) fn feed_forward(&self) -> ParallelMlpConfig {
        ParallelMlpConfig::new(self.d_model, self.d_ff)
            .with_activation(Activation::Gelu)
            .with_dropout(0.0)
            .with_initializer(self.initializer())
            .with_bias_initializer(Some(Initializer::Zeros))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huggingface::export::parameter_count;

    #[test]
    fn every_preset_is_possible_and_an_unknown_name_lists_them() {
        for name in ResMlpConfig::presets() {
            assert!(ResMlpConfig::preset(name, 7).unwrap().validate().is_ok(), "{name}");
        }
        let message = ResMlpConfig::preset("s48", 7).unwrap_err().to_string();
        assert!(message.contains("no ResMLP `s48`; there are shapes, s12, s24, s36, b24"), "{message}");
    }

    /// The numbers of parameters that timm counts for 1,000 classes.
    #[test]
    fn published_sizes_have_as_many_parameters_as_published() {
        for (name, expected) in [("s12", 15_350_872), ("s24", 30_020_680), ("s36", 44_690_488), ("b24", 129_138_280)] {
            let config = ResMlpConfig::preset(name, 1000).unwrap();
            assert_eq!(parameter_count(|place| config.init(place)), expected, "{name}");
        }
    }

    #[test]
    fn impossible_numbers_are_refused_by_name() {
        let message = |config: ResMlpConfig| config.validate().unwrap_err().to_string();
        assert!(message(ResMlpConfig::new(0)).contains("`classes` is 0"));
        let uneven = ResMlpConfig::new(5).with_patch_size(15);
        assert!(message(uneven).contains("`image_size` 224 is no multiple of `patch_size` 15"));
        assert!(message(ResMlpConfig::new(5).with_drop_path(1.0)).contains("`drop_path` is 1"));
        assert!(message(ResMlpConfig::new(5).with_layer_scale(f64::NAN)).contains("`layer_scale` is NaN"));
    }
}
