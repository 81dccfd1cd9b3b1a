//! The share of outputs that equal their reference, character by character.

use std::fmt;

/// Counts of compared and of equal pairs. The counts of several ranks are added with [`merge`](Self::merge).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExactMatch {
    /// Pairs whose hypothesis equals the reference.
    pub matched: u64,
    /// Pairs compared.
    pub total: u64,
}

impl ExactMatch {
    /// Nothing compared yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Compares one output with its reference.
    pub fn add(&mut self, hypothesis: &str, reference: &str) {
        self.matched += u64::from(hypothesis == reference);
        self.total += 1;
    }

    /// Adds the counts of another part of the corpus.
    pub fn merge(&mut self, other: &Self) {
        self.matched += other.matched;
        self.total += other.total;
    }

    /// Equal pairs in percent; zero if nothing was compared.
    pub fn percent(&self) -> f64 {
        if self.total == 0 { 0.0 } else { 100.0 * self.matched as f64 / self.total as f64 }
    }
}

impl fmt::Display for ExactMatch {
    /// One decimal, rounded down, so that 100.0% means that all are equal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = if self.total == 0 { 0 } else { u128::from(self.matched) * 1000 / u128::from(self.total) };
        write!(f, "{}.{}%", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_over_parts() {
        let (mut left, mut right) = (ExactMatch::new(), ExactMatch::new());
        left.add("eins", "eins");
        left.add("ein", "eins");
        right.add("zwei", "zwei");
        left.merge(&right);
        assert_eq!(left, ExactMatch { matched: 2, total: 3 });
        assert_eq!(left.to_string(), "66.6%");
        assert!((left.percent() - 200.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn nothing_compared_is_zero_and_only_all_is_hundred() {
        assert_eq!(ExactMatch::new().to_string(), "0.0%");
        assert_eq!(ExactMatch { matched: 9_999, total: 10_000 }.to_string(), "99.9%");
        assert_eq!(ExactMatch { matched: 7, total: 7 }.to_string(), "100.0%");
    }
}
