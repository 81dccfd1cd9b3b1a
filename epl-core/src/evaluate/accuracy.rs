//! The share of samples whose class is among the first k.

use burn::tensor::{Bool, Tensor};

use super::classified::Classified;
use super::measure::{Measure, Values, mean};
use crate::error::Result;

/// The share of samples that are right, from 0 to 1.
pub struct Accuracy<O> {
    name: String,
    right: Box<Right<O>>,
}

/// How many samples are right, and how many there are.
type Right<O> = dyn Fn(&O) -> (usize, usize);

impl Accuracy<Classified> {
    /// Right is a sample whose class is among the `k` with the largest logits: `accuracy`, or `top_5_accuracy`.
    pub fn top(k: usize) -> Self {
        let name = if k == 1 { "accuracy".to_string() } else { format!("top_{k}_accuracy") };
        let right =
            move |output: &Classified| (output.places.iter().filter(|place| **place < k).count(), output.places.len());
        Self { name, right: Box::new(right) }
    }
}

impl<O> Accuracy<O> {
    /// Right is what the forward found to be right, one boolean a sample: where the logits are split over ranks, only
    /// the forward knows.
    pub fn of(name: &str, right: impl Fn(&O) -> Tensor<1, Bool> + 'static) -> Self {
        let right = move |output: &O| {
            let right = right(output).into_data();
            (right.iter::<bool>().filter(|right| *right).count(), right.num_elements())
        };
        Self { name: name.to_string(), right: Box::new(right) }
    }

    /// Of each output how many samples are right, and how many there are, as its maker has counted.
    pub fn counted(name: &str, right: impl Fn(&O) -> (usize, usize) + 'static) -> Self {
        Self { name: name.to_string(), right: Box::new(right) }
    }

    /// Calls the value something else.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.to_string();
        self
    }
}

impl<O> Measure<O> for Accuracy<O> {
    fn sums(&self) -> usize {
        2
    }

    fn add(&self, output: &O, sums: &mut [f64]) -> Result<()> {
        let (right, count) = (self.right)(output);
        sums[0] += right as f64;
        sums[1] += count as f64;
        Ok(())
    }

    fn values(&self, sums: &[f64]) -> Result<Values> {
        Ok(vec![(self.name.clone(), mean(&self.name, sums[0], sums[1], "samples")?)])
    }
}
