//! BERT and RoBERTa: an encoder of equal layers, and heads that answer questions, fill gaps, classify, or pretrain.
//!
//! ```text
//! segment 0        words + positions + types ─ norm ─ dropout ─ layer 0  ─┐ carry: hidden states
//! segments 1..L    layer i: attention ─ norm ─ feed-forward ─ norm        │
//! segment L        head                                                  ─┘ logits
//! ```
//!
//! - [`architecture`], [`config`]: the shape of a model, a BERT or a RoBERTa, and the known ones;
//! - [`batch`]: rows of tokens as padded tensors;
//! - [`embeddings`], `layer`: from tokens to hidden states;
//! - [`head`]: what a head is; [`question_answering`], [`masked_language`], [`classification`], [`pretraining`]: those there are;
//!   `cross_entropy`: the loss of logits that every rank holds whole;
//! - [`model`]: the whole; [`segments`]: the whole as a chain for the engine;
//! - [`names`], [`import`], [`mod@export`]: checkpoints of Hugging Face.

pub mod architecture;
pub mod config;
pub mod batch;
pub mod carry;
pub mod embeddings;
mod layer;
mod cross_entropy;
pub mod head;
pub mod question_answering;
pub mod masked_language;
pub mod classification;
pub mod pretraining;
pub mod model;
pub mod segments;
pub mod names;
pub mod import;
pub mod export;

pub use crate::rows::IGNORED;
pub use architecture::BertArchitecture;
pub use batch::{BertBatch, BertItem};
pub use carry::BertCarry;
pub use classification::SequenceClassification;
pub use config::BertConfig;
pub use embeddings::BertEmbeddings;
pub use export::{ExportedHead, export};
pub use head::{BertBatcher, BertHead, HeadPaths};
pub use import::{load, open, reference_items};
pub use masked_language::MaskedLanguage;
pub use model::{
    Bert, BertForMaskedLanguage, BertForPretraining, BertForQuestionAnswering, BertForSequenceClassification,
};
pub use names::{BertNames, measured_beside};
pub use pretraining::{Pretraining, PretrainingLabel};
pub use question_answering::{ANSWER_LOGITS, QuestionAnswering};
