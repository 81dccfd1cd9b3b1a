//! A vocabulary for a small text, by a rule simple enough to be repeated by hand.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::{SPECIAL, Vocabulary};
use crate::squad::word_piece::words;
use crate::squad::{Error, Result};

/// Only pretraining needs it, but a vocabulary of BERT's has it.
const MASK: &str = "[MASK]";

impl Vocabulary {
    /// Learns pieces from texts; the same texts always give the same pieces.
    ///
    /// 1. The special pieces, then every character, then every character with `##`: so no word of these characters
    ///    is unknown (up to the 100 characters that BERT allows a word).
    /// 2. Whole words and endings of words (with `##`), those first that save most: how often they occur, times the
    ///    characters but one. Equals go by the order of their characters.
    ///
    /// There are fewer pieces than `size` if the texts have no more words and endings.
    ///
    /// ```
    /// use epl_models::squad::{Vocabulary, WordPiece};
    ///
    /// let pieces = WordPiece::new(Vocabulary::learn(["the cat sat on the mat"], 60)?)?;
    /// let cut = pieces.encode("The cats")?;
    /// let cut: Vec<_> = cut.ids().iter().filter_map(|id| pieces.piece(*id)).collect();
    /// assert_eq!(cut, ["the", "cat", "##s"]);
    /// # Ok::<_, epl_models::squad::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoText`] if the texts have no character, [`Error::Vocabulary`] if the characters alone are more than
    /// `size`.
    pub fn learn<'a>(texts: impl IntoIterator<Item = &'a str>, size: usize) -> Result<Self> {
        let counts = counted(texts)?;
        let letters: BTreeSet<char> = counts.keys().flat_map(|word| word.chars()).collect();
        let single = letters.iter().map(char::to_string);
        let inner = letters.iter().map(|letter| format!("##{letter}"));
        let special = SPECIAL.into_iter().chain([MASK]).map(String::from);
        let mut pieces: Vec<String> = special.chain(single).chain(inner).collect();
        if letters.is_empty() {
            return Err(Error::NoText);
        }
        if pieces.len() > size {
            let cause =
                format!("{size} asked for, but special pieces and characters need {}; ask for more", pieces.len());
            return Err(Error::Vocabulary { name: "a learned list".into(), cause });
        }
        pieces.extend(longer(&counts).take(size - pieces.len()));
        Self::new(pieces)
    }
}

/// How often each word occurs.
fn counted<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<BTreeMap<String, usize>> {
    let mut counts = BTreeMap::new();
    for text in texts {
        words(text)?.into_iter().for_each(|word| *counts.entry(word).or_default() += 1);
    }
    Ok(counts)
}

/// Words and endings of two characters or more, those that save most first.
fn longer(counts: &BTreeMap<String, usize>) -> impl Iterator<Item = String> {
    let mut saved: BTreeMap<String, usize> = BTreeMap::new();
    for (word, count) in counts {
        let length = word.chars().count();
        for (skipped, (byte, _)) in word.char_indices().enumerate().take(length.saturating_sub(1)) {
            let prefix = if skipped == 0 { "" } else { "##" };
            *saved.entry(format!("{prefix}{}", &word[byte..])).or_default() += count * (length - skipped - 1);
        }
    }
    let mut ranked: Vec<(String, usize)> = saved.into_iter().collect();
    // Stable: among equals the order of the map stays.
    ranked.sort_by_key(|&(_, saved)| Reverse(saved));
    ranked.into_iter().map(|(piece, _)| piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_saves_most_comes_first() {
        let vocabulary = Vocabulary::learn(["Tin, tin: pin", "Tins"], 100).unwrap();
        let expected = "[PAD] [UNK] [CLS] [SEP] [MASK] , : i n p s t ##, ##: ##i ##n ##p ##s ##t \
                        tin ##in tins ##ins pin ##ns";
        // tin 2 × 2; ##in 3 × 1; tins 3; ##ins, pin 2; ##ns 1.
        assert_eq!(vocabulary.pieces().join(" "), expected);
        let smaller = Vocabulary::learn(["Tin, tin: pin", "Tins"], 20).unwrap();
        assert_eq!(smaller.pieces(), &vocabulary.pieces()[..20]);
    }

    #[test]
    fn too_small_and_empty_are_refused() {
        let said = Vocabulary::learn(["ab"], 8).unwrap_err().to_string();
        assert!(said.contains("8 asked for, but special pieces and characters need 9"), "{said}");
        assert!(matches!(Vocabulary::learn([], 100), Err(Error::NoText)));
        assert!(matches!(Vocabulary::learn([" \u{200b}"], 100), Err(Error::NoText)));
    }
}
