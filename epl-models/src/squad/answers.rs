//! The best answers to a question from the logits of all its windows, as BERT's `run_squad` ranks them.
//!
//! 1. In each window, the `n_best` tokens most likely to start and those most likely to end an answer.
//! 2. Of their pairs those that are an answer: both in the context, the start in the window where it has most context,
//!    the end not before the start, at most `longest` pieces.
//! 3. Over all windows, those with the largest sum of start and end logit; equals stay in the order of the windows.
//! 4. Their texts, each once, the best `n_best` of them, with a softmax over their sums.
//!
//! A text is cut out of the original context at the places of its pieces. `run_squad`, which has no places, joins the
//! pieces and guesses where they were; it also puts one space for any run of spaces, which the metrics ignore.
//! Another difference: padding is never among the tokens of step 1, so a row's padding cannot change its answers.

use std::cmp::Ordering;
use std::collections::HashSet;

use burn::config::Config;
use serde::Serialize;

use super::characters::slice;
use super::windows::most_context;
use super::{Error, Features, Result};

/// What `run_squad` writes where no pair of tokens is an answer.
const NOTHING: &str = "empty";

/// How answers are ranked; by default as BERT does.
#[derive(Config, Copy, Debug, PartialEq, Eq)]
pub struct AnswersConfig {
    /// Answers that are kept, and tokens that are looked at in each window. Default: 20
    #[config(default = 20)]
    pub n_best: usize,
    /// Pieces in the longest answer. Default: 30
    #[config(default = 30)]
    pub longest: usize,
}

/// What a model says of one window: a number for every token of its row, with or without the padding.
#[derive(Clone, Copy, Debug)]
pub struct Logits<'a> {
    /// How likely the answer starts at each token.
    pub start: &'a [f32],
    /// How likely it ends there.
    pub end: &'a [f32],
}

/// An answer with what speaks for it, as in `nbest_predictions.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankedAnswer {
    /// A stretch of the context; `empty` if no stretch could be ranked.
    pub text: String,
    /// Its share among the ranked answers.
    pub probability: f64,
    /// The logit of its start.
    pub start_logit: f64,
    /// The logit of its end.
    pub end_logit: f64,
}

impl AnswersConfig {
    /// The answers to a question, the best first; never none. `logits` has its windows in their order.
    ///
    /// # Errors
    /// [`Error::Zero`] for a setting, [`Error::Logits`] if windows or tokens are missing, [`Error::NotFinite`].
    pub fn ranked(&self, features: &Features, logits: &[Logits<'_>]) -> Result<Vec<RankedAnswer>> {
        self.check()?;
        check(features, logits)?;
        let mut candidates = Vec::new();
        for (window, logits) in logits.iter().enumerate() {
            self.candidates(features, window, logits, &mut candidates);
        }
        candidates.sort_by(|a, b| larger_first(a.score(), b.score()));
        Ok(with_probabilities(self.texts(features, candidates)))
    }

    fn check(&self) -> Result<()> {
        for (name, value, usual) in [("n_best", self.n_best, 20), ("the longest answer", self.longest, 30)] {
            if value == 0 {
                return Err(Error::Zero { name, usual });
            }
        }
        Ok(())
    }

    /// The pairs of one window that are an answer.
    fn candidates(&self, features: &Features, window: usize, logits: &Logits<'_>, found: &mut Vec<Candidate>) {
        let tokens = tokens(features, window);
        // The tokens of the context, without the [SEP] that ends it.
        let context = features.context_at()..tokens - 1;
        let pieces = &features.windows()[window];
        let ends = largest(&logits.end[..tokens], self.n_best);
        for start in largest(&logits.start[..tokens], self.n_best) {
            if !context.contains(&start) {
                continue;
            }
            let piece = |token: usize| pieces.start + token - context.start;
            if most_context(features.windows(), piece(start)) != Some(window) {
                continue;
            }
            let fits = |end: &&usize| context.contains(end) && start <= **end && **end - start < self.longest;
            found.extend(ends.iter().filter(fits).map(|&end| Candidate {
                pieces: (piece(start), piece(end)),
                start: logits.start[start].into(),
                end: logits.end[end].into(),
            }));
        }
    }

    /// The best candidates with different texts, not yet with probabilities.
    fn texts(&self, features: &Features, candidates: Vec<Candidate>) -> Vec<RankedAnswer> {
        let mut seen = HashSet::new();
        let mut answers = Vec::new();
        for candidate in candidates {
            if answers.len() == self.n_best {
                break;
            }
            let text = candidate.text(features);
            if seen.insert(text) {
                let (start_logit, end_logit) = (candidate.start, candidate.end);
                answers.push(RankedAnswer { text: text.into(), probability: 0.0, start_logit, end_logit });
            }
        }
        if answers.is_empty() {
            answers.push(RankedAnswer { text: NOTHING.into(), probability: 0.0, start_logit: 0.0, end_logit: 0.0 });
        }
        answers
    }
}

/// A pair of start and end.
struct Candidate {
    /// Its first and its last piece in the context.
    pieces: (usize, usize),
    start: f64,
    end: f64,
}

impl Candidate {
    fn score(&self) -> f64 {
        self.start + self.end
    }

    fn text<'a>(&self, features: &'a Features) -> &'a str {
        let covered = features.pieces().covered(&(self.pieces.0..self.pieces.1 + 1));
        let text = covered.and_then(|characters| slice(features.context(), characters));
        text.expect("the pieces of a window are pieces of the context, and these are cut from its text")
    }
}

/// Tokens in a row, without padding.
fn tokens(features: &Features, window: usize) -> usize {
    features.context_at() + features.windows()[window].len() + 1
}

/// That there is a finite logit for every token of every window.
fn check(features: &Features, logits: &[Logits<'_>]) -> Result<()> {
    let wrong = |what: String, expected, given, remedy| {
        Err(Error::Logits { id: features.id().into(), what, expected, given, remedy })
    };
    if logits.len() != features.windows().len() {
        let remedy = "give those of all its windows, in their order";
        return wrong("window(s)".into(), features.windows().len(), logits.len(), remedy);
    }
    for (window, logits) in logits.iter().enumerate() {
        let tokens = tokens(features, window);
        for (side, values) in [("start", logits.start), ("end", logits.end)] {
            if values.len() < tokens {
                let what = format!("token(s) in window {window}");
                return wrong(what, tokens, values.len(), "give a start and an end logit for each token of the row");
            }
            if let Some(token) = values[..tokens].iter().position(|value| !value.is_finite()) {
                let value = values[token];
                return Err(Error::NotFinite { id: features.id().into(), window, side, token, value });
            }
        }
    }
    Ok(())
}

/// The places of the largest values, the largest first; equals in their order.
fn largest(values: &[f32], count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..values.len()).collect();
    places.sort_by(|&a, &b| larger_first(values[a].into(), values[b].into()));
    places.truncate(count);
    places
}

/// All values are finite when they come here. Zero and minus zero are equal.
fn larger_first(a: f64, b: f64) -> Ordering {
    b.partial_cmp(&a).unwrap_or(Ordering::Equal)
}

/// Softmax over the sums of both logits. In `f64` no sum of two `f32` is infinite.
fn with_probabilities(mut answers: Vec<RankedAnswer>) -> Vec<RankedAnswer> {
    let score = |answer: &RankedAnswer| answer.start_logit + answer.end_logit;
    let most = answers.iter().map(score).fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = answers.iter().map(|answer| (score(answer) - most).exp()).sum();
    for answer in &mut answers {
        answer.probability = (score(answer) - most).exp() / total;
    }
    answers
}

#[cfg(test)]
mod tests;
