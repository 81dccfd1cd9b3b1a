use std::io;
use std::path::PathBuf;

use burn::data::dataset::DatasetError;

/// What can be wrong with a corpus, a tokenizer or their files.
///
/// Every message names the file and, where there is one, the line (counted from one), both of the numbers that
/// disagree, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file is missing or may not be read.
    #[error("cannot open {}: {cause}; check the path", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },

    /// Reading stopped half-way.
    #[error("cannot read {} after line {line}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Lines read before.
        line: usize,
        /// What the operating system said.
        cause: io::Error,
    },

    /// A file that should be gzip is truncated, damaged or not gzip at all.
    #[error(
        "{} is not a whole gzip file (after line {line}): {cause}; test it with `gzip -t`, \
         download it again, or drop the ending .gz if it is plain text",
        path.display()
    )]
    Gzip {
        /// The file.
        path: PathBuf,
        /// Lines unpacked before.
        line: usize,
        /// What the decoder said.
        cause: io::Error,
    },

    /// A file could not be written.
    #[error("cannot write {cause}")]
    Write {
        /// The file, and what the operating system said.
        cause: epl_core::Error,
    },

    /// A line is not UTF-8.
    #[error(
        "{} line {line}: not UTF-8 from byte {byte} of the line on; convert the file, \
         for example `iconv -f latin1 -t utf-8`",
        path.display()
    )]
    Encoding {
        /// The file.
        path: PathBuf,
        /// The line, from one.
        line: usize,
        /// The first bad byte in that line, from one.
        byte: usize,
    },

    /// The two sides of a corpus do not have the same number of files.
    #[error("{sources} source file(s) but {targets} target file(s); give as many of each, in the same order")]
    FileCount {
        /// Source files.
        sources: usize,
        /// Target files.
        targets: usize,
    },

    /// The two files of a pair do not have the same number of lines.
    #[error(
        "{} has {source_lines} lines but {} has {target_lines}; line n of one must translate line n of the other",
        source_file.display(), target_file.display()
    )]
    LineCount {
        /// The source file.
        source_file: PathBuf,
        /// Its lines.
        source_lines: usize,
        /// The target file.
        target_file: PathBuf,
        /// Its lines.
        target_lines: usize,
    },

    /// No file to read texts from.
    #[error("no file of texts was named; name one or more")]
    NoFile,

    /// A line that is not the record it should be.
    #[error("{} line {line}: {cause}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The line, from one.
        line: usize,
        /// What is wrong with it.
        cause: String,
    },

    /// No pair at all.
    #[error("the corpus is empty: no line in {files}")]
    EmptyCorpus {
        /// The files that were read.
        files: String,
    },

    /// Nothing was left to train on.
    #[error(
        "none of {pairs} pairs is left: {empty} with an empty side, {too_long} longer than the limit of {longest} \
         tokens (the shortest pair needs {shortest}); raise the limit"
    )]
    AllDropped {
        /// Pairs before.
        pairs: usize,
        /// Pairs with an empty side.
        empty: usize,
        /// Pairs longer than the limit.
        too_long: usize,
        /// The limit, in tokens.
        longest: usize,
        /// The limit at which one pair would be left (zero if all are empty).
        shortest: usize,
    },

    /// A tokenizer cannot be learned from a text without a character.
    #[error("cannot learn a tokenizer: the training text is empty; give texts with characters")]
    NoText,

    /// The vocabulary has no room for the alphabet.
    #[error("a vocabulary of {asked} is too small: {special} special tokens and {alphabet} {what} need {}; {remedy}",
        special + alphabet)]
    Vocabulary {
        /// The size asked for.
        asked: usize,
        /// Special tokens.
        special: usize,
        /// Single pieces that must be in it.
        alphabet: usize,
        /// What these pieces are.
        what: &'static str,
        /// What to do.
        remedy: &'static str,
    },

    /// A tokenizer file that is not one, or not of the T5 kind.
    #[error("{} is not a usable tokenizer file: {cause}", path.display())]
    TokenizerFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },

    /// A tokenizer could not treat a text; only a loaded one can fail so.
    #[error("the tokenizer failed while {doing}: {cause}")]
    Tokenizer {
        /// What it was doing.
        doing: &'static str,
        /// What it said.
        cause: String,
    },

    /// A dataset could not give an item.
    #[error("the dataset failed: {cause}")]
    Dataset {
        /// What it said.
        cause: DatasetError,
    },

    /// More held-out numbers than the split allows.
    #[error("{held_out} held-out numbers asked for, but at least 1 and at most {most} can be kept from training")]
    HeldOut {
        /// Held-out numbers asked for.
        held_out: usize,
        /// The most that is allowed.
        most: usize,
    },

    /// A share that is not between zero and one.
    #[error("the share of training numbers drawn by length is {share}; it must be between 0 and 1")]
    Share {
        /// The share asked for.
        share: f64,
    },

    /// No training numbers.
    #[error("0 training numbers asked for; at least 1 is needed")]
    NoTraining,
}

impl From<Error> for epl_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Write { cause } => cause,
            error => Self::invalid(error.to_string()),
        }
    }
}

/// What the functions of this module return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
