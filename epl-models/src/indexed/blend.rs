//! Several datasets in proportion.

use std::sync::Arc;

use burn::config::Config;
use burn::data::dataset::{Dataset, DatasetError};
use epl_core::{Error, Result};

/// Configuration to make a [`Blend`] by the [init function](BlendConfig::init).
#[derive(Config, Debug)]
pub struct BlendConfig {
    /// In which proportion the datasets come; they need not sum to one. A run that is resumed should be given the same, and the
    /// same datasets: [`Trainer::with_invariant`](epl_core::Trainer::with_invariant) sees to it.
    pub weights: Vec<f64>,
    /// Items of the blend. A dataset that has less is read again from its begin.
    pub size: usize,
}

/// Several datasets in proportion: each item is of the dataset that is furthest behind its share, as in Megatron's `BlendedDataset`.
///
/// Which item comes where depends on the weights and the sizes alone. A clone shares its memory, of 8 bytes an item.
pub struct Blend<I> {
    datasets: Vec<Arc<dyn Dataset<I>>>,
    /// Of each item the dataset, and how many of its items came before.
    places: Arc<[(u16, u32)]>,
}

impl BlendConfig {
    /// The blend of these datasets.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when there is not one weight above zero for each, one is empty, or there are too many.
    pub fn init<I>(&self, datasets: Vec<Arc<dyn Dataset<I>>>) -> Result<Blend<I>> {
        let invalid = |reason: String| Err(Error::invalid(format!("blend: {reason}")));
        let (weights, count) = (self.weights.len(), datasets.len());
        if weights != count || count == 0 || count > usize::from(u16::MAX) {
            return invalid(format!("{weights} weights for {count} datasets; give one for each, and up to 65535"));
        }
        if let Some(weight) = self.weights.iter().find(|weight| !(weight.is_finite() && **weight > 0.0)) {
            return invalid(format!("a weight is {weight}; it should be above 0"));
        }
        if let Some(empty) = datasets.iter().position(|dataset| dataset.is_empty()) {
            return invalid(format!("dataset {empty} is empty"));
        }
        if u32::try_from(self.size).is_err() {
            return invalid(format!("{} items; at most {} are possible", self.size, u32::MAX));
        }
        let total: f64 = self.weights.iter().sum();
        let shares: Vec<f64> = self.weights.iter().map(|weight| weight / total).collect();
        let mut taken = vec![0_u32; count];
        let place = |index: usize| {
            // The one that is furthest behind once this item has come, the first of equals.
            let behind = |dataset: &usize| shares[*dataset] * (index + 1) as f64 - f64::from(taken[*dataset]);
            let later = |a: usize, b: usize| if behind(&b) > behind(&a) { b } else { a };
            let dataset = (0..count).reduce(later).unwrap_or(0);
            taken[dataset] += 1;
            (dataset as u16, taken[dataset] - 1)
        };
        let places = (0..self.size).map(place).collect();
        Ok(Blend { datasets, places })
    }
}

impl<I> std::fmt::Debug for Blend<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} items of {} datasets", self.places.len(), self.datasets.len())
    }
}

impl<I> Clone for Blend<I> {
    fn clone(&self) -> Self {
        Self { datasets: self.datasets.clone(), places: self.places.clone() }
    }
}

impl<I: Send + Sync> Dataset<I> for Blend<I> {
    fn get(&self, index: usize) -> Result<I, DatasetError> {
        let (dataset, before) = self.places[index];
        let dataset = &self.datasets[usize::from(dataset)];
        dataset.get(before as usize % dataset.len())
    }

    fn len(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests {
    use burn::data::dataset::InMemDataset;

    use super::*;

    fn of(sizes: &[i64]) -> Vec<Arc<dyn Dataset<i64>>> {
        let dataset = |(number, size): (usize, &i64)| -> Arc<dyn Dataset<i64>> {
            Arc::new(InMemDataset::new((0..*size).map(|item| 100 * number as i64 + item).collect()))
        };
        sizes.iter().enumerate().map(dataset).collect()
    }

    #[test]
    fn each_comes_as_often_as_its_weight_says() {
        let blend = BlendConfig::new(vec![2.0, 1.0, 1.0], 8).init(of(&[3, 9, 9])).unwrap();
        let items: Vec<i64> = (0..blend.len()).map(|index| blend.get(index).unwrap()).collect();
        assert_eq!(items, [0, 100, 200, 1, 2, 101, 201, 0], "the first has three, and begins again");
        let weights = [0.5, 0.3, 0.2];
        let blend = BlendConfig::new(weights.to_vec(), 1000).init(of(&[50, 50, 50])).unwrap();
        let mut counts = [0.0_f64; 3];
        for index in 0..blend.len() {
            counts[(blend.get(index).unwrap() / 100) as usize] += 1.0;
            for (count, weight) in counts.iter().zip(weights) {
                assert!((count - weight * (index + 1) as f64).abs() <= 1.0, "{counts:?} after {index}");
            }
        }
    }

    #[test]
    fn what_cannot_be_blended_is_refused() {
        let refused = |weights: &[f64], sizes: &[i64]| {
            BlendConfig::new(weights.to_vec(), 4).init(of(sizes)).unwrap_err().to_string()
        };
        assert!(refused(&[1.0], &[1, 1]).contains("1 weights for 2 datasets"));
        assert!(refused(&[], &[]).contains("0 weights for 0 datasets"));
        assert!(refused(&[1.0, 0.0], &[1, 1]).contains("a weight is 0; it should be above 0"));
        assert!(refused(&[1.0, f64::NAN], &[1, 1]).contains("a weight is NaN"));
        assert!(refused(&[1.0, 1.0], &[1, 0]).contains("dataset 1 is empty"));
    }
}
