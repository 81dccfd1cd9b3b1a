//! Uncased BERT's pieces of a text (Devlin et al., 2019; WordPiece: Wu et al., 2016), each with its place in the text.
//!
//! ```text
//! "Zoë’s\tTea-pots"
//!   clean up       control characters away, every space a plain one, Chinese characters apart
//!   lower, strip   "zoe’s tea-pots"                 accents away (NFD without nonspacing marks), lower case
//!   words          zoe  ’  s  tea  -  pots          at spaces and around punctuation
//!   pieces         zoe  ’  s  tea  -  pot  ##s      the longest first, [UNK] for a word that cannot be cut
//!   characters     0..3 3..4 4..5 6..9 9..10 10..13 13..14
//! ```
//!
//! The steps are those of the crate `tokenizers`. One character is treated otherwise than by BERT's first program: a
//! Greek capital sigma at the end of a word becomes σ, not ς.

use std::ops::Range;
use std::path::Path;

use tokenizers::models::wordpiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

use super::vocabulary::SPECIAL;
use super::{Error, Pieces, Result, Vocabulary};

/// A longer word is unknown.
const LONGEST_WORD: usize = 100;

/// Cuts texts into pieces of a vocabulary.
///
/// Text is only text: `[SEP]` in a context is three pieces, never the special one.
///
/// ```
/// use epl_models::squad::{Vocabulary, WordPiece};
///
/// let pieces = WordPiece::new(Vocabulary::learn(["a cafe by the sea"], 60)?)?; // or `WordPiece::load("vocab.txt")`
/// let text = "The Café[SEP]";
/// let cut = pieces.encode(text)?;
/// let shown: Vec<_> = cut.ids().iter().filter_map(|id| pieces.piece(*id)).collect();
/// assert_eq!(shown[..2], ["the", "cafe"]);
/// assert_eq!(cut.characters()[1], 4..8); // of the text, with its accent and its capital
/// assert!(!cut.ids().contains(&pieces.sep()));
/// # Ok::<_, epl_models::squad::Error>(())
/// ```
#[derive(Clone)]
pub struct WordPiece {
    inner: tokenizers::Tokenizer,
    vocabulary: Vocabulary,
    special: [i64; SPECIAL.len()],
}

impl WordPiece {
    /// Cuts into the pieces of this vocabulary.
    ///
    /// # Errors
    /// [`Error::Tokenizer`], which a checked vocabulary never gives.
    pub fn new(vocabulary: Vocabulary) -> Result<Self> {
        let pieces = wordpiece::WordPiece::read_bytes(vocabulary.lines().as_bytes()).map_err(failed("starting"))?;
        let model = wordpiece::WordPiece::builder()
            .vocab(pieces)
            .unk_token(SPECIAL[1].into())
            .continuing_subword_prefix("##".into())
            .max_input_chars_per_word(LONGEST_WORD);
        let mut inner = tokenizers::Tokenizer::new(model.build().map_err(failed("starting"))?);
        inner.with_normalizer(Some(normalizer()));
        inner.with_pre_tokenizer(Some(BertPreTokenizer));
        let number = |piece: &str| inner.token_to_id(piece).map(i64::from);
        let missing = || Error::Tokenizer { doing: "looking for special pieces", cause: "one is missing".into() };
        let [pad, unk, cls, sep] = SPECIAL.map(|piece| number(piece).ok_or_else(missing));
        let special = [pad?, unk?, cls?, sep?];
        Ok(Self { inner, vocabulary, special })
    }

