//! A ViT into a folder of Hugging Face.

use std::path::Path;

use epl_core::tensors::WholeTensors;
use serde_json::{Map, Value, json};

use super::config::ViTConfig;
use super::names::ViTNames;
use crate::huggingface::{Error, Exported, Result, activation_name, class_names, export};

/// Writes a folder that `ViTForImageClassification` loads. `tensors` are the whole parameters by path, such as the engine's
/// [`parameters`](epl_core::Engine::parameters), of a class layer of any layout.
///
/// # Errors
///
/// As [`ViTConfig::to_huggingface`] and [`export::save`].
pub fn export(config: &ViTConfig, tensors: &impl WholeTensors, folder: impl AsRef<Path>) -> Result<()> {
    let exported = Exported {
        config: config.to_huggingface()?,
        names: &ViTNames::written(),
        parameters: export::parameters(|place| config.init(place))?,
        copies: Vec::new(),
        constants: Vec::new(),
    };
    export::save(folder, exported, tensors)
}

impl ViTConfig {
    /// The keys of a `config.json`: what [`from_huggingface`](Self::from_huggingface) reads.
    ///
    /// Left out are `label_smoothing`, which only training reads and `transformers` has not, and `fixed_positions`: it learns them.
    ///
    /// # Errors
    ///
    /// When the configuration is none that can be.
    pub fn to_huggingface(&self) -> Result<Map<String, Value>> {
        self.validate().map_err(Error::core)?;
        let mut keys = self.shape_keys();
        keys.insert("model_type".into(), "vit".into());
        keys.insert("architectures".into(), vec!["ViTForImageClassification"].into());
        keys.insert("problem_type".into(), "single_label_classification".into());
        keys.append(&mut class_names(self.classes));
        Ok(keys)
    }

    /// The keys of what an image goes through before its classes.
    pub(crate) fn shape_keys(&self) -> Map<String, Value> {
        let keys = json!({
            "image_size": self.image_size,
            "patch_size": self.patch_size,
            "num_channels": self.channels,
            "hidden_size": self.d_model,
            "intermediate_size": self.d_ff,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "hidden_act": activation_name(self.activation),
            "hidden_dropout_prob": self.dropout,
            "attention_probs_dropout_prob": self.attention_dropout,
            "layer_norm_eps": self.epsilon,
            "initializer_range": self.deviation,
            "qkv_bias": true,
        });
        if let Value::Object(keys) = keys { keys } else { Map::new() }
    }
}
