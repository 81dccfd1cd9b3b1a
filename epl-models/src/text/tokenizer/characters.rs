use tokenizers::decoders::fuse::Fuse;

use super::Tokenizer;
use super::learn::{empty, learn, trainer};
use crate::text::Result;

impl Tokenizer {
    /// Learns a tokenizer of single characters: all that occur in the texts, in the order of Unicode.
    ///
    /// It is the byte-pair model without a merge, so the file has the same form. The order of the texts does not
    /// matter.
    ///
    /// ```
    /// use epl_models::text::Tokenizer;
    ///
    /// let tokenizer = Tokenizer::characters(["on", "no"].into_iter())?;
    /// assert_eq!(tokenizer.decode(&tokenizer.encode("noon")?)?, "noon");
    /// # Ok::<_, epl_models::text::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoText`](crate::text::Error::NoText) if there is no character.
    pub fn characters<S: AsRef<str> + Send>(texts: impl Iterator<Item = S> + Send) -> Result<Self> {
        let mut inner = empty()?;
        inner.with_decoder(Some(Fuse::new()));
        // A vocabulary smaller than the alphabet: the trainer takes the alphabet and merges nothing.
        learn(inner, trainer().vocab_size(0), texts)
    }
}
