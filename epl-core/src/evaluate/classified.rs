//! What a classifier said of some samples, on the host.

use burn::tensor::{Bool, Device, Int, Tensor};

use crate::error::{Error, Result};

/// What a classifier said of some samples: read from the device once, for all measures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classified {
    /// The class of each sample.
    pub targets: Vec<i64>,
    /// The class with the largest logit; among equals, the first.
    pub predicted: Vec<i64>,
    /// How many classes came before the sample's own: those with a larger logit, or an equal one and a lower number.
    pub places: Vec<usize>,
}

impl Classified {
    /// From the logits of all classes. Samples whose target is `ignored`, such as padding, are left out.
    ///
    /// ```
    /// use burn::tensor::{Device, Int, Tensor};
    /// use epl_core::evaluate::Classified;
    ///
    /// let device = Device::flex();
    /// let logits = Tensor::<2>::from_floats([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]], &device);
    /// let said = Classified::from_logits(logits, Tensor::<1, Int>::from_ints([1, 2], &device), None)?;
    /// assert_eq!((said.predicted, said.places), (vec![1, 0], vec![0, 2]));
    /// # Ok::<_, epl_core::Error>(())
    /// ```
    ///
    /// # Shapes
    ///
    /// - logits: `[samples, classes]`
    /// - targets: `[samples]`
    ///
    /// # Errors
    ///
    /// When the numbers of samples differ, a target is no class, or a logit is not a number.
    pub fn from_logits(logits: Tensor<2>, targets: Tensor<1, Int>, ignored: Option<i64>) -> Result<Self> {
        let ([rows, classes], [given]) = (logits.dims(), targets.dims());
        if rows != given {
            return Err(Error::invalid(format!("logits of {rows} samples and targets of {given}; give one for each")));
        }
        let numbers: Vec<i64> = targets.into_data().iter::<i64>().collect();
        let counted = |target: i64| ignored != Some(target);
        let class = |target: &i64| (0..classes as i64).contains(target);
        if let Some(wrong) = numbers.iter().find(|target| counted(**target) && !class(target)) {
            return Err(Error::invalid(format!(
                "a target of class {wrong}, and logits of {classes} classes; count classes from 0, and name the \
                 target that stands for none as ignored"
            )));
        }
        if logits.clone().is_nan().any().into_scalar::<bool>() {
            return Err(Error::invalid("a logit is not a number; look for the cause in the model or the batch"));
        }
        // What is ignored takes part as class 0, and is dropped.
        let safe: Vec<i64> = numbers.iter().map(|target| if counted(*target) { *target } else { 0 }).collect();
        let (places, predicted) = places(logits, &safe);
        let kept = |index: &usize| counted(numbers[*index]);
        Ok(Self {
            targets: (0..rows).filter(kept).map(|index| numbers[index]).collect(),
            predicted: (0..rows).filter(kept).map(|index| predicted[index]).collect(),
            places: (0..rows).filter(kept).map(|index| places[index]).collect(),
        })
    }
}

/// How many classes come before each target, and which comes first.
fn places(logits: Tensor<2>, targets: &[i64]) -> (Vec<usize>, Vec<i64>) {
    let [rows, classes] = logits.dims();
    let device: Device = logits.device();
    let numbers = Tensor::<1, Int>::arange(0..classes as i64, &device).unsqueeze::<2>().expand([rows, classes]);
    let targets = Tensor::<1, Int>::from_data(targets, &device).reshape([rows, 1]);
    let own = logits.clone().gather(1, targets.clone()).expand([rows, classes]);
    let lower = numbers.clone().lower(targets.expand([rows, classes]));
    let before = logits.clone().greater(own.clone()).bool_or(logits.clone().equal(own).bool_and(lower));
    let places = before.int().sum_dim(1);
    let first: Tensor<2, Bool> = logits.clone().equal(logits.max_dim(1).expand([rows, classes]));
    let predicted = numbers.mask_fill(first.bool_not(), classes as i64).min_dim(1);
    let places = places.into_data().iter::<i64>().map(|place| place as usize).collect();
    (places, predicted.into_data().iter::<i64>().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(logits: [[f32; 3]; 4], targets: [i64; 4], ignored: Option<i64>) -> Result<Classified> {
        let device = Device::flex();
        let targets = Tensor::<1, Int>::from_data(targets, &device);
        Classified::from_logits(Tensor::from_data(logits, &device), targets, ignored)
    }

    const LOGITS: [[f32; 3]; 4] = [[0.0, 2.0, 1.0], [0.0, 2.0, 1.0], [3.0, 3.0, 3.0], [-1.0, -2.0, -3.0]];

    #[test]
    fn places_count_from_the_best_and_equals_by_number() {
        let got = of(LOGITS, [1, 0, 1, 2], None).unwrap();
        assert_eq!((got.places, got.predicted), (vec![0, 2, 1, 2], vec![1, 1, 0, 0]));
    }

    #[test]
    fn ignored_samples_are_left_out_and_others_are_refused() {
        let got = of(LOGITS, [1, -100, 1, -100], Some(-100)).unwrap();
        assert_eq!((got.targets, got.places, got.predicted), (vec![1, 1], vec![0, 1], vec![1, 0]));
        let text = of(LOGITS, [1, -100, 1, 2], None).unwrap_err().to_string();
        assert!(text.contains("class -100, and logits of 3 classes"), "{text}");
        assert!(of([[f32::NAN; 3]; 4], [0; 4], None).unwrap_err().to_string().contains("not a number"));
    }
}
