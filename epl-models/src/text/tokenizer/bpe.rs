use burn::config::Config;
use tokenizers::decoders::{byte_level::ByteLevel as ByteDecoder, sequence::Sequence, strip::Strip};
use tokenizers::normalizers::prepend::Prepend;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::Tokenizer;
use super::codec::SPECIAL;
use super::learn::{empty, learn, trainer};
use crate::text::{Error, Result};

/// Learns byte-pair pieces (Sennrich et al., 2016) over bytes (GPT-2) from the training text.
///
/// How a text is cut:
/// 1. One space is put before it, so that a word is the same piece at the start and inside of a text. It is taken
///    away again after joining, so nothing is lost, not even spaces at the ends.
/// 2. It is cut before every space and between letters, digits and other signs (GPT-2's expression): `forty-two` is
///    three words, a full stop never sticks to its word.
/// 3. Within these words the learned pairs are merged. A merge never crosses a word, so English number words become
///    whole pieces, and a German number, which is one long word, becomes a chain of its frequent parts.
///
/// Training is deterministic: frequencies are exact counts, ties go to the lower piece numbers, and the numbers come
/// from the order of the bytes.
///
/// ```
/// use epl_models::text::BpeConfig;
/// let texts = ["forty-two", "two hundred forty-two"];
/// let tokenizer = BpeConfig::new(40).with_all_bytes(false).train(texts.into_iter())?;
/// assert_eq!(tokenizer.decode(&tokenizer.encode("two hundred two")?)?, "two hundred two");
/// # Ok::<(), epl_models::text::Error>(())
/// ```
#[derive(Config, Debug, PartialEq, Eq)]
pub struct BpeConfig {
    /// Pieces in the vocabulary, the three special tokens included. Fewer are learned when the text has no more
    /// pairs that occur [`min_frequency`](Self::min_frequency) times.
    pub vocab_size: usize,
    /// Whether all 256 bytes are in the vocabulary: then every text can be written and no piece is ever unknown.
    /// Without, only the bytes of the training text are, which leaves more of a small vocabulary to the merges.
    #[config(default = true)]
    pub all_bytes: bool,
    /// A pair seen less often is not merged.
    #[config(default = 2)]
    pub min_frequency: u64,
}

impl BpeConfig {
    /// Learns the pieces. The order of the texts does not matter; the threads of the current rayon pool are used.
    ///
    /// # Errors
    /// [`Error::NoText`] if the texts have no character, [`Error::Vocabulary`] if the vocabulary is smaller than
    /// its alphabet.
    pub fn train<S: AsRef<str> + Send>(&self, texts: impl Iterator<Item = S> + Send) -> Result<Tokenizer> {
        if self.all_bytes && self.vocab_size < 256 + SPECIAL.len() {
            return Err(self.too_small(256, "bytes"));
        }
        let mut trainer = trainer().vocab_size(self.vocab_size).min_frequency(self.min_frequency);
        if self.all_bytes {
            trainer = trainer.initial_alphabet(ByteLevel::alphabet().into_iter().collect());
        }
        let tokenizer = learn(scheme()?, trainer, texts)?;
        if tokenizer.vocab_size() > self.vocab_size {
            // The trainer keeps the whole alphabet whatever size was asked for.
            let alphabet = tokenizer.vocab_size() - SPECIAL.len();
            return Err(self.too_small(alphabet, "bytes of the training text"));
        }
        Ok(tokenizer)
    }

    fn too_small(&self, alphabet: usize, what: &'static str) -> Error {
        let remedy = if self.all_bytes { "ask for more, or set all_bytes = false" } else { "ask for more pieces" };
        Error::Vocabulary { asked: self.vocab_size, special: SPECIAL.len(), alphabet, what, remedy }
    }
}

/// Everything but the pieces: the steps of [`BpeConfig`] and their inverse.
fn scheme() -> Result<tokenizers::Tokenizer> {
    let mut inner = empty()?;
    inner.with_normalizer(Some(Prepend::new(" ".into())));
    inner.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    // The byte decoder joins all pieces into one string, from whose start one space is taken.
    let decoder = Sequence::new(vec![ByteDecoder::default().into(), Strip::new(' ', 1, 0).into()]);
    inner.with_decoder(Some(decoder));
    Ok(inner)
}
