use super::LIMIT;

const UNITS: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 10] = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];

/// The number in English words, the American way: no "and", no commas, a hyphen between tens and units.
///
/// ```
/// assert_eq!(
///     epl_models::text::numbers::english(712_345),
///     "seven hundred twelve thousand three hundred forty-five"
/// );
/// ```
///
/// # Panics
/// If the number is not below [`LIMIT`].
pub fn english(number: u32) -> String {
    assert!(number < LIMIT, "{number} has no words here: numbers are below {LIMIT}");
    let (thousands, rest) = (number / 1000, number % 1000);
    let mut words = Vec::with_capacity(8);
    if thousands > 0 {
        hundreds(thousands, &mut words);
        words.push("thousand".into());
    }
    if rest > 0 || number == 0 {
        hundreds(rest, &mut words);
    }
    words.join(" ")
}

/// Appends the words of a number below one thousand.
fn hundreds(number: u32, words: &mut Vec<String>) {
    let (hundreds, rest) = (number / 100, number % 100);
    if hundreds > 0 {
        words.push(UNITS[hundreds as usize].into());
        words.push("hundred".into());
    }
    if rest > 0 || hundreds == 0 {
        words.push(tens(rest));
    }
}

/// The one word of a number below one hundred.
fn tens(number: u32) -> String {
    match (number / 10, number % 10) {
        (0 | 1, _) => UNITS[number as usize].into(),
        (tens, 0) => TENS[tens as usize].into(),
        (tens, units) => format!("{}-{}", TENS[tens as usize], UNITS[units as usize]),
    }
}
