//! F1 over classes: the harmonic mean of precision and recall.

use super::classified::Classified;
use super::measure::{Measure, Values, mean};
use crate::error::{Error, Result};

/// How the classes make one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Average {
    /// The mean of the classes' F1. A class that neither occurs nor is predicted is left out.
    Macro,
    /// The F1 of the counts of all classes together. Where every sample has one class, it is the accuracy.
    Micro,
    /// The F1 of this class alone, such as the positive one of two. Zero if it neither occurs nor is predicted.
    Of(usize),
}

/// F1 = 2 · true positives ÷ (2 · true positives + false positives + false negatives), from 0 to 1.
#[derive(Clone, Debug)]
pub struct F1 {
    name: String,
    classes: usize,
    average: Average,
}

impl F1 {
    /// The F1 of this many classes: `f1`.
    pub fn new(classes: usize, average: Average) -> Self {
        Self { name: "f1".to_string(), classes, average }
    }

    /// Calls the value something else, such as `macro_f1` beside another.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.to_string();
        self
    }

    /// The class that a number stands for.
    fn class(&self, number: i64) -> Result<usize> {
        usize::try_from(number).ok().filter(|class| *class < self.classes).ok_or_else(|| {
            Error::invalid(format!(
                "`{}` is measured over {} classes, and a sample is of class {number}; give it the model's number of \
                 classes",
                self.name, self.classes
            ))
        })
    }
}

/// F1 of counts; none where there is nothing to find and nothing was found.
fn f1([hits, found, there]: [f64; 3]) -> Option<f64> {
    (found + there > 0.0).then(|| 2.0 * hits / (found + there))
}

/// A class's true positives, what was predicted as it, and what is of it, are sums that follow each other.
impl Measure<Classified> for F1 {
    fn sums(&self) -> usize {
        3 * self.classes
    }

    fn add(&self, output: &Classified, sums: &mut [f64]) -> Result<()> {
        for (target, predicted) in output.targets.iter().zip(&output.predicted) {
            let (target, predicted) = (self.class(*target)?, self.class(*predicted)?);
            if target == predicted {
                sums[3 * target] += 1.0;
            }
            sums[3 * predicted + 1] += 1.0;
            sums[3 * target + 2] += 1.0;
        }
        Ok(())
    }

    fn values(&self, sums: &[f64]) -> Result<Values> {
        let classes: Vec<[f64; 3]> = sums.chunks_exact(3).map(|class| [class[0], class[1], class[2]]).collect();
        let together = || classes.iter().fold([0.0; 3], |sum, class| [0, 1, 2].map(|index| sum[index] + class[index]));
        let scores: Vec<f64> = match self.average {
            Average::Macro => classes.iter().copied().filter_map(f1).collect(),
            Average::Micro => f1(together()).into_iter().collect(),
            Average::Of(class) => {
                let score = f1(classes[self.class(class as i64)?]).unwrap_or(0.0);
                f1(together()).map(|_| score).into_iter().collect()
            }
        };
        let score = mean(&self.name, scores.iter().sum(), scores.len() as f64, "samples")?;
        Ok(vec![(self.name.clone(), score)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(measure: &F1, targets: &[i64], predicted: &[i64]) -> Result<f64> {
        let mut sums = vec![0.0; measure.sums()];
        let places = vec![0; targets.len()];
        let output = Classified { targets: targets.to_vec(), predicted: predicted.to_vec(), places };
        measure.add(&output, &mut sums)?;
        Ok(measure.values(&sums)?[0].1)
    }

    #[test]
    fn the_averages_are_those_of_the_definition() {
        let (targets, predicted) = ([0, 1, 2, 0, 1, 2], [0, 2, 1, 0, 0, 1]);
        // Class 0: 2 of 3 found, 2 of 2 there: 0.8. Classes 1 and 2: none. Class 3 does not occur.
        let score = |average| of(&F1::new(4, average), &targets, &predicted).unwrap();
        assert!((score(Average::Macro) - 0.8 / 3.0).abs() < 1e-15);
        assert!((score(Average::Micro) - 2.0 / 6.0).abs() < 1e-15);
        assert_eq!((score(Average::Of(0)), score(Average::Of(2))), (0.8, 0.0));
    }

    #[test]
    fn a_class_beyond_the_last_and_no_sample_are_refused() {
        let text = of(&F1::new(2, Average::Macro), &[2], &[0]).unwrap_err().to_string();
        assert!(text.contains("2 classes, and a sample is of class 2"), "{text}");
        assert_eq!(of(&F1::new(3, Average::Of(2)), &[0], &[1]).unwrap(), 0.0);
        for average in [Average::Macro, Average::Micro, Average::Of(0)] {
            assert!(of(&F1::new(3, average), &[], &[]).unwrap_err().to_string().contains("0 samples"));
        }
    }
}
