//! The shape of a ViT.

use burn::config::Config;
use burn::nn::Initializer;
use epl_core::{Error, Result};
use epl_modules::{Activation, NormKind, NormOrder, TransformerLayerConfig};

/// The shape of a ViT. The defaults are those of Hugging Face: ViT-B/16 for images of 224×224 pixels.
///
/// ```
/// use epl_models::ViTConfig;
/// let config = ViTConfig::base(1000).with_patch_size(32);
/// assert_eq!(ViTConfig::preset("large", 1000)?.layers, 24);
/// assert_eq!(config.patches(), 49);
/// # Ok::<(), epl_core::Error>(())
/// ```
///
/// *An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale*, Dosovitskiy et al., 2020; "tiny" and "small" are
/// those of *Training data-efficient image transformers*, Touvron et al., 2020.
#[derive(Config, Debug, PartialEq)]
pub struct ViTConfig {
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
    #[config(default = 768)]
    pub d_model: usize,
    /// The width inside the feed-forward part.
    #[config(default = 3072)]
    pub d_ff: usize,
    /// Attention heads.
    #[config(default = 12)]
    pub heads: usize,
    /// Layers of the encoder.
    #[config(default = 12)]
    pub layers: usize,
    /// Whether positions are sines and cosines, as those of an [`Mae`](crate::Mae); otherwise they are learned.
    #[config(default = false)]
    pub fixed_positions: bool,
    /// The function inside the feed-forward part.
    #[config(default = "Activation::Gelu")]
    pub activation: Activation,
    /// Probability with which embeddings and the output of every part are dropped.
    #[config(default = 0.0)]
    pub dropout: f64,
    /// Probability with which attention weights are dropped.
    #[config(default = 0.0)]
    pub attention_dropout: f64,
    /// Added to the variance inside the norms.
    #[config(default = 1e-12)]
    pub epsilon: f64,
    /// The deviation of the weights' first values; biases start at zero.
    #[config(default = 0.02)]
    pub deviation: f64,
    /// The share of a label that is spread over all classes in training.
    #[config(default = 0.0)]
    pub label_smoothing: f64,
}

/// The names that [`ViTConfig::preset`] knows.
const PRESETS: [(&str, fn(usize) -> ViTConfig); 6] = [
    ("shapes", ViTConfig::shapes),
    ("tiny", ViTConfig::tiny),
    ("small", ViTConfig::small),
    ("base", ViTConfig::base),
    ("large", ViTConfig::large),
    ("huge", ViTConfig::huge),
];

impl ViTConfig {
    /// 4 layers of 64 with 4 heads, for images of 32×32 pixels in patches of 4×4: to learn coloured shapes within minutes on two
    /// cores.
    pub fn shapes(classes: usize) -> Self {
        Self::of(classes, [4, 64, 4]).with_image_size(32).with_patch_size(4)
    }

    /// ViT-Ti/16: 12 layers of 192 with 3 heads.
    pub fn tiny(classes: usize) -> Self {
        Self::of(classes, [12, 192, 3])
    }

    /// ViT-S/16: 12 layers of 384 with 6 heads.
    pub fn small(classes: usize) -> Self {
        Self::of(classes, [12, 384, 6])
    }

    /// ViT-B/16: 12 layers of 768 with 12 heads.
    pub fn base(classes: usize) -> Self {
        Self::new(classes)
    }

    /// ViT-L/16: 24 layers of 1024 with 16 heads.
    pub fn large(classes: usize) -> Self {
        Self::of(classes, [24, 1024, 16])
    }

    /// ViT-H/14: 32 layers of 1280 with 16 heads, in patches of 14×14 pixels.
    pub fn huge(classes: usize) -> Self {
        Self::of(classes, [32, 1280, 16]).with_patch_size(14)
    }

