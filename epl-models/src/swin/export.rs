//! A Swin transformer into a folder of Hugging Face.

use std::path::Path;

use epl_core::tensors::WholeTensors;
use serde_json::{Map, Value, json};

use super::config::{SwinConfig, SwinVersion};
use super::names::SwinNames;
use crate::huggingface::{Error, Exported, Result, activation_name, class_names, export, stage_names};

/// Writes a folder that `SwinForImageClassification`, or `Swinv2ForImageClassification`, loads. `tensors` are the whole parameters by
/// path, such as the engine's [`parameters`](epl_core::Engine::parameters), of a class layer of any layout.
///
/// # Errors
///
/// As [`SwinConfig::to_huggingface`] and [`export::save`].
pub fn export(config: &SwinConfig, tensors: &impl WholeTensors, folder: impl AsRef<Path>) -> Result<()> {
    let exported = Exported {
        config: config.to_huggingface()?,
        names: &SwinNames::written(config.version),
        parameters: export::parameters(|place| config.init(place))?,
        copies: Vec::new(),
        constants: Vec::new(),
    };
    export::save(folder, exported, tensors)
}

impl SwinConfig {
    /// The keys of a `config.json`: what [`from_huggingface`](Self::from_huggingface) reads.
    ///
    /// Left out is `label_smoothing`, which only training reads and `transformers` has not.
    ///
    /// # Errors
    ///
    /// When the configuration is none that can be; when a stage of V1 has a grid below its window, for which `transformers` has no
    /// biases.
    pub fn to_huggingface(&self) -> Result<Map<String, Value>> {
        self.validate().map_err(Error::core)?;
        let (model_type, class) = match self.version {
            SwinVersion::V1 => ("swin", "SwinForImageClassification"),
            SwinVersion::V2 => ("swinv2", "Swinv2ForImageClassification"),
        };
        if let (SwinVersion::V1, Some(grid)) = (self.version, self.grids().iter().find(|grid| **grid < self.window)) {
            let reason =
                format!("is {}, and `transformers` has no Swin with a grid of {grid} × {grid} for it", self.window);
            return Err(Error::export("window", reason));
        }
        let stages = self.depths.len();
        let learned = |stage| self.pretrained_windows.get(stage).copied().unwrap_or(0);
        let keys = json!({
            "model_type": model_type,
            "architectures": [class],
            "problem_type": "single_label_classification",
            "image_size": self.image_size,
            "patch_size": self.patch_size,
            "num_channels": self.channels,
            "embed_dim": self.embedding_size,
            "hidden_size": self.features(),
            "depths": self.depths,
            "num_layers": stages,
            "num_heads": self.heads,
            "window_size": self.window,
            "mlp_ratio": self.mlp_ratio,
            "use_absolute_embeddings": self.absolute_positions,
            "hidden_act": activation_name(self.activation),
            "hidden_dropout_prob": self.dropout,
            "attention_probs_dropout_prob": self.attention_dropout,
            "drop_path_rate": self.drop_path,
            "layer_norm_eps": self.epsilon,
            "initializer_range": self.deviation,
            "qkv_bias": true,
            "encoder_stride": 32,
        });
        let Value::Object(mut keys) = keys else { return Ok(Map::new()) };
        if self.version == SwinVersion::V2 {
            keys.insert("pretrained_window_sizes".into(), (0..stages).map(learned).collect());
        }
        keys.append(&mut stage_names(stages));
        keys.append(&mut class_names(self.classes));
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_that_transformers_has_not_are_named() {
        let small = SwinConfig::new(5).with_image_size(96);
        let error = small.to_huggingface().unwrap_err().to_string();
        assert!(error.contains("`window` is 7") && error.contains("a grid of 6 × 6"), "{error}");
        assert!(small.with_version(SwinVersion::V2).to_huggingface().is_ok());
    }
}
