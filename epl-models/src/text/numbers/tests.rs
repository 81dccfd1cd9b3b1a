use std::collections::HashSet;

use burn::data::dataset::Dataset;

use super::*;
use crate::text::Error;

/// Every rule and every exception, each next to its neighbours.
const LITERALS: [(u32, &str, &str); 60] = [
    (0, "zero", "null"),
    (1, "one", "eins"),
    (2, "two", "zwei"),
    (3, "three", "drei"),
    (4, "four", "vier"),
    (5, "five", "fünf"),
    (6, "six", "sechs"),
    (7, "seven", "sieben"),
    (8, "eight", "acht"),
    (9, "nine", "neun"),
    (10, "ten", "zehn"),
    (11, "eleven", "elf"),
    (12, "twelve", "zwölf"),
    (13, "thirteen", "dreizehn"),
    (14, "fourteen", "vierzehn"),
    (15, "fifteen", "fünfzehn"),
    (16, "sixteen", "sechzehn"),
    (17, "seventeen", "siebzehn"),
    (18, "eighteen", "achtzehn"),
    (19, "nineteen", "neunzehn"),
    (20, "twenty", "zwanzig"),
    (21, "twenty-one", "einundzwanzig"),
    (30, "thirty", "dreißig"),
    (32, "thirty-two", "zweiunddreißig"),
    (40, "forty", "vierzig"),
    (43, "forty-three", "dreiundvierzig"),
    (50, "fifty", "fünfzig"),
    (54, "fifty-four", "vierundfünfzig"),
    (60, "sixty", "sechzig"),
    (66, "sixty-six", "sechsundsechzig"),
    (70, "seventy", "siebzig"),
    (77, "seventy-seven", "siebenundsiebzig"),
    (80, "eighty", "achtzig"),
    (88, "eighty-eight", "achtundachtzig"),
    (90, "ninety", "neunzig"),
    (99, "ninety-nine", "neunundneunzig"),
    (100, "one hundred", "einhundert"),
    (101, "one hundred one", "einhunderteins"),
    (111, "one hundred eleven", "einhundertelf"),
    (116, "one hundred sixteen", "einhundertsechzehn"),
    (121, "one hundred twenty-one", "einhunderteinundzwanzig"),
    (200, "two hundred", "zweihundert"),
    (999, "nine hundred ninety-nine", "neunhundertneunundneunzig"),
    (1_000, "one thousand", "eintausend"),
    (1_001, "one thousand one", "eintausendeins"),
    (1_017, "one thousand seventeen", "eintausendsiebzehn"),
    (1_100, "one thousand one hundred", "eintausendeinhundert"),
    (1_984, "one thousand nine hundred eighty-four", "eintausendneunhundertvierundachtzig"),
    (2_000, "two thousand", "zweitausend"),
    (10_000, "ten thousand", "zehntausend"),
    (11_011, "eleven thousand eleven", "elftausendelf"),
    (21_000, "twenty-one thousand", "einundzwanzigtausend"),
    (30_030, "thirty thousand thirty", "dreißigtausenddreißig"),
    (100_000, "one hundred thousand", "einhunderttausend"),
    (101_000, "one hundred one thousand", "einhunderteintausend"),
    (101_101, "one hundred one thousand one hundred one", "einhunderteintausendeinhunderteins"),
    (201_001, "two hundred one thousand one", "zweihunderteintausendeins"),
    (
        712_345,
        "seven hundred twelve thousand three hundred forty-five",
        "siebenhundertzwölftausenddreihundertfünfundvierzig",
    ),
    (900_000, "nine hundred thousand", "neunhunderttausend"),
    (
        999_999,
        "nine hundred ninety-nine thousand nine hundred ninety-nine",
        "neunhundertneunundneunzigtausendneunhundertneunundneunzig",
    ),
];

