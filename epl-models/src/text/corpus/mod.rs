//! Sentence pairs from files.
//!
//! [`ParallelCorpus`] reads line n of the source files as the sentence whose translation is line n of the target
//! files; [`TokenPairs`] holds the same pairs as tokens, with their lengths, for batches of similar length.

mod lines;
mod parallel;
mod tokens;

pub use lines::Lines;
pub use parallel::ParallelCorpus;
pub use tokens::{Dropped, Lengths, TokenPair, TokenPairs};

#[cfg(test)]
mod tests;
