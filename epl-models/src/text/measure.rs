//! Measures of texts that a model wrote, for an [`Evaluator`](epl_core::evaluate::Evaluator): in percent, as their
//! definitions say.

use epl_core::Error;
use epl_core::evaluate::measure::{Measure, Values, mean};

use super::answer::{normalized, token_f1};
use super::bleu::{BleuCounts, ORDER};

/// A text that a model wrote, and those that it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// What the model wrote.
    pub hypothesis: String,
    /// What it should have written: any of them. None: a question without an answer.
    pub references: Vec<String>,
}

impl Judged {
    /// A text with one reference.
    pub fn new(hypothesis: impl Into<String>, reference: impl Into<String>) -> Self {
        Self { hypothesis: hypothesis.into(), references: vec![reference.into()] }
    }

    /// The best score that any reference gives.
    fn best(&self, score: impl Fn(&str, &str) -> f64) -> f64 {
        let scores = self.references.iter().map(|reference| score(&self.hypothesis, reference));
        scores.reduce(f64::max).unwrap_or_else(|| score(&self.hypothesis, ""))
    }
}

/// Corpus BLEU by sacreBLEU's definition: `bleu`. See [`bleu`](super::bleu).
#[derive(Clone, Debug, Default)]
pub struct CorpusBleu;

impl Measure<Vec<Judged>> for CorpusBleu {
    fn sums(&self) -> usize {
        2 + 2 * ORDER
    }

    fn add(&self, output: &Vec<Judged>, sums: &mut [f64]) -> epl_core::Result<()> {
        let mut counts = BleuCounts::new();
        for judged in output {
            let [reference] = &judged.references[..] else {
                return Err(Error::invalid(format!(
                    "BLEU of a text with {} references; it is computed with one: give each text one",
                    judged.references.len()
                )));
            };
            counts.add(&judged.hypothesis, reference);
        }
        sums.iter_mut().zip(counts.values()).for_each(|(sum, count)| *sum += count);
        Ok(())
    }

    fn values(&self, sums: &[f64]) -> epl_core::Result<Values> {
        let counts = BleuCounts::from_values(std::array::from_fn(|index| sums[index]));
        Ok(vec![("bleu".to_string(), counts.score().score)])
    }
}

/// A mean over texts of a score that the best reference gives.
#[derive(Clone, Debug)]
pub struct MeanScore {
    name: &'static str,
    score: fn(&str, &str) -> f64,
}

impl MeanScore {
    /// The share of texts that equal a reference, character by character: `exact_match`.
    pub fn equal() -> Self {
        Self { name: "exact_match", score: |hypothesis, reference| f64::from(u8::from(hypothesis == reference)) }
    }

    /// The share of texts that equal a reference as SQuAD compares them, [`normalized`]: `exact_match`.
    pub fn exact_match() -> Self {
        let score =
            |hypothesis: &str, reference: &str| f64::from(u8::from(normalized(hypothesis) == normalized(reference)));
        Self { name: "exact_match", score }
    }

    /// The mean of SQuAD's F1, [`token_f1`]: `f1`.
    pub fn token_f1() -> Self {
        Self { name: "f1", score: token_f1 }
    }

    /// Calls the value something else.
    #[must_use]
    pub fn named(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }
}

impl Measure<Vec<Judged>> for MeanScore {
    fn sums(&self) -> usize {
        2
    }

    fn add(&self, output: &Vec<Judged>, sums: &mut [f64]) -> epl_core::Result<()> {
        sums[0] += output.iter().map(|judged| judged.best(self.score)).sum::<f64>();
        sums[1] += output.len() as f64;
        Ok(())
    }

    fn values(&self, sums: &[f64]) -> epl_core::Result<Values> {
        // Multiplied first: whole numbers stay whole.
        Ok(vec![(self.name.to_string(), mean(self.name, 100.0 * sums[0], sums[1], "texts")?)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Bleu;

    fn of(measure: &impl Measure<Vec<Judged>>, batches: &[Vec<Judged>]) -> f64 {
        let mut sums = vec![0.0; measure.sums()];
        batches.iter().for_each(|batch| measure.add(batch, &mut sums).unwrap());
        measure.values(&sums).unwrap()[0].1
    }

    #[test]
    fn the_best_reference_counts_and_none_means_no_answer() {
        let judged = |hypothesis: &str, references: &[&str]| Judged {
            hypothesis: hypothesis.into(),
            references: references.iter().map(ToString::to_string).collect(),
        };
        let batches = [
            vec![judged("the cat", &["a dog", "Cat!"]), judged("black cat", &["cat", "dog"])],
            vec![judged("", &[]), judged("something", &[])],
        ];
        assert_eq!(of(&MeanScore::exact_match(), &batches), 50.0);
        assert_eq!(of(&MeanScore::equal(), &batches), 25.0);
        assert_eq!(of(&MeanScore::token_f1(), &batches), 100.0 * (1.0 + 2.0 / 3.0 + 1.0) / 4.0);
    }

    #[test]
    fn bleu_of_batches_is_that_of_the_corpus() {
        let pairs = [("the cat sat on a mat", "the cat sat on the mat"), ("a dog ran", "a dog ran away")];
        let batches = pairs.map(|(hypothesis, reference)| vec![Judged::new(hypothesis, reference)]);
        assert_eq!(of(&CorpusBleu, &batches), Bleu::of(pairs).score);
        let two = Judged { hypothesis: "a".into(), references: vec!["a".into(), "b".into()] };
        let text = CorpusBleu.add(&vec![two], &mut [0.0; 10]).unwrap_err().to_string();
        assert!(text.contains("with 2 references"), "{text}");
    }
}
