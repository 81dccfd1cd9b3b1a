//! A decoder into a folder of Hugging Face.

use std::path::Path;

use epl_core::tensors::WholeTensors;
use serde_json::{Map, Value};

use super::architecture::Architecture;
use super::config::DecoderConfig;
use super::names::DecoderNames;
use super::{gpt2, llama};
use crate::huggingface::{Error, Exported, Result, export};

/// Writes a folder that `transformers` loads as the model of [`Architecture::of`]. `tensors` are the whole parameters by path:
/// an engine's [`parameters`](epl_core::Engine::parameters), or those of a [model](epl_core::LaidOutModel::parameters) that was
/// not trained.
///
/// # Errors
///
/// As [`DecoderConfig::to_huggingface`] and [`export::save`].
pub fn export(config: &DecoderConfig, tensors: &impl WholeTensors, folder: impl AsRef<Path>) -> Result<()> {
    let exported = Exported {
        config: config.to_huggingface()?,
        names: &DecoderNames::written(Architecture::of(config)?, config),
        parameters: export::parameters(|place| config.init(place))?,
        copies: Vec::new(),
        constants: Vec::new(),
    };
    export::save(folder, exported, tensors)
}

impl DecoderConfig {
    /// The keys of a `config.json`: what [`from_huggingface`](Self::from_huggingface) reads.
    ///
    /// Left out is what only training reads and `transformers` has not: `scaled_output`, the dropout of embeddings and parts of
    /// all but a GPT-2, the routers' z loss. A load-balancing loss over each sequence is none there: `output_router_logits` is
    /// false.
    ///
    /// # Errors
    ///
    /// [`Error::Export`] with the field that no architecture of `transformers` has together with the others.
    pub fn to_huggingface(&self) -> Result<Map<String, Value>> {
        self.validate().map_err(Error::core)?;
        Ok(match Architecture::of(self)? {
            Architecture::Gpt2 => gpt2::write(self),
            architecture => llama::write(self, architecture),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huggingface::JsonConfig;

    /// As a folder with these keys is read.
    fn parsed(keys: &Map<String, Value>) -> Result<DecoderConfig> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, Value::Object(keys.clone()).to_string()).unwrap();
        let json = JsonConfig::open(path)?;
        match Architecture::named(json.text("model_type")?).unwrap() {
            Architecture::Gpt2 => gpt2::read(&json),
            architecture => llama::read(&json, architecture),
        }
    }

    #[test]
    fn the_keys_of_every_preset_are_read_again() {
        for name in DecoderConfig::presets() {
            let config = DecoderConfig::preset(name).unwrap().with_pad(Some(7));
            let found = parsed(&config.to_huggingface().unwrap()).unwrap();
            // The keys of a Llama say how wide a head is, those of a Mixtral only where it is not the usual.
            let says = config.rotary.is_some() && !name.starts_with("mixtral");
            let said = says.then(|| config.head_width());
            assert_eq!(found, config.with_head_dim(said), "{name}");
        }
    }

    #[test]
    fn layers_without_experts_are_listed_or_counted() {
        let mut keys = DecoderConfig::preset("qwen3-30b-a3b").unwrap().to_huggingface().unwrap();
        keys.insert("mlp_only_layers".into(), vec![0, 5].into());
        keys.insert("decoder_sparse_step".into(), 12.into());
        let dense = |keys: &Map<String, Value>| parsed(keys).unwrap().experts.map(|experts| experts.dense_layers);
        let expected: Vec<usize> = (0..48).filter(|layer| ![11, 23, 35, 47].contains(layer)).collect();
        assert_eq!(dense(&keys), Some(expected));
        keys.insert("decoder_sparse_step".into(), 49.into());
        assert_eq!(dense(&keys), None, "no layer has experts");
        // What does not count in `transformers` is not learned here either.
        keys.insert("decoder_sparse_step".into(), 1.into());
        keys.insert("output_router_logits".into(), false.into());
        assert_eq!(parsed(&keys).unwrap().experts.map(|experts| experts.auxiliary), Some(0.0));
    }

    #[test]
    fn variants_that_compute_something_else_are_refused_by_key() {
        for (name, key, value, expected) in [
            ("gpt2", "scale_attn_weights", false.into(), "`scale_attn_weights` is false; a GPT-2 has true here"),
            ("gpt2", "add_cross_attention", true.into(), "`add_cross_attention` is true"),
            ("gpt2", "activation_function", "elu".into(), "`activation_function` is `elu`; supported are gelu, "),
            ("qwen3-0.6b", "use_sliding_window", true.into(), "`use_sliding_window` is true"),
            ("qwen3-0.6b", "layer_types", vec!["sliding_attention"].into(), "`layer_types` has a `sliding_attention`"),
            ("mixtral-8x7b", "router_jitter_noise", 0.1.into(), "`router_jitter_noise` is not 0"),
            ("mixtral-8x7b", "sliding_window", 4096.into(), "`sliding_window` is not null"),
            ("qwen3-30b-a3b", "decoder_sparse_step", 0.into(), "`decoder_sparse_step` is 0"),
            ("llama3-8b", "hidden_size", Value::Null, "`hidden_size` is null; it should be a count"),
        ] {
            let mut keys = DecoderConfig::preset(name).unwrap().to_huggingface().unwrap();
            keys.insert(key.to_string(), value);
            let error = parsed(&keys).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
