//! The values of a random global tensor: each is a hash of where it stands, so a rank draws its own part alone.

use core::ops::Range;

use burn::tensor::Distribution;

use crate::invalid::refuse;
use crate::random::{Noise, Row, normal};

/// The elements in `ranges` of the tensor that `noise` stands for, in row-major order.
pub(super) fn draw(noise: Noise, ranges: &[Range<usize>], distribution: Distribution) -> Vec<f64> {
    check(distribution);
    let mut values = Vec::with_capacity(ranges.iter().map(ExactSizeIterator::len).product());
    // Two numbers an element, as a normal one takes two.
    rows(ranges, [noise.sample(0), noise.sample(1)], &mut |numbers, element| {
        let value = match distribution {
            Distribution::Default => numbers[0].uniform(element),
            Distribution::Uniform(low, high) => low + (high - low) * numbers[0].uniform(element),
            Distribution::Bernoulli(prob) => f64::from(numbers[0].uniform(element) < prob),
            Distribution::Normal(mean, deviation) => mean + deviation * normal(numbers, element),
        };
        values.push(value);
    });
    values
}

/// Calls `each` for every element, with the numbers of its row and its last coordinate.
fn rows(ranges: &[Range<usize>], numbers: [Row; 2], each: &mut impl FnMut([Row; 2], usize)) {
    match ranges {
        [] => {}
        [last] => last.clone().for_each(|element| each(numbers, element)),
        [first, rest @ ..] => {
            first.clone().for_each(|coordinate| rows(rest, numbers.map(|row| row.at(coordinate)), each));
        }
    }
}

fn check(distribution: Distribution) {
    match distribution {
        Distribution::Bernoulli(prob) if !(0.0..=1.0).contains(&prob) => {
            refuse(format!("a Bernoulli distribution of probability {prob}: give one in [0, 1]"));
        }
        Distribution::Uniform(low, high) if !(low <= high && (high - low).is_finite()) => {
            refuse(format!("a uniform distribution from {low} to {high}: give finite bounds, the lower one first"));
        }
        Distribution::Normal(mean, deviation) if !(mean.is_finite() && deviation.is_finite() && deviation >= 0.0) => {
            refuse(format!(
                "a normal distribution of mean {mean} and standard deviation {deviation}: give finite numbers, the \
                 deviation not below 0"
            ));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(key: u64) -> Noise {
        Noise::new(1, 0, key, 0)
    }

    #[test]
    fn a_part_is_a_part_of_the_whole() {
        for distribution in [Distribution::Default, Distribution::Normal(1.0, 2.0)] {
            let whole = draw(noise(3), &[0..4, 0..5, 0..6], distribution);
            let part = draw(noise(3), &[1..3, 5..5, 0..6], distribution);
            assert!(part.is_empty());
            let part = draw(noise(3), &[1..3, 2..5, 4..6], distribution);
            let at = |i: usize, j: usize, k: usize| whole[(i * 5 + j) * 6 + k];
            let expected = (1..3).flat_map(|i| (2..5).flat_map(move |j| (4..6).map(move |k| (i, j, k))));
            assert_eq!(part, expected.map(|(i, j, k)| at(i, j, k)).collect::<Vec<_>>());
        }
    }

    /// Mean and variance, in standard deviations of their estimates.
    #[track_caller]
    fn check_moments(distribution: Distribution, mean: f64, variance: f64, kurtosis: f64) {
        let values = draw(noise(7), &[0..1 << 9, 0..1 << 9], distribution);
        let n = values.len() as f64;
        let found = values.iter().sum::<f64>() / n;
        let score = (found - mean) / (variance / n).sqrt();
        assert!(score.abs() < 4.5, "{distribution:?}: mean {found}, {score} deviations off");
        let found = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let score = (found - variance) / (variance * ((kurtosis - 1.0) / n).sqrt());
        assert!(score.abs() < 4.5, "{distribution:?}: variance {found}, {score} deviations off");
    }

    #[test]
    fn the_distributions_are_the_asked_ones() {
        check_moments(Distribution::Default, 0.5, 1.0 / 12.0, 1.8);
        check_moments(Distribution::Uniform(-3.0, 1.0), -1.0, 16.0 / 12.0, 1.8);
        check_moments(Distribution::Normal(2.0, 3.0), 2.0, 9.0, 3.0);
        check_moments(Distribution::Bernoulli(0.2), 0.2, 0.16, 1.0 / 0.16 - 3.0);
    }

    /// The share of a normal distribution within one, two and three deviations.
    #[test]
    fn the_normal_one_has_its_shape() {
        let values = draw(noise(9), &[0..1 << 9, 0..1 << 9], Distribution::Normal(0.0, 1.0));
        let n = values.len() as f64;
        for (limit, share) in [(1.0, 0.682_689_5), (2.0, 0.954_499_7), (3.0, 0.997_300_2)] {
            let found = values.iter().filter(|x| x.abs() < limit).count() as f64 / n;
            let score = (found - share) / (share * (1.0 - share) / n).sqrt();
            assert!(score.abs() < 4.5, "{found} within {limit}, not {share}");
        }
    }
}
