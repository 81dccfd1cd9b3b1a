//! A BERT into a folder of Hugging Face.

use std::path::Path;

use epl_core::Place;
use epl_core::tensors::WholeTensors;
use serde_json::{Map, Value, json};

use super::architecture::BertArchitecture;
use super::classification::SequenceClassification;
use super::config::BertConfig;
use super::head::BertHead;
use super::masked_language::MaskedLanguage;
use super::model::Bert;
use super::names::BertNames;
use super::pretraining::Pretraining;
use super::question_answering::QuestionAnswering;
use crate::huggingface::{Error, Exported, Result, activation_name, class_names, export};

/// A head that `transformers` has too.
pub trait ExportedHead: BertHead {
    /// What the class of the model ends with there.
    const CLASS: &'static str;

    /// Whether the configuration tells the number of classes.
    const HAS_CLASSES: bool = false;

    /// A model with this head.
    fn model(config: &BertConfig, place: &Place) -> Bert<Self>;
}

impl ExportedHead for QuestionAnswering {
    const CLASS: &'static str = "ForQuestionAnswering";

    fn model(config: &BertConfig, place: &Place) -> Bert<Self> {
        config.init_question_answering(place)
    }
}

impl ExportedHead for MaskedLanguage {
    const CLASS: &'static str = "ForMaskedLM";

    fn model(config: &BertConfig, place: &Place) -> Bert<Self> {
        config.init_masked_language(place)
    }
}

impl ExportedHead for SequenceClassification {
    const CLASS: &'static str = "ForSequenceClassification";
    const HAS_CLASSES: bool = true;

    fn model(config: &BertConfig, place: &Place) -> Bert<Self> {
        config.init_classification(place)
    }
}

impl ExportedHead for Pretraining {
    const CLASS: &'static str = "ForPreTraining";

    fn model(config: &BertConfig, place: &Place) -> Bert<Self> {
        config.init_pretraining(place)
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
        names: &BertNames::written::<H>(config.architecture),
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
    /// When the configuration is none that can be, and [`Error::Export`] for a RoBERTa with the head of pretraining, which
    /// `transformers` has not.
    pub fn to_huggingface<H: ExportedHead>(&self) -> Result<Map<String, Value>> {
        self.validate().map_err(Error::core)?;
        if self.architecture == BertArchitecture::Roberta && H::IS_PRETRAINING {
            return Err(Error::export(
                "architecture",
                "is Roberta, which has no head of pretraining; use `MaskedLanguage`",
            ));
        }
        let keys = json!({
            "model_type": self.architecture.model_type(),
            "architectures": [format!("{}{}", self.architecture.class(), H::CLASS)],
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
