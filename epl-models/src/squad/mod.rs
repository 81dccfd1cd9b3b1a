//! SQuAD v1.1 (Rajpurkar et al., 2016) for BERT (Devlin et al., 2019): questions whose answer is a stretch of a text.
//!
//! ```text
//! train-v1.1.json ──> Squad ──┐                    ┌──> Row + positions ──> training
//!                             ├──> Features ───────┤
//! vocab.txt ──> WordPiece ────┘    (windows)       └──> Row ──> model ──> Logits
//!                                                                            │
//!  predictions.json, nbest_predictions.json <── Predictions <── AnswersConfig
//!                                                    │
//!                                                    └──> SquadScore (exact match, f1)
//! ```
//!
//! - [`dataset`]: the file format, and that every answer stands where the file says;
//! - [`vocabulary`]: the pieces, from a `vocab.txt` or learned from a small text;
//! - [`WordPiece`]: uncased BERT's pieces of a text, each with its place in the original text;
//! - [`pieces`]: a text in pieces: from characters to pieces and back;
//! - [`windows`]: long contexts in overlapping windows, and where a piece has most context;
//! - [`features`]: `[CLS] question [SEP] context [SEP]` and the answer's positions;
//! - [`answers`]: the best answers from the logits of all windows of a question;
//! - [`predictions`]: the two files that the official script and its readers know;
//! - [`metrics`]: exact match and f1 as `evaluate-v1.1.py` defines them.
//!
//! Places in a text are counted in characters (Unicode scalar values) from 0, as `answer_start` is, never in bytes.
//! Everything here is host code without tensors. What a user can get wrong comes back as [`Error`].

mod characters;
mod error;

pub mod answers;
pub mod dataset;
pub mod features;
pub mod metrics;
pub mod pieces;
pub mod predictions;
pub mod vocabulary;
pub mod windows;
mod word_piece;

pub use answers::{AnswersConfig, Logits, RankedAnswer};
pub use dataset::{Answer, Article, Paragraph, Question, Squad};
pub use error::{Error, Result};
pub use features::{Features, FeaturesConfig, Row};
pub use metrics::SquadScore;
pub use pieces::Pieces;
pub use predictions::Predictions;
pub use vocabulary::{Vocabulary, check_uncased};
pub use word_piece::WordPiece;
