//! Exact match and f1 by the definition of `evaluate-v1.1.py` (Rajpurkar et al., 2016).
//!
//! Both texts are compared in lower case, without ASCII punctuation, without `a`, `an` and `the`, with one space
//! between words. A question counts with the best of its answers; a question without a prediction counts zero.
//! `fixtures/squad/pairs.json` has numbers of an independent program; ours are the same to the last bit.

use std::fmt;

use super::{Answer, Error, Predictions, Result, Squad};
use crate::text::{normalized, token_f1};

/// What both scores are computed from. The sums of several ranks are added with [`merge`](Self::merge).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SquadScore {
    /// Questions whose prediction equals one of their answers.
    pub matched: u64,
    /// The sum of the f1 of all questions, each from 0 to 1.
    pub f1: f64,
    /// Questions, answered or not.
    pub total: u64,
}

impl SquadScore {
    /// Nothing compared yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The score of predictions for a whole file.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] if a question of the file has no answer to compare with.
    pub fn of(squad: &Squad, predictions: &Predictions) -> Result<Self> {
        let mut score = Self::new();
        for (_, question) in squad.questions() {
            if question.answers.is_empty() {
                return Err(Error::NoAnswer { id: question.id.clone() });
            }
            score.add(predictions.text(&question.id), &question.answers);
        }
        Ok(score)
    }

    /// Compares one prediction, or none, with the answers to its question.
    pub fn add(&mut self, prediction: Option<&str>, answers: &[Answer]) {
        self.total += 1;
        if let Some(prediction) = prediction {
            let truths = || answers.iter().map(|answer| answer.text.as_str());
            self.matched += u64::from(truths().any(|truth| normalized(prediction) == normalized(truth)));
            self.f1 += truths().map(|truth| f1(prediction, truth)).fold(0.0, f64::max);
        }
    }

    /// Adds the sums of another part of the questions.
    pub fn merge(&mut self, other: &Self) {
        self.matched += other.matched;
        self.f1 += other.f1;
        self.total += other.total;
    }

    /// Questions answered exactly, in percent; zero if there was none.
    pub fn exact_match(&self) -> f64 {
        self.percent(self.matched as f64)
    }

    /// The mean f1 in percent; zero if there was no question.
    pub fn mean_f1(&self) -> f64 {
        self.percent(self.f1)
    }

    fn percent(&self, sum: f64) -> f64 {
        if self.total == 0 { 0.0 } else { 100.0 * sum / self.total as f64 }
    }
}

impl fmt::Display for SquadScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let questions = self.total;
        write!(f, "exact match {:.2}%, f1 {:.2}% of {questions} questions", self.exact_match(), self.mean_f1())
    }
}

/// F1 as version 1.1 has it: texts that share no word have none, not even two texts without a word. [`token_f1`]
/// follows version 2.0, where these are equal.
fn f1(prediction: &str, truth: &str) -> f64 {
    if normalized(prediction).is_empty() { 0.0 } else { token_f1(prediction, truth) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(texts: &[&str]) -> Vec<Answer> {
        texts.iter().map(|&text| Answer { text: text.into(), start: 0 }).collect()
    }

    fn score(prediction: Option<&str>, texts: &[&str]) -> SquadScore {
        let mut score = SquadScore::new();
        score.add(prediction, &answers(texts));
        score
    }

    #[test]
    fn the_best_of_the_answers_counts() {
        let best = score(Some("The red crab"), &["crabs", "red crab, of old", "a crab"]);
        assert_eq!((best.matched, best.f1, best.total), (0, 2.0 / 3.0, 1));
        // Exact match and f1 may come from different answers, but a match is always f1 1 if there is a word.
        assert_eq!(score(Some("Crab!"), &["red crab", "the crab"]), SquadScore { matched: 1, f1: 1.0, total: 1 });
        // Two texts without a word match and share no word.
        assert_eq!(score(Some("The"), &["..."]), SquadScore { matched: 1, f1: 0.0, total: 1 });
    }

    #[test]
    fn unanswered_questions_count_zero_and_parts_add_up() {
        let mut sum = score(None, &["crab"]);
        assert_eq!(sum, SquadScore { matched: 0, f1: 0.0, total: 1 });
        sum.merge(&score(Some("crab"), &["crab"]));
        sum.merge(&score(Some("red crab"), &["crab"]));
        assert_eq!((sum.exact_match(), sum.total), (100.0 / 3.0, 3));
        assert!((sum.mean_f1() - 500.0 / 9.0).abs() < 1e-12);
        assert_eq!(sum.to_string(), "exact match 33.33%, f1 55.56% of 3 questions");
        assert_eq!((SquadScore::new().exact_match(), SquadScore::new().mean_f1()), (0.0, 0.0));
    }

    #[test]
    fn a_file_is_scored_question_by_question() {
        let file = |answers: &str| {
            let question =
                |id: &str, answers: &str| format!(r#"{{"id":"{id}","question":"Who?","answers":[{answers}]}}"#);
            let questions = [question("p", r#"{"text":"Ada","answer_start":0}"#), question("q", answers)].join(",");
            Squad::parse(&format!(r#"{{"data":[{{"paragraphs":[{{"context":"Ada came","qas":[{questions}]}}]}}]}}"#))
        };
        let mut predictions = Predictions::new();
        let ranked = |text: &str| {
            vec![crate::squad::RankedAnswer { text: text.into(), probability: 1.0, start_logit: 0.0, end_logit: 0.0 }]
        };
        predictions.add("q", ranked("came")).unwrap();
        predictions.add("stranger", ranked("Ada")).unwrap();
        let squad = file(r#"{"text":"came","answer_start":4}"#).unwrap();
        assert_eq!(SquadScore::of(&squad, &predictions).unwrap(), SquadScore { matched: 1, f1: 1.0, total: 2 });
        let said = SquadScore::of(&file("").unwrap(), &predictions).unwrap_err().to_string();
        assert!(said.contains(r#"question "q" has no answer"#), "{said}");
    }
}