    fn of(classes: usize, [layers, d_model, heads]: [usize; 3]) -> Self {
        Self::new(classes).with_layers(layers).with_d_model(d_model).with_d_ff(4 * d_model).with_heads(heads)
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
        let unknown = || Error::invalid(format!("there is no ViT `{name}`; there are {}", Self::presets().join(", ")));
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
        let invalid = |message: String| Err(Error::invalid(format!("ViT: {message}")));
        let counts = [
            ("classes", self.classes),
            ("image_size", self.image_size),
            ("patch_size", self.patch_size),
            ("channels", self.channels),
            ("d_model", self.d_model),
            ("d_ff", self.d_ff),
            ("heads", self.heads),
            ("layers", self.layers),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return invalid(format!("`{name}` is 0; it should be at least 1"));
        }
        for (name, whole, parts, number) in [
            ("d_model", self.d_model, "heads", self.heads),
            ("image_size", self.image_size, "patch_size", self.patch_size),
        ] {
            if !whole.is_multiple_of(number) {
                return invalid(format!("`{name}` {whole} is no multiple of `{parts}` {number}"));
            }
        }
        if self.fixed_positions && !self.d_model.is_multiple_of(4) {
            let d_model = self.d_model;
            return invalid(format!("`d_model` {d_model} is no multiple of 4, as positions that are not learned need"));
        }
        let shares = [
            ("dropout", self.dropout),
            ("attention_dropout", self.attention_dropout),
            ("label_smoothing", self.label_smoothing),
        ];
        match shares.iter().find(|(_, share)| !(0.0..1.0).contains(share)) {
            Some((name, share)) => invalid(format!("`{name}` is {share}; it should be at least 0 and below 1")),
            None => Ok(()),
        }
    }

    /// How weights start.
    pub(crate) fn initializer(&self) -> Initializer {
        Initializer::Normal { mean: 0.0, std: self.deviation }
    }

    /// A layer of the encoder: norms before the parts, biases everywhere.
    pub(crate) fn layer(&self) -> TransformerLayerConfig {
        TransformerLayerConfig::new(self.d_model, self.heads, self.d_ff)
            .with_norm_order(NormOrder::Pre)
            .with_norm(NormKind::LayerNorm)
            .with_epsilon(self.epsilon)
            .with_activation(self.activation)
            .with_dropout(self.dropout)
            .with_attention_dropout(self.attention_dropout)
            .with_initializer(Some(self.initializer()))
            .with_bias_initializer(Some(Initializer::Zeros))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huggingface::export::parameter_count;

    /// The numbers of parameters that timm counts for 1,000 classes.
    #[test]
    fn published_sizes_have_as_many_parameters_as_published() {
        for (name, expected) in
            [("tiny", 5_717_416), ("small", 22_050_664), ("base", 86_567_656), ("large", 304_326_632)]
        {
            let config = ViTConfig::preset(name, 1000).unwrap();
            assert_eq!(parameter_count(|place| config.init(place)), expected, "{name}");
        }
    }

    #[test]
    fn every_preset_is_possible_and_an_unknown_name_lists_them() {
        for name in ViTConfig::presets() {
            assert!(ViTConfig::preset(name, 7).unwrap().validate().is_ok(), "{name}");
        }
        let message = ViTConfig::preset("giant", 7).unwrap_err().to_string();
        assert!(message.contains("no ViT `giant`; there are shapes, tiny, small, base, large, huge"), "{message}");
    }

    #[test]
    fn impossible_numbers_are_refused_by_name() {
        let message = |config: ViTConfig| config.validate().unwrap_err().to_string();
        assert!(message(ViTConfig::new(0)).contains("`classes` is 0"));
        assert!(message(ViTConfig::new(5).with_heads(7)).contains("`d_model` 768 is no multiple of `heads` 7"));
        let uneven = ViTConfig::new(5).with_patch_size(15);
        assert!(message(uneven).contains("`image_size` 224 is no multiple of `patch_size` 15"));
        let odd = ViTConfig::new(5).with_d_model(18).with_heads(3);
        assert!(odd.validate().is_ok());
        assert!(message(odd.with_fixed_positions(true)).contains("`d_model` 18 is no multiple of 4"));
        assert!(message(ViTConfig::new(5).with_label_smoothing(1.0)).contains("`label_smoothing` is 1"));
    }
}
