use std::fmt;

use super::{BleuCounts, ORDER};

/// A corpus's BLEU score and its components.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bleu {
    /// The score, 0 to 100.
    pub score: f64,
    /// Precision of each order in percent, after smoothing.
    pub precisions: [f64; ORDER],
    /// One if the hypotheses are at least as long as the references, less if they are shorter.
    pub brevity_penalty: f64,
    /// What it was computed from.
    pub counts: BleuCounts,
}

impl Bleu {
    /// The score of pairs of (hypothesis, reference), plain text.
    ///
    /// ```
    /// use epl_models::text::Bleu;
    /// let bleu = Bleu::of([("the cat sat on a mat", "the cat sat on the mat")]);
    /// assert!((bleu.score - 53.7285).abs() < 1e-3);
    /// ```
    pub fn of<H: AsRef<str>, R: AsRef<str>>(pairs: impl IntoIterator<Item = (H, R)>) -> Self {
        let mut counts = BleuCounts::new();
        for (hypothesis, reference) in pairs {
            counts.add(hypothesis.as_ref(), reference.as_ref());
        }
        counts.score()
    }

    pub(super) fn new(counts: BleuCounts) -> Self {
        let brevity_penalty = brevity_penalty(counts.hypothesis_length, counts.reference_length);
        let precisions = precisions(&counts);
        // An order without any n-gram has precision zero, and so has the score: no effective order here.
        let score = if precisions.contains(&0.0) {
            0.0
        } else {
            brevity_penalty * (precisions.iter().map(|p| p.ln()).sum::<f64>() / ORDER as f64).exp()
        };
        Self { score, precisions, brevity_penalty, counts }
    }

    /// Length of the hypotheses over length of the references; zero without references.
    pub fn length_ratio(&self) -> f64 {
        let BleuCounts { hypothesis_length, reference_length, .. } = self.counts;
        if reference_length == 0 { 0.0 } else { hypothesis_length as f64 / reference_length as f64 }
    }
}

impl BleuCounts {
    /// The score of what was counted.
    pub fn score(&self) -> Bleu {
        Bleu::new(*self)
    }
}

impl fmt::Display for Bleu {
    /// As sacreBLEU prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, two, three, four] = self.precisions;
        write!(f, "BLEU = {:.2} {one:.1}/{two:.1}/{three:.1}/{four:.1} ", self.score)?;
        write!(f, "(BP = {:.3} ratio = {:.3} ", self.brevity_penalty, self.length_ratio())?;
        write!(f, "hyp_len = {} ref_len = {})", self.counts.hypothesis_length, self.counts.reference_length)
    }
}

/// `exp(1 - reference / hypothesis)` for hypotheses that are too short.
fn brevity_penalty(hypothesis: u64, reference: u64) -> f64 {
    match hypothesis {
        _ if hypothesis >= reference => 1.0,
        0 => 0.0,
        _ => (1.0 - reference as f64 / hypothesis as f64).exp(),
    }
}

/// Percentages; the k-th order without a match counts as 1 / 2^k matches (NIST's smoothing, `exp` in sacreBLEU).
/// Without any match at all they stay zero.
fn precisions(counts: &BleuCounts) -> [f64; ORDER] {
    let mut precisions = [0.0; ORDER];
    if counts.matches == [0; ORDER] {
        return precisions;
    }
    let mut smoothing = 1.0;
    for (precision, (&matches, &total)) in precisions.iter_mut().zip(counts.matches.iter().zip(&counts.totals)) {
        if total == 0 {
            break;
        }
        *precision = if matches == 0 {
            smoothing *= 2.0;
            100.0 / (smoothing * total as f64)
        } else {
            100.0 * matches as f64 / total as f64
        };
    }
    precisions
}
