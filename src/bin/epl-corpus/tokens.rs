//! What cuts texts into tokens.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use epl::checkpoint::durable::Unpublished;
use epl::models::indexed::{EncodeConfig, TextEncoder};
use epl::models::squad::{Vocabulary, WordPiece};
use epl::models::text::{Document, Documents};
use epl::models::{BpeConfig, Tokenizer};
use epl::{Error, Result};

/// The tokenizer: a file, or one that is learned.
#[derive(clap::Args, Debug)]
pub struct TokenArgs {
    /// A tokenizer.json of Hugging Face, or the vocab.txt of an uncased BERT
    #[arg(long, value_name = "FILE", required_unless_present = "learn", conflicts_with = "learn")]
    tokenizer: Option<PathBuf>,
    /// Learn a tokenizer from the first documents, and write it beside the corpus
    #[arg(long, value_enum, requires = "vocab")]
    learn: Option<Learned>,
    /// Of --learn: pieces of the vocabulary
    #[arg(long, value_name = "N", requires = "learn", conflicts_with = "tokenizer")]
    vocab: Option<usize>,
    /// Of --learn: how many documents it is learned from, those not that are held out
    #[arg(long, value_name = "N", default_value = "20000", requires = "learn", conflicts_with = "tokenizer")]
    learn_from: NonZeroUsize,
}

/// What can be learned.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Learned {
    /// Byte pairs, with `</s>` as the end: PREFIX-tokenizer.json
    Bpe,
    /// Pieces of words for an uncased BERT: PREFIX-vocab.txt
    Wordpiece,
}

impl Learned {
    fn file(self, out: &Path) -> PathBuf {
        let mut name = out.as_os_str().to_owned();
        name.push(match self {
            Self::Bpe => "-tokenizer.json",
            Self::Wordpiece => "-vocab.txt",
        });
        name.into()
    }
}

impl TokenArgs {
    /// The file of a tokenizer that is learned.
    fn learned_file(&self, out: &Path) -> Option<PathBuf> {
        Some(self.learn?.file(out))
    }

    /// The files of tokenizers that an earlier corpus of this name may have, but for one that is read.
    pub fn files(&self, out: &Path) -> Vec<PathBuf> {
        let read = self.tokenizer.as_ref().and_then(|path| path.canonicalize().ok());
        let is_read = |path: &PathBuf| read.is_some() && path.canonicalize().ok() == read;
        Learned::value_variants().iter().map(|kind| kind.file(out)).filter(|path| !is_read(path)).collect()
    }
}

/// A tokenizer.
pub struct Tokens<'a> {
    args: &'a TokenArgs,
    pub encoder: TextEncoder,
    learned: Option<New>,
}

/// One that was learned.
enum New {
    Bpe(Box<Tokenizer>),
    Pieces(Vocabulary),
}

impl<'a> Tokens<'a> {
    /// The tokenizer, and the documents that it was learned from.
    pub fn open(
        args: &'a TokenArgs,
        config: &EncodeConfig,
        documents: &mut Documents,
    ) -> Result<(Self, Vec<Document>)> {
        let of_pieces = |vocabulary: Vocabulary| match WordPiece::new(vocabulary) {
            Ok(pieces) => Ok(TextEncoder::from(&pieces)),
            Err(error) => Err(invalid(&error)),
        };
        let Some(learned) = args.learn else {
            let path = args.tokenizer.as_deref().unwrap_or(Path::new("tokenizer.json"));
            let is_list = path.extension().is_some_and(|end| end == "txt");
            let encoder = match is_list {
                true => of_pieces(Vocabulary::load(path).map_err(|error| invalid(&error))?)?,
                false => TextEncoder::load(path)?,
            };
            return Ok((Self { args, encoder, learned: None }, Vec::new()));
        };
        let first = documents.take(args.learn_from.get()).collect::<Result<Vec<_>, _>>()?;
        let (texts, size) = (config.to_learn_from(&first), args.vocab.unwrap_or(0));
        let (encoder, learned) = match learned {
            Learned::Bpe => {
                let tokenizer = BpeConfig::new(size).train(texts.into_iter())?;
                (TextEncoder::from(&tokenizer), New::Bpe(Box::new(tokenizer)))
            }
            Learned::Wordpiece => {
                let vocabulary = Vocabulary::learn(texts, size).map_err(|error| invalid(&error))?;
                (of_pieces(vocabulary.clone())?, New::Pieces(vocabulary))
            }
        };
        Ok((Self { args, encoder, learned: Some(learned) }, first))
    }

    /// The number of a token.
    pub fn piece(&self, name: &str) -> Result<i64> {
        let unknown = || {
            let size = self.encoder.vocab_size();
            Error::invalid(format!(
                "--end {name}: none of the {size} tokens is called so; look into the tokenizer's file"
            ))
        };
        self.encoder.piece(name).ok_or_else(unknown)
    }

    /// Writes what was learned, to be published, and says where.
    pub fn write(&self, out: &Path) -> Result<Option<(PathBuf, Unpublished<'static>)>> {
        let (Some(path), Some(learned)) = (self.args.learned_file(out), &self.learned) else { return Ok(None) };
        let text = match learned {
            New::Bpe(tokenizer) => tokenizer.to_json()?,
            New::Pieces(vocabulary) => vocabulary.lines(),
        };
        let file = Unpublished::write(&path, |write| write(text.as_bytes()))?;
        Ok(Some((path, file)))
    }
}

fn invalid(error: &epl::models::squad::Error) -> Error {
    Error::invalid(error.to_string())
}
