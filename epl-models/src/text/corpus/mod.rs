//! Texts and sentence pairs from files.
//!
//! [`Documents`] reads texts one by one, by lines, paragraphs or JSON objects; [`Sentences`] cuts them. [`ParallelCorpus`] reads
//! line n of the source files as the sentence whose translation is line n of the target files; [`TokenPairs`] holds the same
//! pairs as tokens, with their lengths, for batches of similar length.

mod reader;
mod documents;
mod sentences;
mod lines;
mod parallel;
mod tokens;

pub use documents::{Document, DocumentForm, Documents};
pub use lines::Lines;
pub use parallel::ParallelCorpus;
pub use reader::LineReader;
pub use sentences::Sentences;
pub use tokens::{Dropped, Lengths, TokenPair, TokenPairs};

#[cfg(test)]
mod tests;
