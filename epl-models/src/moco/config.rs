//! The shape of a MoCo.

use burn::config::Config;
use burn::nn::Initializer;
use epl_core::{AverageDecay, Error, Result};
use epl_modules::TransformerLayerConfig;

use crate::vit::ViTConfig;

/// The shape of a MoCo. The defaults are those of the paper's ViT-B.
///
/// ```
/// use epl_models::{MocoConfig, ViTConfig};
/// let config = MocoConfig::new(ViTConfig::base(1000), 300 * 312);
/// assert_eq!((config.dim, config.momentum), (256, 0.99));
/// ```
#[derive(Config, Debug, PartialEq)]
pub struct MocoConfig {
    /// The encoder. What it says of classes, labels, positions and first values does not count: positions are sines and cosines,
    /// and weights begin as Xavier's.
    pub encoder: ViTConfig,
    /// The steps of the whole run, over which the momentum rises to 1; from there on the momentum encoder stays.
    pub steps: u64,
    /// The width of queries and keys.
    #[config(default = 256)]
    pub dim: usize,
    /// The width inside the projector and the predictor.
    #[config(default = 4096)]
    pub mlp_dim: usize,
    /// How much of the momentum encoder stays in the first step; then more, along half a cosine.
    #[config(default = 0.99)]
    pub momentum: f64,
    /// What the cosines of queries and keys are divided by.
    #[config(default = 0.2)]
    pub temperature: f64,
    /// Whether the product of the patches stays as it begins, without which training is not stable, as the paper found.
    #[config(default = true)]
    pub frozen_projection: bool,
}

impl MocoConfig {
    /// Checks the numbers. How the model fits a layout, its layers check.
    ///
    /// # Errors
    ///
    /// The first number that cannot be, with what it should be.
    pub fn validate(&self) -> Result<()> {
        self.encoder().validate()?;
        let invalid = |message: String| Err(Error::invalid(format!("MoCo: {message}")));
        let counts = [("steps", self.steps), ("dim", self.dim as u64), ("mlp_dim", self.mlp_dim as u64)];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return invalid(format!("`{name}` is 0; it should be at least 1"));
        }
        if !(self.temperature.is_finite() && self.temperature > 0.0) {
            return invalid(format!("`temperature` is {}; it should be a finite number above 0", self.temperature));
        }
        match (0.0..=1.0).contains(&self.momentum) {
            true => Ok(()),
            false => invalid(format!("`momentum` is {}; it should be at least 0 and at most 1", self.momentum)),
        }
    }

    /// The encoder as it is built. The product of the patches begins with the deviation of Xavier, and so does the class
    /// token, whose norm would magnify what is near zero (in the authors' program it has a deviation of 1e-6, and norms an epsilon as large).
    pub(super) fn encoder(&self) -> ViTConfig {
        let encoder = self.encoder.clone().with_fixed_positions(true);
        let fans = encoder.patch_size.pow(2) * encoder.channels + encoder.d_model;
        encoder.with_deviation((2.0 / fans as f64).sqrt())
    }

    /// A layer of the encoder.
    pub(super) fn layer(&self) -> TransformerLayerConfig {
        self.encoder().layer().with_initializer(Some(Initializer::XavierUniform { gain: 1.0 }))
    }

    /// How the momentum encoder follows.
    pub(super) fn decay(&self) -> AverageDecay {
        AverageDecay::Cosine { first: self.momentum, steps: self.steps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_numbers_are_refused_by_name() {
        let config = || MocoConfig::new(ViTConfig::shapes(2), 10);
        let message = |config: MocoConfig| config.validate().unwrap_err().to_string();
        assert!(config().validate().is_ok());
        assert!(message(MocoConfig::new(ViTConfig::shapes(0), 10)).contains("`classes` is 0"));
        assert!(message(MocoConfig::new(ViTConfig::shapes(2), 0)).contains("`steps` is 0; it should be at least 1"));
        assert!(message(config().with_mlp_dim(0)).contains("`mlp_dim` is 0"));
        assert!(
            message(config().with_temperature(0.0)).contains("`temperature` is 0; it should be a finite number above")
        );
        assert!(message(config().with_temperature(f64::NAN)).contains("`temperature` is NaN"));
        assert!(
            message(config().with_momentum(1.5)).contains("`momentum` is 1.5; it should be at least 0 and at most 1")
        );
        let odd = MocoConfig::new(ViTConfig::shapes(2).with_d_model(66).with_heads(3), 10);
        assert!(message(odd).contains("`d_model` 66 is no multiple of 4"), "of sines and cosines of two coordinates");
    }
}
