//! A BERT into a folder of Hugging Face.

use std::path::Path;

use epl_core::Place;
use epl_core::tensors::WholeTensors;
use serde_json::{Map, Value, json};

use super::classification::SequenceClassification;
use super::config::BertConfig;
use super::head::BertHead;
use super::masked_language::MaskedLanguage;
use super::model::Bert;
use super::names::BertNames;
use super::question_answering::QuestionAnswering;
use crate::huggingface::{Error, Exported, Result, activation_name, class_names, export};

/// A head that `transformers` has too.
pub trait ExportedHead: BertHead {
    /// What the model is called there.
    const ARCHITECTURE: &'static str;

    /// Whether the configuration tells the number of classes.
    const HAS_CLASSES: bool = false;

    /// A model with this head.
    fn model(config: &BertConfig, place: &Place) -> Bert<Self>;
}

impl ExportedHead for QuestionAnswering {
    const ARCHITECTURE: &'static str = "BertForQuestionAnswering";

    fn model(config: &BertConfig, place: &Place) -> Bert<Self> {
        config.init_question_answering(place)
    }
}

impl ExportedHead for MaskedLanguage {
    const ARCHITECTURE: &'static str = "BertForMaskedLM";

    fn model(config: &BertConfig, place: &Place) -> Bert<Self> {
        config.init_masked_language(place)
    }
}

impl ExportedHead for SequenceClassification {
    const ARCHITECTURE: &'static str = "BertForSequenceClassification";
    const HAS_CLASSES: bool = true;

    fn model(config: &BertConfig, place: &Place) -> Bert<Self> {
        config.init_classification(place)
    }
}

/// Writes a folder that `transformers` loads as the model of head `H`. `tensors` are the whole parameters by path, such as
/// the engine's [`parameters`](epl_core::Engine::parameters).
///
/// # Errors
///
/// As [`BertConfig::to_huggingface`] and [`export::save`].
pub fn export<H: ExportedHead>(
    config: &BertConfig,
    tensors: &impl WholeTensors,
    folder: impl AsRef<Path>,
) -> Result<()> {
    let exported = Exported {
        config: config.to_huggingface::<H>()?,
        names: &BertNames::written(),
        parameters: export::parameters(|place| H::model(config, place))?,
        copies: Vec::new(),
        constants: Vec::new(),
    };
    export::save(folder, exported, tensors)
}

impl BertConfig {
    /// The keys of a `config.json`: what [`from_huggingface`](Self::from_huggingface) reads.
    ///
    /// Left out is `answers_in_padding`, which changes the loss, not the logits: `transformers` lets answers be in padding.
    ///
    /// # Errors
    ///
    /// When the configuration is none that can be; `transformers` has all that this BERT has.
    pub fn to_huggingface<H: ExportedHead>(&self) -> Result<Map<String, Value>> {
        self.validate().map_err(Error::core)?;
        let keys = json!({
            "model_type": "bert",
            "architectures": [H::ARCHITECTURE],
            "vocab_size": self.vocab,
            "hidden_size": self.d_model,
            "intermediate_size": self.d_ff,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "max_position_embeddings": self.positions,
            "type_vocab_size": self.token_types,
            "hidden_act": activation_name(self.activation),
            "hidden_dropout_prob": self.dropout,
            "attention_probs_dropout_prob": self.attention_dropout,
            "classifier_dropout": self.classifier_dropout,
            "layer_norm_eps": self.epsilon,
            "initializer_range": self.deviation,
            "pad_token_id": self.pad,
            "tie_word_embeddings": true,
            "is_decoder": false,
            "add_cross_attention": false,
        });
        let Value::Object(mut keys) = keys else { return Ok(Map::new()) };
        if H::HAS_CLASSES {
            keys.append(&mut class_names(self.classes));
        }
        Ok(keys)
    }
}
