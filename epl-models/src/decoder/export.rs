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
    /// Left out is what only training reads and `transformers` has not: `scaled_output`, and of a Llama or Qwen3 the dropout of
    /// embeddings and parts.
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
