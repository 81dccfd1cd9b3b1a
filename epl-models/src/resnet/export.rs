//! A ResNet into a folder of Hugging Face.

use std::path::Path;

use burn::tensor::TensorData;
use epl_core::tensors::WholeTensors;
use serde_json::{Map, Value, json};

use super::config::{ResNetConfig, ResNetLayer};
use super::names::ResNetNames;
use crate::huggingface::{Error, Exported, Names, Result, Source, class_names, export, stage_names};

/// What `transformers` adds to the variance inside its norms, and cannot be told.
const EPSILON: f64 = 1e-5;

/// Writes a folder that `ResNetForImageClassification` loads, running statistics included. `tensors` are the whole
/// parameters by path, such as the engine's [`parameters`](epl_core::Engine::parameters), of a class layer of any layout.
///
/// PyTorch's norms count the batches that they saw, which nothing here does: the count is written as 0. It matters only for
/// an average over all batches (`momentum=None`), which `transformers` does not take.
///
/// ```
/// use epl_core::{Config, launch};
/// use epl_models::{ResNetConfig, resnet};
///
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// let shape = ResNetConfig::tiny(4).with_embedding_size(4).with_hidden_sizes(vec![4, 8, 8]);
/// launch(&Config::new().with("cluster.ranks", 1)?, |epl| {
///     let parameters = epl.build(|at| shape.init(at))?.parameters()?;
///     resnet::export(&shape, &parameters, &folder)?;
///
///     let (stored, found) = resnet::open(&folder)?;
///     let built = epl.build(|at| found.init(at))?;
///     let built = built.try_map(|model, plan| Ok(resnet::load(model, plan.records(), &stored)?))?;
///     assert_eq!(built.parameters()?, parameters);
///     Ok(())
/// })?;
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// # Errors
///
/// As [`ResNetConfig::to_huggingface`] and [`export::save`].
pub fn export(config: &ResNetConfig, tensors: &impl WholeTensors, folder: impl AsRef<Path>) -> Result<()> {
    let parameters = export::parameters(|place| config.init(place))?;
    let counted = parameters.iter().filter_map(|(path, _)| match ResNetNames.source(path) {
        Some(Source::Same(name)) => {
            name.strip_suffix(".running_mean").map(|norm| format!("{norm}.num_batches_tracked"))
        }
        _ => None,
    });
    let constants = counted.map(|name| (name, TensorData::new(vec![0_i64], [0_usize; 0]))).collect();
    let exported =
        Exported { config: config.to_huggingface()?, names: &ResNetNames, parameters, copies: Vec::new(), constants };
    export::save(folder, exported, tensors)
}

impl ResNetConfig {
    /// The keys of a `config.json`: what [`from_huggingface`](Self::from_huggingface) reads.
    ///
    /// Left out is what only training reads and `transformers` has not: `momentum`, `statistics`, `fixed_statistics` and
    /// `label_smoothing`.
    ///
    /// # Errors
    ///
    /// [`Error::Export`] when `epsilon` is not 1e-5.
    pub fn to_huggingface(&self) -> Result<Map<String, Value>> {
        self.validate().map_err(Error::core)?;
        if self.epsilon != EPSILON {
            let reason = format!("is {:e}, and `transformers` adds {EPSILON:e}, whatever is asked for", self.epsilon);
            return Err(Error::export("epsilon", reason));
        }
        let layer = match self.layer {
            ResNetLayer::Basic => "basic",
            ResNetLayer::Bottleneck => "bottleneck",
        };
        let keys = json!({
            "model_type": "resnet",
            "architectures": ["ResNetForImageClassification"],
            "problem_type": "single_label_classification",
            "num_channels": self.channels,
            "embedding_size": self.embedding_size,
            "hidden_sizes": self.hidden_sizes,
            "depths": self.depths,
            "layer_type": layer,
            "hidden_act": "relu",
            "downsample_in_first_stage": self.downsample_in_first_stage,
            "downsample_in_bottleneck": self.downsample_in_bottleneck,
        });
        let Value::Object(mut keys) = keys else { return Ok(Map::new()) };
        keys.append(&mut stage_names(self.depths.len()));
        keys.append(&mut class_names(self.classes));
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_epsilon_is_named() {
        assert!(ResNetConfig::tiny(5).to_huggingface().is_ok());
        let error = ResNetConfig::tiny(5).with_epsilon(1e-3).to_huggingface().unwrap_err().to_string();
        assert!(error.contains("`epsilon` is 1e-3, and `transformers` adds 1e-5"), "{error}");
    }
}
