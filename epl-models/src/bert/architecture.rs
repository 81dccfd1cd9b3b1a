//! Which model of Hugging Face a shape is.

use burn::config::Config;

/// The encoders of `transformers` that are read and written here. They compute the same but for what each says.
#[derive(Config, Debug, Copy, PartialEq, Eq)]
pub enum BertArchitecture {
    /// Positions are counted from 0.
    Bert,
    /// Positions are counted from behind the number of the padding token, which that token has wherever it stands, and learns
    /// neither it nor its vector; the head of a masked language model has GELU whatever the layers have; a classifier drops
    /// features before its first layer, too.
    ///
    /// *RoBERTa: A Robustly Optimized BERT Pretraining Approach*, Liu et al., 2019
    /// ([arXiv:1907.11692](https://arxiv.org/abs/1907.11692)).
    Roberta,
}

/// The names of all, for errors.
pub(super) const SUPPORTED: &str = "bert and roberta";

impl BertArchitecture {
    const ALL: [Self; 2] = [Self::Bert, Self::Roberta];

    /// What stands before the names of the encoder.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::Bert => "bert.",
            Self::Roberta => "roberta.",
        }
    }

    /// What `config.json` calls it, as `model_type`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Bert => "bert",
            Self::Roberta => "roberta",
        }
    }

    /// What the classes of `transformers` begin with.
    pub fn class(self) -> &'static str {
        match self {
            Self::Bert => "Bert",
            Self::Roberta => "Roberta",
        }
    }

    /// The one of a `model_type`, if it is one of these.
    pub fn named(model_type: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|architecture| architecture.model_type() == model_type)
    }
}
