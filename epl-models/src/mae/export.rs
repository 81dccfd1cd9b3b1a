//! An MAE into a folder of Hugging Face.

use std::path::Path;

use epl_core::tensors::WholeTensors;
use serde_json::{Map, Value, json};

use super::config::MaeConfig;
use super::names::MaeNames;
use crate::huggingface::{Error, Exported, Result, export};

/// Writes a folder that `ViTMAEForPreTraining` loads. `tensors` are the whole parameters by path, such as the engine's
/// [`parameters`](epl_core::Engine::parameters).
///
/// # Errors
///
/// As [`MaeConfig::to_huggingface`] and [`export::save`].
pub fn export(config: &MaeConfig, tensors: &impl WholeTensors, folder: impl AsRef<Path>) -> Result<()> {
    let exported = Exported {
        config: config.to_huggingface()?,
        names: &MaeNames::written(),
        parameters: export::parameters(|place| config.init(place))?,
        copies: Vec::new(),
        constants: Vec::new(),
    };
    export::save(folder, exported, tensors)
}

impl MaeConfig {
    /// The keys of a `config.json`: what [`from_huggingface`](Self::from_huggingface) reads.
    ///
    /// # Errors
    ///
    /// When the configuration is none that can be.
    pub fn to_huggingface(&self) -> Result<Map<String, Value>> {
        self.validate().map_err(Error::core)?;
        let mut keys = self.encoder.shape_keys();
        let own = json!({
            "model_type": "vit_mae",
            "architectures": ["ViTMAEForPreTraining"],
            "decoder_hidden_size": self.decoder_d_model,
            "decoder_intermediate_size": self.decoder_d_ff,
            "decoder_num_attention_heads": self.decoder_heads,
            "decoder_num_hidden_layers": self.decoder_layers,
            "mask_ratio": self.hidden_share,
            "norm_pix_loss": self.normalised_pixels,
        });
        if let Value::Object(own) = own {
            keys.extend(own);
        }
        Ok(keys)
    }
}
