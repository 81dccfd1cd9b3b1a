use std::collections::HashMap;

use super::{ORDER, tokenize_13a};

/// What BLEU is computed from. Counts of parts of a corpus add up to those of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BleuCounts {
    /// Tokens of the hypotheses.
    pub hypothesis_length: u64,
    /// Tokens of the references.
    pub reference_length: u64,
    /// n-grams of the hypotheses that are in their reference, each counted at most as often as there.
    pub matches: [u64; ORDER],
    /// n-grams of the hypotheses.
    pub totals: [u64; ORDER],
}

impl BleuCounts {
    /// Nothing counted yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts one sentence. Both texts are plain text, not tokenised.
    pub fn add(&mut self, hypothesis: &str, reference: &str) {
        let (hypothesis, reference) = (tokenize_13a(hypothesis), tokenize_13a(reference));
        self.hypothesis_length += hypothesis.len() as u64;
        self.reference_length += reference.len() as u64;
        for n in 1..=ORDER {
            let allowed = ngrams(&reference, n);
            for (ngram, count) in ngrams(&hypothesis, n) {
                self.totals[n - 1] += count;
                self.matches[n - 1] += count.min(allowed.get(ngram).copied().unwrap_or(0));
            }
        }
    }

    /// Adds the counts of another part of the corpus.
    pub fn merge(&mut self, other: &Self) {
        *self = Self::from_values(std::array::from_fn(|i| self.values()[i] + other.values()[i]));
    }

    /// The counts as plain numbers, for a sum over ranks; every count below 2^53 is exact.
    pub fn values(&self) -> [f64; 2 + 2 * ORDER] {
        let counts = [self.hypothesis_length, self.reference_length];
        let mut counts = counts.iter().chain(&self.matches).chain(&self.totals);
        std::array::from_fn(|_| *counts.next().expect("as many counts as values") as f64)
    }

    /// The inverse of [`values`](Self::values).
    pub fn from_values(values: [f64; 2 + 2 * ORDER]) -> Self {
        let count = |index: usize| values[index] as u64;
        Self {
            hypothesis_length: count(0),
            reference_length: count(1),
            matches: std::array::from_fn(|n| count(2 + n)),
            totals: std::array::from_fn(|n| count(2 + ORDER + n)),
        }
    }
}

/// How often each n-gram occurs.
fn ngrams(tokens: &[String], n: usize) -> HashMap<&[String], u64> {
    let mut counts = HashMap::new();
    for ngram in tokens.windows(n) {
        *counts.entry(ngram).or_default() += 1;
    }
    counts
}
