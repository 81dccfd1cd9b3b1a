//! Answers compared word by word, by the definition of SQuAD (Rajpurkar et al., 2016; with unanswerable questions,
//! Rajpurkar et al., 2018).

use std::collections::HashMap;

/// A text as SQuAD compares it: lower case, without ASCII punctuation and English articles, one space between words.
///
/// ```
/// use epl_models::text::normalized;
/// assert_eq!(normalized("The  cat's \"hat\", a (red) one."), "cats hat red one");
/// ```
pub fn normalized(text: &str) -> String {
    let lower = text.to_lowercase();
    let plain: String = lower.chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let plain = without_articles(&plain);
    let words: Vec<&str> = plain.split(is_space).filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// The control characters U+001C to U+001F separate words, too, where the definition's scores were made.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Puts a space for every article that stands alone, also between other signs than spaces.
fn without_articles(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let (word, after) = rest.split_at(rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len()));
        let (between, after) = after.split_at(after.find(char::is_alphanumeric).unwrap_or(after.len()));
        kept.push_str(if matches!(word, "a" | "an" | "the") { " " } else { word });
        kept.push_str(between);
        rest = after;
    }
    kept
}

/// F1 of the words that two texts share, both normalised, from 0 to 1. Where one has no word, they must be equal.
///
/// ```
/// use epl_models::text::token_f1;
/// assert_eq!(token_f1("the black cat", "a cat"), 2.0 / 3.0);
/// ```
pub fn token_f1(hypothesis: &str, reference: &str) -> f64 {
    let (hypothesis, reference) = (normalized(hypothesis), normalized(reference));
    if hypothesis.is_empty() || reference.is_empty() {
        return if hypothesis == reference { 1.0 } else { 0.0 };
    }
    let (found, there) = (words(&hypothesis), words(&reference));
    let same: usize = found.iter().map(|(word, count)| there.get(word).map_or(0, |other| *count.min(other))).sum();
    if same == 0 {
        return 0.0;
    }
    let share = |words: &HashMap<&str, usize>| same as f64 / words.values().sum::<usize>() as f64;
    let (precision, recall) = (share(&found), share(&there));
    2.0 * precision * recall / (precision + recall)
}

/// How often each word occurs.
fn words(text: &str) -> HashMap<&str, usize> {
    let mut counts = HashMap::new();
    text.split(' ').for_each(|word| *counts.entry(word).or_default() += 1);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_normalised_in_the_order_of_the_definition() {
        for (text, expected) in [
            ("The quick, brown fox!", "quick brown fox"),
            // Punctuation goes first, and joins what it stood between.
            ("a-b the.end U.S.", "ab theend us"),
            ("an anthem: a the an", "anthem"),
            // Signs that are no ASCII punctuation stay, and words end at them.
            ("the\u{2013}end", "\u{2013}end"),
            ("\u{201c}A man\u{201d}", "\u{201c} man\u{201d}"),
            ("Athe\u{a0}\tthe\u{1f}ÄPFEL", "athe äpfel"),
            (" ,;. ", ""),
            ("", ""),
        ] {
            assert_eq!(normalized(text), expected, "{text}");
        }
    }

    #[test]
    fn f1_counts_every_word_as_often_as_both_have_it() {
        assert_eq!(token_f1("to be or not to be", "to be"), 2.0 * (2.0 / 6.0) / (2.0 / 6.0 + 1.0));
        assert_eq!(token_f1("to", "to to to"), 0.5);
        assert_eq!(token_f1("Cats.", "the cats"), 1.0);
        assert_eq!(token_f1("cat", "dog"), 0.0);
        assert_eq!((token_f1("the", ""), token_f1("the cat", ""), token_f1("", "cat")), (1.0, 0.0, 0.0));
    }
}
