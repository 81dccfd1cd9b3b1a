//! Texts by rule, in which every word tells something of the next one, and hours that never go back.
//!
//! ```text
//! at three bokifa dunemed the sapuish rigobor.  at four lemafa …
//!
//! three ─────────────────────── one, two or no hours later ──────▶ four ─▶
//!          name ─▶ verb ─▶ adjective ─▶ noun ─▶ name of the next sentence ─▶
//! ```
//!
//! Of each kind of words there are 25. Word `w` of one kind is followed by one of the five words from `5 (w mod 5)` on of the next
//! kind, each alike likely: a word that stands between two that are seen is known, one beside a hidden one is one of five. Which of
//! two texts comes first is told by their hours, and where these are the same by the words at the border.

use std::ops::Range;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Of how many words one is drawn.
const CHOICES: usize = 5;
/// Words of each kind.
const WORDS: usize = CHOICES * CHOICES;
/// Kinds of words.
pub const KINDS: usize = 4;
/// Sentences of a text, which all fit into a row.
const SENTENCES: [usize; 2] = [3, 4];
const HOURS: [&str; 10] = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
/// Of how many hours the first one is drawn, and of how many each next one.
const FIRST_HOURS: usize = 4;
const NEXT_HOURS: usize = 3;

/// Words of which each is drawn from a range that the one before tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drawn {
    /// Hours.
    Hours,
    /// Names, verbs, adjectives and nouns, in turn.
    Words,
}

impl Drawn {
    /// How many there are of a kind.
    pub fn count(self) -> usize {
        match self {
            Self::Hours => HOURS.len(),
            Self::Words => WORDS,
        }
    }

    /// Of what the first of a text is drawn, or the next behind another.
    pub fn range(self, last: Option<usize>) -> Range<usize> {
        match (self, last) {
            (Self::Hours, None) => 0..FIRST_HOURS,
            (Self::Hours, Some(last)) => last..(last + NEXT_HOURS).min(HOURS.len()),
            (Self::Words, None) => 0..WORDS,
            (Self::Words, Some(last)) => CHOICES * (last % CHOICES)..CHOICES * (last % CHOICES + 1),
        }
    }
}

/// An hour as it is written.
pub fn hour(number: usize) -> String {
    HOURS[number].to_string()
}

/// A word as it is written. What it leads to cannot be read from its syllables.
pub fn word(number: usize, kind: usize) -> String {
    const BEGINS: [[&str; 7]; KINDS] = [
        ["bo", "le", "ka", "mi", "tu", "ra", "so"],
        ["du", "fe", "pa", "ti", "zo", "ki", "re"],
        ["sa", "vo", "ne", "bi", "gu", "ta", "fo"],
        ["ri", "na", "go", "pe", "du", "si", "ma"],
    ];
    const MIDDLES: [&str; 4] = ["ki", "ma", "ne", "pu"];
    const ENDS: [&str; KINDS] = ["fa", "med", "ish", "bor"];
    let place = (number * 7 + 5 * kind) % WORDS;
    format!("{}{}{}", BEGINS[kind][place / 4], MIDDLES[place % 4], ENDS[kind])
}

/// Texts by the rule, each sentence on a line of its own.
pub struct Rule(ChaCha8Rng);

impl Rule {
    /// Texts that depend on the seed alone.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }
}

impl Iterator for Rule {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let (mut time, mut last) = (None, None);
        let sentences = SENTENCES[self.0.random_range(0..SENTENCES.len())];
        let sentence = |_| {
            let now = *time.insert(self.0.random_range(Drawn::Hours.range(time)));
            let [name, verb, adjective, noun] =
                core::array::from_fn(|kind| word(*last.insert(self.0.random_range(Drawn::Words.range(last))), kind));
            format!("at {} {name} {verb} the {adjective} {noun}.", hour(now))
        };
        Some((0..sentences).map(sentence).collect::<Vec<_>>().join("\n"))
    }
}
