//! What turns the texts of a corpus into tokens.

use std::path::Path;

use epl_core::{Error, Result};
use tokenizers::ModelWrapper;

use crate::squad::WordPiece;
use crate::text::{self, Tokenizer};

/// Any tokenizer of the crate `tokenizers`: a `tokenizer.json` of Hugging Face, or one of this crate's own.
///
/// Text is only text: what looks like a special token is cut as all else, and no token is put around a text.
#[derive(Clone)]
pub struct TextEncoder {
    inner: tokenizers::Tokenizer,
    vocab: usize,
    unknown: Option<i64>,
}

impl TextEncoder {
    /// Reads a `tokenizer.json`, whatever its special tokens are called.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when there is no such file, or it is no tokenizer.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|cause| text::Error::Open { path: path.into(), cause })?;
        let wrong =
            |error: tokenizers::Error| text::Error::TokenizerFile { path: path.into(), cause: error.to_string() };
        Ok(Self::new(tokenizers::Tokenizer::from_bytes(bytes).map_err(wrong)?))
    }

    fn new(mut inner: tokenizers::Tokenizer) -> Self {
        inner.set_encode_special_tokens(true);
        // What a file may say of the rows of a model: a corpus has whole texts.
        let _ = inner.with_truncation(None);
        inner.with_padding(None);
        let piece = match inner.get_model() {
            ModelWrapper::BPE(model) => model.unk_token.clone(),
            ModelWrapper::WordPiece(model) => Some(model.unk_token.clone()),
            ModelWrapper::WordLevel(model) => Some(model.unk_token.clone()),
            // Its number is the model's own; this is the name that SentencePiece gives.
            ModelWrapper::Unigram(_) => Some("<unk>".into()),
        };
        let unknown = piece.and_then(|piece| inner.token_to_id(&piece)).map(i64::from);
        let vocab = inner.get_vocab(true).into_values().max().map_or(0, |last| last as usize + 1);
        Self { inner, vocab, unknown }
    }

    /// The tokens of each text, on the threads of the current rayon pool.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] where the tokenizer fails, such as at a letter that it does not know, without a token for such.
    pub fn encode(&self, texts: Vec<String>) -> Result<Vec<Vec<i64>>> {
        let encodings = self.inner.encode_batch_fast(texts, false);
        let failed = |cause: tokenizers::Error| Error::invalid(format!("the tokenizer failed: {cause}"));
        let ids = |encoding: tokenizers::Encoding| encoding.get_ids().iter().map(|&id| i64::from(id)).collect();
        Ok(encodings.map_err(failed)?.into_iter().map(ids).collect())
    }

    /// One more than the largest token: the rows an embedding must have.
    pub fn vocab_size(&self) -> usize {
        self.vocab
    }

    /// The number of a piece, such as `<|endoftext|>`.
    pub fn piece(&self, piece: &str) -> Option<i64> {
        self.inner.token_to_id(piece).map(i64::from)
    }

    /// How many of these tokens stand for what is not known.
    pub(super) fn unknown_in(&self, texts: &[Vec<i64>]) -> usize {
        let Some(unknown) = self.unknown else { return 0 };
        texts.iter().flatten().filter(|token| **token == unknown).count()
    }
}

impl std::fmt::Debug for TextEncoder {
    /// Without the vocabulary, which has thousands of entries.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextEncoder")
            .field("vocab", &self.vocab)
            .field("unknown", &self.unknown)
            .finish_non_exhaustive()
    }
}

impl From<&Tokenizer> for TextEncoder {
    fn from(tokenizer: &Tokenizer) -> Self {
        Self::new(tokenizer.inner().clone())
    }
}

impl From<&WordPiece> for TextEncoder {
    fn from(pieces: &WordPiece) -> Self {
        Self::new(pieces.inner().clone())
    }
}
