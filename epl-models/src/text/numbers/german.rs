use super::LIMIT;

/// As the last word of a number (*hunderteins*); before another word the one is *ein*.
const UNITS: [&str; 20] = [
    "null",
    "eins",
    "zwei",
    "drei",
    "vier",
    "fünf",
    "sechs",
    "sieben",
    "acht",
    "neun",
    "zehn",
    "elf",
    "zwölf",
    "dreizehn",
    "vierzehn",
    "fünfzehn",
    "sechzehn",
    "siebzehn",
    "achtzehn",
    "neunzehn",
];
const TENS: [&str; 10] =
    ["", "", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"];

/// The number in German words, written as one word as below one million it must be.
///
/// Of the forms in use this takes those that are never ambiguous: *einhundert*, *eintausend* with their *ein*, and
/// no *und* after hundreds and thousands (*einhunderteins*, not *hundertundeins*). The one is *eins* at the end of
/// the number and *ein* everywhere else (*einundzwanzig*, *einhunderteintausend*).
///
/// ```
/// use epl_models::text::numbers::german;
/// assert_eq!(german(712_345), "siebenhundertzwölftausenddreihundertfünfundvierzig");
/// ```
///
/// # Panics
/// If the number is not below [`LIMIT`].
pub fn german(number: u32) -> String {
    assert!(number < LIMIT, "{number} has no words here: numbers are below {LIMIT}");
    let (thousands, rest) = (number / 1000, number % 1000);
    let mut word = String::with_capacity(64);
    if thousands > 0 {
        hundreds(thousands, "ein", &mut word);
        word.push_str("tausend");
    }
    if rest > 0 || number == 0 {
        hundreds(rest, "eins", &mut word);
    }
    word
}

/// Appends a number below one thousand; `one` is the form of a one at its end.
fn hundreds(number: u32, one: &str, word: &mut String) {
    let (hundreds, rest) = (number / 100, number % 100);
    if hundreds > 0 {
        word.push_str(unit(hundreds, "ein"));
        word.push_str("hundert");
    }
    if rest > 0 || hundreds == 0 {
        tens(rest, one, word);
    }
}

/// Appends a number below one hundred: units before tens.
fn tens(number: u32, one: &str, word: &mut String) {
    match (number / 10, number % 10) {
        (0 | 1, _) => word.push_str(unit(number, one)),
        (tens, 0) => word.push_str(TENS[tens as usize]),
        (tens, units) => {
            word.push_str(unit(units, "ein"));
            word.push_str("und");
            word.push_str(TENS[tens as usize]);
        }
    }
}

/// The word of a number below twenty; `one` stands for a one.
fn unit(number: u32, one: &str) -> &str {
    if number == 1 { one } else { UNITS[number as usize] }
}
