use std::path::Path;

use burn::data::dataset::{Dataset, DatasetError};

use super::Lines;
use crate::text::{Error, Pair, Result};

/// Sentences and their translations, held in memory.
///
/// ```no_run
/// use epl_models::text::ParallelCorpus;
/// let corpus = ParallelCorpus::read(&["news.en", "talks.en.gz"], &["news.de", "talks.de.gz"])?;
/// # Ok::<(), epl_models::text::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ParallelCorpus {
    source: Lines,
    target: Lines,
}

impl ParallelCorpus {
    /// Reads files, plain or gzip ([`Lines::append_file`] says how). The first source file is paired with the first
    /// target file line by line, and so on.
    ///
    /// Empty lines are kept: a test set must stay whole. [`TokenPairs`](super::TokenPairs) leaves them out of
    /// training.
    ///
    /// # Errors
    /// [`Error::FileCount`], [`Error::LineCount`], [`Error::EmptyCorpus`], and those of [`Lines::append_file`].
    pub fn read(sources: &[impl AsRef<Path>], targets: &[impl AsRef<Path>]) -> Result<Self> {
        if sources.len() != targets.len() {
            return Err(Error::FileCount { sources: sources.len(), targets: targets.len() });
        }
        let (mut source, mut target) = (Lines::default(), Lines::default());
        for (source_file, target_file) in sources.iter().zip(targets) {
            let (source_file, target_file) = (source_file.as_ref(), target_file.as_ref());
            let source_lines = source.append_file(source_file)?;
            let target_lines = target.append_file(target_file)?;
            if source_lines != target_lines {
                return Err(Error::LineCount {
                    source_file: source_file.into(),
                    source_lines,
                    target_file: target_file.into(),
                    target_lines,
                });
            }
        }
        if source.is_empty() {
            return Err(Error::EmptyCorpus { files: names(sources, targets) });
        }
        Ok(Self { source, target })
    }

    /// A corpus of given pairs.
    pub fn from_pairs(pairs: impl IntoIterator<Item = Pair>) -> Self {
        let (mut source, mut target) = (Lines::default(), Lines::default());
        for pair in pairs {
            source.push(&pair.source);
            target.push(&pair.target);
        }
        Self { source, target }
    }

    /// The source sentences.
    pub fn sources(&self) -> &Lines {
        &self.source
    }

    /// The target sentences: the references of an evaluation.
    pub fn targets(&self) -> &Lines {
        &self.target
    }

    /// All sentences of both sides: what a joint tokenizer is trained on.
    pub fn texts(&self) -> impl Iterator<Item = &str> + Send {
        self.source.iter().chain(self.target.iter())
    }
}

impl Dataset<Pair> for ParallelCorpus {
    fn get(&self, index: usize) -> Result<Pair, DatasetError> {
        Ok(Pair { source: self.source.get(index).into(), target: self.target.get(index).into() })
    }

    fn len(&self) -> usize {
        self.source.len()
    }
}

/// The files' names for a message; without any, it says so.
fn names(sources: &[impl AsRef<Path>], targets: &[impl AsRef<Path>]) -> String {
    let sources = sources.iter().map(|file| file.as_ref().display().to_string());
    let targets = targets.iter().map(|file| file.as_ref().display().to_string());
    let all: Vec<String> = sources.chain(targets).collect();
    if all.is_empty() { "no file at all; name source and target files".into() } else { all.join(", ") }
}
