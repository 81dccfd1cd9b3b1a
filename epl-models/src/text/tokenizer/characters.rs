use tokenizers::{decoders::fuse::Fuse, models::bpe::BpeTrainer};

use super::Tokenizer;
use super::piece::{empty_model, failed, special_tokens};
use crate::text::{Error, Result};

impl Tokenizer {
    /// Learns a tokenizer of single characters: all that occur in the texts, in the order of Unicode.
    ///
    /// It is the byte-pair model without a merge, so the file has the same form. The order of the texts does not
    /// matter.
    ///
    /// # Errors
    /// [`Error::NoText`] if there is no character.
    pub fn characters<S: AsRef<str> + Send>(texts: impl Iterator<Item = S> + Send) -> Result<Self> {
        let mut inner = tokenizers::Tokenizer::new(empty_model()?);
        inner.with_decoder(Some(Fuse::new()));
        // A vocabulary smaller than the alphabet: the trainer takes the alphabet and merges nothing.
        let trainer = BpeTrainer::builder().vocab_size(0).show_progress(false).special_tokens(special_tokens());
        inner.train(&mut trainer.build().into(), texts).map_err(failed("learning characters"))?;
        let tokenizer = Self::wrap(inner).map_err(|cause| Error::Tokenizer { doing: "learning characters", cause })?;
        if tokenizer.vocab_size() == special_tokens().len() { Err(Error::NoText) } else { Ok(tokenizer) }
    }
}
