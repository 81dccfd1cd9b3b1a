//! How often the class is the first, or among the first five.

/// Counts of right answers. Counts of several ranks may be added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopHits {
    /// How often the class had the largest logit.
    pub first: usize,
    /// How often it was among the five largest.
    pub five: usize,
    /// How many images were judged.
    pub total: usize,
}

impl TopHits {
    /// No image yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Judges one image by its logits. Of two equal logits that of the lower class counts as the larger; a class
    /// whose logit is no number is never among the first, and one such logit of another class stands before it.
    ///
    /// # Panics
    ///
    /// When the label is none of the classes.
    pub fn add(&mut self, logits: &[f32], label: usize) {
        let own = logits[label];
        let behind = |(class, logit): (usize, f32)| logit < own || (logit == own && class > label);
        let others = logits.iter().copied().enumerate().filter(|(class, _)| *class != label);
        let place = others.filter(|other| !behind(*other)).count();
        self.total += 1;
        self.first += usize::from(place < 1 && !own.is_nan());
        self.five += usize::from(place < 5 && !own.is_nan());
    }

    /// The three counts as numbers that can be summed over ranks.
    pub fn values(&self) -> [f64; 3] {
        [self.first, self.five, self.total].map(|count| count as f64)
    }

    /// The share of images whose class came first, in percent, from [`values`](Self::values) or their sums.
    pub fn top1(values: &[f64]) -> f64 {
        100.0 * values[0] / values[2].max(1.0)
    }

    /// The share of images whose class was among the first five, in percent.
    pub fn top5(values: &[f64]) -> f64 {
        100.0 * values[1] / values[2].max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_first_five_are_counted() {
        let mut hits = TopHits::new();
        let logits = [0.5, 3.0, -1.0, 2.0, 1.0, 0.0, -2.0];
        for label in [1, 3, 5, 6] {
            hits.add(&logits, label);
        }
        // In order: 1, 3, 4, 0, 5, 2, 6.
        assert_eq!(hits, TopHits { first: 1, five: 3, total: 4 });
        assert_eq!((TopHits::top1(&hits.values()), TopHits::top5(&hits.values())), (25.0, 75.0));
    }

    #[test]
    fn ties_and_no_numbers_never_flatter() {
        let mut hits = TopHits::new();
        hits.add(&[1.0, 1.0], 1);
        hits.add(&[f32::NAN, 1.0], 0);
        hits.add(&[f32::NAN, 1.0], 1);
        assert_eq!((hits.first, hits.total), (0, 3));
        hits.add(&[1.0, 1.0], 0);
        assert_eq!(hits.first, 1);
        assert_eq!(TopHits::top1(&TopHits::new().values()), 0.0);
    }
}
