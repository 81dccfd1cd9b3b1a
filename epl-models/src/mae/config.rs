//! The shape of an MAE.

use burn::config::Config;
use epl_core::{Error, Result};

use crate::vit::ViTConfig;

/// The shape of an MAE. The defaults of the decoder are the paper's.
///
/// ```
/// use epl_models::{MaeConfig, ViTConfig};
/// let config = MaeConfig::new(ViTConfig::base(1000));
/// assert_eq!((config.encoder.patches(), config.kept()), (196, 49));
/// ```
#[derive(Config, Debug, PartialEq)]
pub struct MaeConfig {
    /// The encoder. What it says of classes, labels and positions does not count: positions are not learned; nor is anything
    /// dropped before its first layer. All weights start as a ViT's, the patches' too.
    pub encoder: ViTConfig,
    /// The width of the decoder's hidden states.
    #[config(default = 512)]
    pub decoder_d_model: usize,
    /// The width inside its feed-forward parts.
    #[config(default = 2048)]
    pub decoder_d_ff: usize,
    /// Its attention heads.
    #[config(default = 16)]
    pub decoder_heads: usize,
    /// Its layers.
    #[config(default = 8)]
    pub decoder_layers: usize,
    /// The share of the patches that the encoder does not see.
    #[config(default = 0.75)]
    pub hidden_share: f64,
    /// Whether the pixels of each patch are normalised before they are compared.
    #[config(default = false)]
    pub normalised_pixels: bool,
}

impl MaeConfig {
    /// Patches of an image that the encoder sees.
    pub fn kept(&self) -> usize {
        (self.encoder.patches() as f64 * (1.0 - self.hidden_share)) as usize
    }

    /// Numbers of a patch: its pixels in all channels.
    pub fn patch_numbers(&self) -> usize {
        self.encoder.patch_size.pow(2) * self.encoder.channels
    }

    /// Checks the numbers. How the model fits a layout, its layers check.
    ///
    /// # Errors
    ///
    /// The first number that cannot be, with what it should be.
    pub fn validate(&self) -> Result<()> {
        self.encoder().validate()?;
        let patches = self.encoder.patches();
        let invalid = |message: String| Err(Error::invalid(format!("MAE: {message}")));
        if !(0.0..1.0).contains(&self.hidden_share) || self.kept() == 0 || self.kept() == patches {
            let (share, kept) = (self.hidden_share, self.kept());
            return invalid(format!(
                "`hidden_share` is {share}: {kept} of {patches} patches stay; some must, and not all"
            ));
        }
        if self.normalised_pixels && self.patch_numbers() < 2 {
            return invalid(
                "`normalised_pixels` of patches of 1 number, which has no deviation; give larger patches".into(),
            );
        }
        self.decoder().validate().or_else(|error| invalid(format!("the decoder's numbers: {error}")))
    }

    /// The encoder as it is built.
    pub(super) fn encoder(&self) -> ViTConfig {
        self.encoder.clone().with_fixed_positions(true)
    }

    /// The decoder's layers and positions, as those of a ViT.
    pub(super) fn decoder(&self) -> ViTConfig {
        self.encoder()
            .with_d_model(self.decoder_d_model)
            .with_d_ff(self.decoder_d_ff)
            .with_heads(self.decoder_heads)
            .with_layers(self.decoder_layers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_numbers_are_refused_by_name() {
        let config = || MaeConfig::new(ViTConfig::shapes(2));
        let message = |config: MaeConfig| config.validate().unwrap_err().to_string();
        assert!(config().validate().is_ok());
        let no_patch = MaeConfig::new(ViTConfig::shapes(2).with_patch_size(0));
        assert!(message(no_patch).contains("`patch_size` is 0"));
        let one = MaeConfig::new(ViTConfig::shapes(2).with_patch_size(1).with_channels(1)).with_normalised_pixels(true);
        assert!(message(one).contains("`normalised_pixels` of patches of 1 number"));
        assert!(message(config().with_hidden_share(1.0)).contains("`hidden_share` is 1: 0 of 64 patches stay"));
        assert!(message(config().with_hidden_share(0.0)).contains("64 of 64 patches stay"));
        assert!(message(config().with_decoder_layers(0)).contains("the decoder's numbers: ViT: `layers` is 0"));
        let odd = config().with_decoder_d_model(66).with_decoder_heads(3);
        assert!(message(odd).contains("`d_model` 66 is no multiple of 4"), "of sines and cosines of two coordinates");
    }
}