    /// Cuts into the pieces of a `vocab.txt`.
    ///
    /// # Errors
    /// As [`Vocabulary::load`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Self::new(Vocabulary::load(path)?)
    }

    /// The pieces of a text, without `[CLS]` and `[SEP]`.
    ///
    /// A piece covers the accents that were stripped after its last letter, so that they are in an answer made of it.
    /// One limit: marks that Unicode orders and BERT keeps (the tone marks of old Hangul, musical stems, marks that
    /// are younger than the tables of `tokenizers`) are pieces in Unicode's order, and if the text has its marks in
    /// another order, such a piece has the place of the mark that stood there.
    ///
    /// # Errors
    /// [`Error::Tokenizer`], which a checked vocabulary never gives.
    pub fn encode(&self, text: &str) -> Result<Pieces> {
        let encoding = self.inner.encode_char_offsets(text, false).map_err(failed("cutting a text"))?;
        let places = encoding.get_offsets().iter().map(|&(start, end)| start..end).collect();
        let places = with_marks(text, places)?;
        Ok(Pieces::new(encoding.get_ids().iter().map(|&id| i64::from(id)).zip(places)))
    }

    /// The piece of a number; none if the vocabulary has no such number.
    pub fn piece(&self, id: i64) -> Option<&str> {
        self.vocabulary.pieces().get(usize::try_from(id).ok()?).map(String::as_str)
    }

    /// What cuts a text.
    pub(crate) fn inner(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    /// The number of a piece, such as `[MASK]`.
    pub fn number(&self, piece: &str) -> Option<i64> {
        self.inner.token_to_id(piece).map(i64::from)
    }

    /// The rows an embedding must have.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.pieces().len()
    }

    /// Of each piece whether it goes on with the word of the one before.
    pub fn goes_on(&self) -> Vec<bool> {
        self.vocabulary.pieces().iter().map(|piece| piece.starts_with("##")).collect()
    }

    /// What fills rows up.
    pub fn pad(&self) -> i64 {
        self.special[0]
    }

    /// The number of a word that cannot be cut.
    pub fn unk(&self) -> i64 {
        self.special[1]
    }

    /// What begins a row.
    pub fn cls(&self) -> i64 {
        self.special[2]
    }

    /// What ends the question and the context.
    pub fn sep(&self) -> i64 {
        self.special[3]
    }
}

impl std::fmt::Debug for WordPiece {
    /// Without the vocabulary, which has thousands of entries.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WordPiece").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

/// The words of a text as pieces are looked for in them: clean, lower case, without accents, punctuation apart.
pub(super) fn words(text: &str) -> Result<Vec<String>> {
    let mut text = NormalizedString::from(text);
    normalizer().normalize(&mut text).map_err(failed("cleaning a text"))?;
    let mut text = PreTokenizedString::from(text);
    BertPreTokenizer.pre_tokenize(&mut text).map_err(failed("cutting a text into words"))?;
    let words = text.get_splits(OffsetReferential::Original, OffsetType::Char);
    Ok(words.into_iter().map(|(word, ..)| word.into()).collect())
}

/// Clean up, Chinese characters apart, strip accents, lower case.
fn normalizer() -> BertNormalizer {
    BertNormalizer::new(true, true, Some(true), true)
}

/// Extends every piece over the stripped marks that follow it. No piece begins with one, so none is in two words.
fn with_marks(text: &str, mut places: Vec<Range<usize>>) -> Result<Vec<Range<usize>>> {
    if text.is_ascii() {
        return Ok(places);
    }
    let letters: Vec<char> = text.chars().collect();
    for place in &mut places {
        while let Some(&letter) = letters.get(place.end)
            && is_mark(letter)?
        {
            place.end += 1;
        }
    }
    Ok(places)
}

/// Whether BERT strips this character as an accent.
fn is_mark(letter: char) -> Result<bool> {
    if letter.is_ascii() {
        return Ok(false);
    }
    let mut text = NormalizedString::from(letter.to_string());
    let strip = BertNormalizer::new(false, false, Some(true), false);
    strip.normalize(&mut text).map_err(failed("looking for accents"))?;
    Ok(text.get().is_empty())
}

/// Turns an error of the crate `tokenizers` into ours.
fn failed(doing: &'static str) -> impl Fn(tokenizers::Error) -> Error {
    move |cause| Error::Tokenizer { doing, cause: cause.to_string() }
}

#[cfg(test)]
mod tests;
