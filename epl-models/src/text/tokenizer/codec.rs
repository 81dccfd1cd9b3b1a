use std::fmt;
use std::path::Path;

use epl_core::checkpoint::durable::Unpublished;

use crate::text::{Error, Result};

/// T5's special tokens, in the order of their numbers in a vocabulary that is learned here.
pub(super) const SPECIAL: [&str; 3] = ["<pad>", "</s>", "<unk>"];

/// Cuts texts into numbered pieces and joins pieces to texts.
///
/// Learned here ([`characters`](Self::characters), [`BpeConfig`](super::BpeConfig)) or loaded from a
/// `tokenizer.json`. What a tokenizer learned here encodes without an unknown piece is decoded to exactly the same
/// text: spaces at both ends, runs of spaces and words that look like special tokens included.
#[derive(Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    vocab_size: usize,
    pad: i64,
    eos: i64,
    unk: i64,
}

impl Tokenizer {
    /// Wraps a tokenizer of the T5 kind; the `Err` is what is wrong with it.
    pub(super) fn wrap(mut inner: tokenizers::Tokenizer) -> Result<Self, String> {
        // A text that contains "</s>" is text, not the end of a sentence.
        inner.set_encode_special_tokens(true);
        let find = |token: &str| {
            inner
                .token_to_id(token)
                .map(i64::from)
                .ok_or(format!("it has no token {token}; pad, end and unknown must be called {}", SPECIAL.join(", ")))
        };
        let (pad, eos, unk) = (find(SPECIAL[0])?, find(SPECIAL[1])?, find(SPECIAL[2])?);
        let last = inner.get_vocab(true).into_values().max().unwrap_or(0);
        let tokenizer = Self { inner, vocab_size: last as usize + 1, pad, eos, unk };
        // A model without an unknown piece fails at the first rare character; find that out now.
        match tokenizer.encode("\u{10ffff}") {
            Ok(_) => Ok(tokenizer),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Reads a `tokenizer.json`: one written by [`save`](Self::save) or any whose special tokens are called as in T5.
    ///
    /// # Errors
    /// [`Error::Open`] if there is no such file, [`Error::TokenizerFile`] if it is not such a tokenizer.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|cause| Error::Open { path: path.into(), cause })?;
        let fail = |cause| Error::TokenizerFile { path: path.into(), cause };
        let inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| fail(error.to_string()))?;
        Self::wrap(inner).map_err(fail)
    }

    /// Writes the tokenizer as JSON. The same tokenizer always gives the same bytes. A file that is there is replaced when
    /// the new one is whole; several processes may write it.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let text = self.to_json()?;
        let written = Unpublished::write(path.as_ref(), |write| write(text.as_bytes()));
        written.and_then(Unpublished::publish).map_err(|cause| Error::Write { cause })
    }

    /// The content of the file that [`save`](Self::save) writes.
    ///
    /// # Errors
    /// [`Error::Tokenizer`], which a tokenizer learned here never gives.
    pub fn to_json(&self) -> Result<String> {
        self.inner.to_string(false).map_err(failed("writing itself as JSON"))
    }

    /// The pieces of a text, followed by the end token.
    ///
    /// # Errors
    /// [`Error::Tokenizer`], which a tokenizer learned here never gives.
    pub fn encode(&self, text: &str) -> Result<Vec<i64>> {
        let encoding = self.inner.encode_fast(text, false).map_err(failed("cutting a text"))?;
        Ok(self.finish(encoding.get_ids()))
    }

    /// Many texts at once, on the threads of the current rayon pool; the same result as one by one.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_batch(&self, texts: Vec<String>) -> Result<Vec<Vec<i64>>> {
        let encodings = self.inner.encode_batch_fast(texts, false).map_err(failed("cutting texts"))?;
        Ok(encodings.iter().map(|encoding| self.finish(encoding.get_ids())).collect())
    }

    fn finish(&self, ids: &[u32]) -> Vec<i64> {
        ids.iter().map(|&id| i64::from(id)).chain([self.eos]).collect()
    }

    /// The text of generated tokens: up to the first end token, without padding (so also without the decoder's
    /// start), and without numbers outside the vocabulary, which a model with a padded vocabulary may produce.
    /// An unknown piece reads `<unk>`.
    ///
    /// # Errors
    /// [`Error::Tokenizer`], which a tokenizer learned here never gives.
    pub fn decode(&self, tokens: &[i64]) -> Result<String> {
        let ids: Vec<u32> = tokens
            .iter()
            .take_while(|&&token| token != self.eos)
            .filter(|&&token| token != self.pad)
            .filter_map(|&token| u32::try_from(token).ok())
            .collect();
        self.inner.decode(&ids, false).map_err(failed("joining pieces"))
    }

    /// The pieces of a text as strings, without the end token: for looking at a segmentation. Byte-level pieces
    /// are shown in their printable form (`Ġ` is a space).
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn pieces(&self, text: &str) -> Result<Vec<String>> {
        let encoding = self.inner.encode(text, false).map_err(failed("cutting a text"))?;
        Ok(encoding.get_tokens().to_vec())
    }

    /// What it wraps.
    pub(crate) fn inner(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    /// One more than the largest token number: the rows an embedding must have.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The padding token; 0 in a tokenizer learned here.
    pub fn pad(&self) -> i64 {
        self.pad
    }

    /// The token that ends every sentence; 1 in a tokenizer learned here.
    pub fn eos(&self) -> i64 {
        self.eos
    }

    /// The token of an unknown piece; 2 in a tokenizer learned here.
    pub fn unk(&self) -> i64 {
        self.unk
    }

    /// What the decoder is fed first: the padding token, as in T5.
    pub fn decoder_start(&self) -> i64 {
        self.pad
    }
}

impl fmt::Debug for Tokenizer {
    /// Without the vocabulary, which may have a hundred thousand entries.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size)
            .field("pad", &self.pad)
            .field("eos", &self.eos)
            .field("unk", &self.unk)
            .finish()
    }
}

/// Turns an error of the crate `tokenizers` into ours.
pub(super) fn failed(doing: &'static str) -> impl Fn(tokenizers::Error) -> Error {
    move |cause| Error::Tokenizer { doing, cause: cause.to_string() }
}
