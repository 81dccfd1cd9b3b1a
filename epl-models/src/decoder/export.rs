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
/// ```
/// use epl_core::{Config, launch};
/// use epl_models::decoder::{self, DecoderConfig};
///
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// # let folder = folder.path().join("small");
/// let shape = DecoderConfig::new(50).with_d_model(16).with_d_ff(32).with_heads(2).with_layers(2).with_positions(32);
/// launch(&Config::new().with("cluster.ranks", 1)?, |epl| {
///     let parameters = epl.build(|at| shape.init(at))?.parameters()?;
///     decoder::export(&shape, &parameters, &folder)?;
///
///     let (stored, shape) = decoder::open(&folder)?;
///     let built = epl.build(|at| shape.init(at))?;
///     let built = built.try_map(|model, plan| Ok(decoder::load(model, plan.records(), &stored)?))?;
///     assert_eq!(built.parameters()?, parameters);
///     Ok(())
/// })?;
/// # Ok::<_, epl_core::Error>(())
/// ```
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
    fn windows_come_back_and_are_the_defaults_of_the_architecture() {
        let preset = |name: &str| DecoderConfig::preset(name).unwrap();
        let windows = |keys: &Map<String, Value>| parsed(keys).unwrap().windows;
        let alternate = vec![Some(64), None];
        let late: Vec<Option<usize>> = (0..28).map(|layer| (layer >= 20).then_some(64)).collect();
        for (name, some) in [
            ("gemma2-2b", vec![]),
            ("gemma2-2b", alternate.clone()),
            ("gemma2-2b", vec![None, None, Some(7)]),
            ("qwen3-0.6b", alternate.clone()),
            ("qwen3-0.6b", late.clone()),
            ("qwen3-30b-a3b", vec![Some(64)]),
            ("mixtral-8x7b", vec![Some(64)]),
        ] {
            let keys = preset(name).with_windows(some.clone()).to_huggingface().unwrap();
            assert_eq!(windows(&keys), some, "{name}");
        }
        let mut gemma2 = preset("gemma2-2b").to_huggingface().unwrap();
        gemma2.retain(|key, _| !["sliding_window", "layer_types", "attn_logit_softcapping"].contains(&&**key));
        gemma2.insert("final_logit_softcapping".into(), Value::Null);
        let found = parsed(&gemma2).unwrap();
        assert_eq!(found.windows, [Some(4096), None]);
        assert_eq!((found.attention_softcap, found.logit_softcap), (Some(50.0), None));
        let mut qwen3 = preset("qwen3-0.6b").with_windows(alternate).to_huggingface().unwrap();
        qwen3.remove("layer_types");
        qwen3.insert("max_window_layers".into(), 20.into());
        assert_eq!(windows(&qwen3), late);
        qwen3.insert("use_sliding_window".into(), false.into());
        assert_eq!(windows(&qwen3), []);
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
            ("llama3-8b", "use_sliding_window", true.into(), "`use_sliding_window` is true; every position of a Llama"),
            (
                "qwen3-0.6b",
                "layer_types",
                vec!["sliding_attention"].into(),
                "`layer_types` has 1 entries for 28 layers",
            ),
            ("qwen3-0.6b", "layer_types", vec!["sliding_attention"; 28].into(), "`sliding_window` is none"),
            (
                "gemma2-2b",
                "layer_types",
                vec!["chunked_attention"; 26].into(),
                "`layer_types` has a `chunked_attention`",
            ),
            ("gemma2-2b", "sliding_window", Value::Null, "`sliding_window` is none, and `layer_types` has a"),
            ("gemma2-2b", "use_bidirectional_attention", true.into(), "`use_bidirectional_attention` is true"),
            ("mixtral-8x7b", "router_jitter_noise", 0.1.into(), "`router_jitter_noise` is not 0"),
            ("mixtral-8x7b", "layer_types", vec!["sliding_attention"; 32].into(), "`layer_types` differs from"),
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
