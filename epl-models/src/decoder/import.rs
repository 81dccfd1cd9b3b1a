//! A decoder from a folder of Hugging Face.

use std::path::Path;

use epl_core::ParamRecord;

use super::architecture::Architecture;
use super::batch::DecoderItem;
use super::config::DecoderConfig;
use super::model::Decoder;
use super::names::{DecoderNames, architecture};
use super::{gpt2, llama};
use crate::huggingface::{self, Folder, Reference, Result};

impl DecoderConfig {
    /// The shape that a folder's `config.json` describes; the tokens that end a text are [`Folder::end_tokens`]. What experts
    /// learn is what they learn in `transformers`: their load-balancing loss counts where `output_router_logits` is true, and
    /// is [`Balance::Batch`](epl_modules::Balance::Batch).
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](huggingface::Error::Unsupported) for another architecture than those of [`Architecture`],
    /// [`Error::Config`](huggingface::Error::Config) for a value that this decoder has not.
    pub fn from_huggingface(folder: &Folder) -> Result<Self> {
        let json = folder.config();
        let architecture = architecture(folder)?;
        let config = match architecture {
            Architecture::Gpt2 => gpt2::read(json)?,
            architecture => llama::read(json, architecture)?,
        };
        let config = config.with_ends(folder.end_tokens(architecture.ends())?);
        let checked = config.validate();
        json.checked(config, checked)
    }
}

/// Fills a model from a folder, as in the example of [`export`](super::export()): every rank reads what its records, those of the
/// [plan](epl_core::Plan::records), say it holds.
///
/// # Errors
///
/// See [`huggingface::load`].
pub fn load(model: Decoder, records: &[ParamRecord], folder: &Folder) -> Result<Decoder> {
    let names = DecoderNames::new(folder, model.config())?;
    huggingface::load(model, records, folder, &names)
}

/// The stored inputs of a decoder as rows, with their labels.
///
/// # Errors
///
/// When an input is missing, or a row is padded: what padding writes is not compared.
pub fn reference_items(reference: &Reference) -> Result<Vec<DecoderItem>> {
    let (ids, labels) = (reference.rows("input_ids")?, reference.rows("labels")?);
    if labels.len() != ids.len() {
        return Err(reference.error(format!("{} rows of tokens and {} of labels", ids.len(), labels.len())));
    }
    if reference.has_input("attention_mask") {
        let masks = reference.rows("attention_mask")?;
        if let Some(mask) = masks.iter().find(|mask| mask.iter().any(|seen| *seen != 1)) {
            return Err(reference.error(format!("`attention_mask` {mask:?} is not all ones")));
        }
    }
    Ok(ids.into_iter().zip(labels).map(|(ids, labels)| DecoderItem { ids, labels }).collect())
}

/// Opens a folder whose architecture is one that is read here.
///
/// # Errors
///
/// As [`Folder::open`] and [`DecoderConfig::from_huggingface`].
pub fn open(path: impl AsRef<Path>) -> Result<(Folder, DecoderConfig)> {
    let folder = Folder::open(path)?;
    let config = DecoderConfig::from_huggingface(&folder)?;
    Ok((folder, config))
}