#[test]
fn words_are_spelled_by_the_rules() {
    for (number, in_english, in_german) in LITERALS {
        assert_eq!(english(number), in_english);
        assert_eq!(german(number), in_german);
    }
}

#[test]
fn no_two_numbers_share_their_words() {
    let distinct = |spell: fn(u32) -> String| (0..LIMIT).map(spell).collect::<HashSet<_>>().len();
    assert_eq!(distinct(english), LIMIT as usize);
    assert_eq!(distinct(german), LIMIT as usize);
}

#[test]
#[should_panic(expected = "1000000 has no words here")]
fn a_million_is_refused() {
    german(LIMIT);
}

#[test]
fn held_out_numbers_are_distinct_and_never_trained_on() {
    let split = NumberPairsConfig::new().with_held_out(5_000).with_seed(3).init().unwrap();
    let held_out: HashSet<u32> = split.held_out.numbers().iter().copied().collect();
    assert_eq!(held_out.len(), 5_000);
    assert_eq!(split.training.len(), 100_000);
    assert!(split.training.numbers().iter().all(|number| !held_out.contains(number)));
    // Uniform: mean 500,000 with a deviation of 4,082, nine tenths with six digits.
    let mean = held_out.iter().map(|&n| f64::from(n)).sum::<f64>() / 5_000.0;
    assert!((mean - 499_999.5).abs() < 5.0 * 4_082.0, "mean {mean}");
    let six = held_out.iter().filter(|&&n| n >= 100_000).count();
    assert!((4_390..=4_610).contains(&six), "{six} of 5000 with six digits");
}

#[test]
fn small_numbers_are_trained_on() {
    let training = NumberPairsConfig::new().init().unwrap().training;
    let of_length = |digits: usize| training.numbers().iter().filter(|n| n.to_string().len() == digits).count();
    // A quarter of 100,000 spread over six lengths, and next to nothing from the uniform rest.
    assert!((3_900..=4_500).contains(&of_length(1)), "{}", of_length(1));
    assert!((3_900..=4_500).contains(&of_length(2)), "{}", of_length(2));
    let unlike = NumberPairsConfig::new().with_by_length(0.0).init().unwrap().training;
    assert!(unlike.numbers().iter().filter(|n| n.to_string().len() == 1).count() < 10);
}

#[test]
fn the_split_depends_on_the_seed_alone() {
    let numbers = |seed| {
        let split = NumberPairsConfig::new().with_training(1_000).with_seed(seed).init().unwrap();
        (split.training.numbers().to_vec(), split.held_out.numbers().to_vec())
    };
    assert_eq!(numbers(1), numbers(1));
    assert_ne!(numbers(1), numbers(2));
    // Fixed for good: another number here is another task under the same name.
    let (training, held_out) = numbers(0);
    assert_eq!(training[..3], [332_555, 4_282, 739_120]);
    assert_eq!(held_out[..3], [654_697, 709_075, 729_869]);
}

#[test]
fn items_are_pairs_of_words() {
    let held_out = NumberPairsConfig::new().with_training(1).init().unwrap().held_out;
    let pair = held_out.get(7).unwrap();
    let number = held_out.numbers()[7];
    assert_eq!((pair.source, pair.target), (english(number), german(number)));
    assert_eq!(held_out.texts().count(), 2 * held_out.len());
}

#[test]
fn impossible_splits_are_refused() {
    let config = NumberPairsConfig::new;
    let message = |config: NumberPairsConfig| config.init().unwrap_err().to_string();
    assert!(message(config().with_held_out(500_001)).contains("500001 held-out numbers"));
    assert!(message(config().with_held_out(0)).contains("at least 1 and at most 500000"));
    assert!(message(config().with_by_length(1.5)).contains("1.5; it must be between 0 and 1"));
    assert!(message(config().with_by_length(f64::NAN)).contains("between 0 and 1"));
    assert!(matches!(config().with_training(0).init(), Err(Error::NoTraining)));
}
