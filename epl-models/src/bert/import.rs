//! A BERT from a folder of Hugging Face.

use std::path::Path;

use epl_core::ParamRecord;
use epl_modules::Activation;

use super::architecture::BertArchitecture;
use super::batch::BertItem;
use super::config::BertConfig;
use super::head::BertHead;
use super::model::Bert;
use super::names::{BertNames, architecture};
use crate::huggingface::{self, Folder, JsonConfig, Reference, Result};

impl BertConfig {
    /// The shape that a folder's `config.json` describes.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](huggingface::Error::Unsupported) for another architecture, [`Error::Config`](huggingface::Error::Config) for a value that this BERT has not.
    pub fn from_huggingface(folder: &Folder) -> Result<Self> {
        let (json, architecture) = (folder.config(), architecture(folder)?);
        check_variant(json)?;
        let config = read_shape(json, architecture)?;
        let checked = config.validate();
        json.checked(config, checked)
    }
}

/// Refuses variants that would compute something else.
fn check_variant(json: &JsonConfig) -> Result<()> {
    for key in ["is_decoder", "add_cross_attention"] {
        if json.flag_or(key, false)? {
            return Err(json.error(key, "is true; a BERT is an encoder here"));
        }
    }
    if !json.flag_or("tie_word_embeddings", true)? {
        return Err(json.error("tie_word_embeddings", "is false; a masked language model's head is tied here"));
    }
    match json.text_or("position_embedding_type", "absolute")? {
        "absolute" => Ok(()),
        other => Err(json.error("position_embedding_type", format!("is `{other}`; supported is absolute"))),
    }
}

fn read_shape(json: &JsonConfig, architecture: BertArchitecture) -> Result<BertConfig> {
    let pad = if architecture == BertArchitecture::Roberta { 1 } else { 0 };
    let classifier_dropout = match json.has("classifier_dropout") {
        true => Some(json.number_or("classifier_dropout", 0.1)?),
        false => None,
    };
    Ok(BertConfig::new(json.count("vocab_size")?)
        .with_d_model(json.count("hidden_size")?)
        .with_d_ff(json.count("intermediate_size")?)
        .with_heads(json.count("num_attention_heads")?)
        .with_layers(json.count("num_hidden_layers")?)
        .with_positions(json.count_or("max_position_embeddings", 512)?)
        .with_token_types(json.count_or("type_vocab_size", 2)?)
        .with_activation(json.activation_or("hidden_act", Activation::Gelu)?)
        .with_dropout(json.number_or("hidden_dropout_prob", 0.1)?)
        .with_attention_dropout(json.number_or("attention_probs_dropout_prob", 0.1)?)
        .with_classifier_dropout(classifier_dropout)
        .with_epsilon(json.number_or("layer_norm_eps", 1e-12)?)
        .with_deviation(json.number_or("initializer_range", 0.02)?)
        .with_pad(json.token_or("pad_token_id", pad)?)
        .with_architecture(architecture)
        .with_classes(json.classes()?))
}

/// Fills a model from a folder: every rank reads what its records say it holds. They are
/// [`Plan::records`](epl_core::Plan::records), which [`try_map`](epl_core::LaidOutModel::try_map) gives with the model.
///
/// The weights of another head may be left unread; a head that the folder lacks keeps its first values, as when a
/// published BERT begins to learn a task. [`BertNames::keeps`](huggingface::Names::keeps) tells which.
///
/// ```
/// use epl_core::{Config, launch};
/// use epl_models::bert::{self, BertConfig};
///
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// # let shape = BertConfig::new(50).with_d_model(16).with_d_ff(32).with_heads(2).with_layers(1).with_positions(8);
/// launch(&Config::new().with("cluster.ranks", 1)?, |epl| {
///     let pretrained = epl.build(|at| shape.init_pretraining(at))?.parameters()?;
///     bert::export::<bert::Pretraining>(&shape, &pretrained, &folder)?;
///
///     let (stored, shape) = bert::open(&folder)?;
///     let built = epl.build(|at| shape.init_classification(at))?;
///     let built = built.try_map(|model, plan| Ok(bert::load(model, plan.records(), &stored)?))?;
///     let name = "embeddings.words.weight"; // while the head, which is another one, keeps its first values
///     assert_eq!(built.parameters()?[name], pretrained[name]);
///     Ok(())
/// })?;
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// # Errors
///
/// See [`huggingface::load`].
pub fn load<H: BertHead>(model: Bert<H>, records: &[ParamRecord], folder: &Folder) -> Result<Bert<H>> {
    huggingface::load(model, records, folder, &BertNames::new::<H>(folder)?)
}

/// The stored inputs of a BERT as rows, with their padding, and the labels of a head.
///
/// # Errors
///
/// When an input is missing, or a row is padded elsewhere than at its end.
pub fn reference_items<H: BertHead>(reference: &Reference) -> Result<Vec<BertItem<H::Label>>> {
    let (ids, masks) = (reference.rows("input_ids")?, reference.rows("attention_mask")?);
    let token_types = match reference.has_input("token_type_ids") {
        true => reference.rows("token_type_ids")?,
        false => ids.iter().map(|row| vec![0; row.len()]).collect(),
    };
    let labels = H::reference_labels(reference)?;
    if [masks.len(), token_types.len(), labels.len()] != [ids.len(); 3] {
        let (rows, masks, labels) = (ids.len(), masks.len(), labels.len());
        return Err(reference.error(format!("{rows} rows of tokens, {masks} masks and {labels} labels")));
    }
    let tokens = |(ids, mask): (&Vec<i64>, &Vec<i64>)| {
        let tokens = mask.iter().take_while(|real| **real == 1).count();
        match mask[tokens..].iter().any(|real| *real != 0) || mask.len() != ids.len() {
            true => Err(reference.error(format!("`attention_mask` {mask:?} is not ones, then zeros"))),
            false => Ok(tokens),
        }
    };
    let tokens = ids.iter().zip(&masks).map(tokens).collect::<Result<Vec<usize>>>()?;
    let rows = ids.into_iter().zip(token_types).zip(tokens).zip(labels);
    Ok(rows.map(|(((ids, token_types), tokens), label)| BertItem { ids, token_types, tokens, label }).collect())
}

/// Opens a folder whose architecture is one that is read here.
///
/// # Errors
///
/// As [`Folder::open`] and [`BertConfig::from_huggingface`].
pub fn open(path: impl AsRef<Path>) -> Result<(Folder, BertConfig)> {
    let folder = Folder::open(path)?;
    let config = BertConfig::from_huggingface(&folder)?;
    Ok((folder, config))
}
