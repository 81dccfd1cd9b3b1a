//! The parameters of a checkpoint, for others.

use std::fs;
use std::path::Path;

use clap::ValueEnum;
use epl::Error;
use epl::models::bert::{self, BertConfig, MaskedLanguage, Pretraining, QuestionAnswering, SequenceClassification};
use epl::models::decoder::{self, DecoderConfig};
use epl::models::mae::{self, MaeConfig};
use epl::models::resmlp::{self, ResMlpConfig};
use epl::models::resnet::{self, ResNetConfig};
use epl::models::swin::{self, SwinConfig};
use epl::models::t5::{self, T5Config};
use epl::models::vit::{self, ViTConfig};
use epl::tensors::{StoredParameters, save_burnpack, save_safetensors};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Failure;

/// The models that `transformers` has, too, or timm.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Model {
    /// T5, and Switch where there are experts.
    T5,
    /// BERT or RoBERTa with a head for answers.
    BertQa,
    /// BERT or RoBERTa with a head for masked words.
    BertMlm,
    /// BERT or RoBERTa with a head for classes.
    BertClasses,
    /// BERT with the heads of its pretraining.
    BertPretraining,
    /// ResNet.
    Resnet,
    /// ViT that classifies images.
    Vit,
    /// Swin or Swin V2 that classifies images.
    Swin,
    /// MAE.
    Mae,
    /// ResMLP, as timm has it.
    Resmlp,
    /// GPT-2, Llama, Qwen3, Mixtral, Qwen3-MoE or Gemma 2, as its configuration says.
    Decoder,
}

/// Writes a file with our names, or a folder of a model that `transformers` or timm has.
pub fn export(checkpoint: &Path, to: &Path, model: Option<Model>, config: Option<&Path>) -> Result<(), Failure> {
    let stored = StoredParameters::open(checkpoint)?;
    let Some(model) = model else { return Ok(file(stored, to)?) };
    check_new(to)?;
    let said = match config {
        Some(path) => read(path)?,
        None => kept(&stored)?,
    };
    match model {
        Model::T5 => t5::export(&parsed::<T5Config>(said)?, &stored, to)?,
        Model::BertQa => bert::export::<QuestionAnswering>(&parsed::<BertConfig>(said)?, &stored, to)?,
        Model::BertMlm => bert::export::<MaskedLanguage>(&parsed::<BertConfig>(said)?, &stored, to)?,
        Model::BertClasses => bert::export::<SequenceClassification>(&parsed::<BertConfig>(said)?, &stored, to)?,
        Model::BertPretraining => bert::export::<Pretraining>(&parsed::<BertConfig>(said)?, &stored, to)?,
        Model::Mae => mae::export(&parsed::<MaeConfig>(said)?, &stored, to)?,
        Model::Decoder => decoder::export(&parsed::<DecoderConfig>(said)?, &stored, to)?,
        Model::Resnet => resnet::export(&parsed::<ResNetConfig>(said)?, &stored, to)?,
        Model::Resmlp => resmlp::export(&parsed::<ResMlpConfig>(said)?, &stored, to)?,
        Model::Vit => vit::export(&parsed::<ViTConfig>(said)?, &stored, to)?,
        Model::Swin => swin::export(&parsed::<SwinConfig>(said)?, &stored, to)?,
    }
    Ok(())
}

fn file(stored: StoredParameters, to: &Path) -> Result<(), Error> {
    match to.extension().and_then(|extension| extension.to_str()) {
        Some("safetensors") => save_safetensors(&stored, to),
        Some("bpk") => save_burnpack(stored, to),
        _ => Err(Error::file(
            to,
            "name a file that ends in .safetensors or .bpk, or say with --as which model a folder is to be of",
        )),
    }
}

/// Refuses a folder with a model, of which some files would stay beside the new ones.
fn check_new(folder: &Path) -> Result<(), Error> {
    let files = ["config.json", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"];
    match files.iter().find(|file| folder.join(file).exists()) {
        Some(file) => Err(Error::file(
            folder,
            format!("it holds a model already ({file}); name a new folder, or remove this one"),
        )),
        None => Ok(()),
    }
}

/// What the run kept of its model.
fn kept(stored: &StoredParameters) -> Result<Value, Error> {
    let run = stored.checkpoint().index().state.get("run");
    let model = run.and_then(|run| run["invariants"].get("model")).cloned();
    model.ok_or_else(|| {
        Error::file(
            stored.checkpoint().folder(),
            "it does not keep the configuration of its model (`Trainer::with_invariant(\"model\", &config)`); give it with \
             --config",
        )
    })
}

fn read(path: &Path) -> Result<Value, Error> {
    let text = fs::read(path).map_err(|error| Error::file(path, error))?;
    serde_json::from_slice(&text).map_err(|error| Error::file(path, error))
}

fn parsed<C: DeserializeOwned>(value: Value) -> Result<C, Error> {
    serde_json::from_value(value)
        .map_err(|error| Error::invalid(format!("the configuration is not that of this model: {error}")))
}
