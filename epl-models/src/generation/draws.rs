//! A token by chance.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::scores::softmax;

/// A number in `[0, 1)` for a position of a row: the same in every layout and batch.
fn uniform(seed: u64, row: u64, position: u64) -> f64 {
    let mut numbers = ChaCha8Rng::seed_from_u64(seed);
    numbers.set_stream(row);
    // A number takes two words.
    numbers.set_word_pos(2 * u128::from(position));
    numbers.random()
}

/// The token that a row draws at a position: the first one up to which probabilities come to more than the number that is drawn.
pub(crate) fn draw(scores: &[f32], seed: u64, row: u64, position: u64) -> i64 {
    at(scores, uniform(seed, row, position))
}

fn at(scores: &[f32], number: f64) -> i64 {
    let (mut sum, mut last) = (0.0, 0);
    for (token, probability) in softmax(scores).into_iter().enumerate() {
        if probability > 0.0 {
            (sum, last) = (sum + f64::from(probability), token);
            if sum > number {
                break;
            }
        }
    }
    last as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_as_often_as_they_are_likely() {
        let scores = [1.0_f32, 3.0, 0.0, 4.0].map(f32::ln);
        assert_eq!([0.0, 0.124, 0.126, 0.49, 0.51, 0.9999].map(|number| at(&scores, number)), [0, 0, 1, 1, 3, 3]);
        // What may not come does not, whatever rounding leaves.
        assert_eq!(at(&[f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY], 1.0), 1);
        let mut counts = [0_usize; 4];
        for row in 0..40 {
            for position in 0..100 {
                counts[draw(&scores, 7, row, position) as usize] += 1;
            }
        }
        for (count, share) in counts.iter().zip([0.125, 0.375, 0.0, 0.5]) {
            let found = *count as f64 / 4000.0;
            assert!((found - share).abs() < 0.03, "{counts:?}");
        }
    }

    /// The file of numbers that `tools/make_generation_fixture.py` draws with.
    fn file() -> String {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/transformers/draws.json").to_string()
    }

    /// The numbers of 8 rows at 16 positions.
    fn numbers() -> serde_json::Value {
        let row = |row: u64| (0..16).map(move |position| uniform(9, row, position)).collect::<Vec<_>>();
        serde_json::json!({ "seed": 9, "numbers": (0..8).map(row).collect::<Vec<_>>() })
    }

    #[test]
    #[ignore = "writes fixtures/transformers/draws.json"]
    fn write_the_numbers() {
        std::fs::write(file(), numbers().to_string()).unwrap();
    }

    #[test]
    fn numbers_are_those_with_which_the_fixture_was_made() {
        let stored: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file()).unwrap()).unwrap();
        assert_eq!(stored, numbers());
    }

    #[test]
    fn a_number_depends_on_seed_row_and_position_alone() {
        let all = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 2)];
        let numbers = all.map(|(seed, row, position)| uniform(seed, row, position));
        for (index, number) in numbers.iter().enumerate() {
            assert!(numbers[..index].iter().all(|other| other != number), "{numbers:?}");
        }
        assert_eq!(uniform(3, 2, 9), uniform(3, 2, 9));
    }
}
