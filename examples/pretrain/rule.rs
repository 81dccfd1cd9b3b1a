//! A text by rule, of which it is known how well it can be foretold.
//!
//! ```text
//! Bakemi tonuded the zikoy morulo, he sadived it.
//! └name  └verb of that name's group   └he or she, as the name is
//!                    └adjective in half of the sentences, and noun, of that verb
//!                                       └verb of that noun
//! ```
//!
//! Who writes it draws a name, a verb, an adjective, a noun and another verb, each alike likely; all else follows. One of eight
//! sentences ends its text.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const NAMES: usize = 64;
const VERBS: usize = 64;
const ADJECTIVES: usize = 64;
const NOUNS: usize = 128;
/// Of how many verbs, adjectives and nouns one is drawn.
const CHOICES: usize = 8;
/// Of how many verbs the second one is drawn.
const SECOND: usize = 4;
/// Sentences of a text, in the mean.
const SENTENCES: f64 = 8.0;

/// Texts by the rule.
pub struct Rule(ChaCha8Rng);

impl Rule {
    /// Texts that depend on the seed alone.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    fn one_of(&mut self, count: usize, nats: &mut f64) -> usize {
        *nats += (count as f64).ln();
        self.0.random_range(0..count)
    }

    /// Whether something of this probability happens.
    fn happens(&mut self, probability: f64, nats: &mut f64) -> bool {
        let happens = self.0.random_bool(probability);
        *nats -= if happens { probability.ln() } else { (1.0 - probability).ln() };
        happens
    }

    fn sentence(&mut self, nats: &mut f64) -> String {
        let name = self.one_of(NAMES, nats);
        let verb = name % 8 * CHOICES + self.one_of(CHOICES, nats);
        let adjective = if self.happens(0.5, nats) {
            let adjective = (verb * 5 + self.one_of(CHOICES, nats)) % ADJECTIVES;
            format!("{}y ", word(adjective, 2))
        } else {
            String::new()
        };
        let noun = (verb * 11 + self.one_of(CHOICES, nats)) % NOUNS;
        let second = (noun * 7 + self.one_of(SECOND, nats)) % VERBS;
        let who = if name < NAMES / 2 { "he" } else { "she" };
        let (named, verb, noun, second) = (capital(&word(name, 0)), word(verb, 1), word(noun, 3), word(second, 1));
        format!("{named} {verb}ed the {adjective}{noun}o, {who} {second}ed it.")
    }
}

impl Iterator for Rule {
    /// A text, and minus the logarithm of its probability.
    type Item = (String, f64);

    fn next(&mut self) -> Option<(String, f64)> {
        let (mut sentences, mut nats) = (Vec::new(), 0.0);
        loop {
            sentences.push(self.sentence(&mut nats));
            if self.happens(1.0 / SENTENCES, &mut nats) {
                return Some((sentences.join(" "), nats));
            }
        }
    }
}

/// A word of two syllables and a consonant; another one for each number and kind.
fn word(number: usize, kind: usize) -> String {
    const CONSONANTS: [&str; 16] = ["b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "sh", "tr"];
    const VOWELS: [&str; 4] = ["a", "e", "i", "u"];
    let consonant = |number: usize| CONSONANTS[number % CONSONANTS.len()];
    let vowel = |number: usize| VOWELS[number % VOWELS.len()];
    let (first, second, last) = (number, number / 16 + 5 * kind, number * 3 + kind);
    format!("{}{}{}{}{}", consonant(first), vowel(kind), consonant(second), vowel(number / 4), consonant(last))
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
