use serde::{Deserialize, Serialize};
use unicode_segmentation::UnicodeSegmentation;

/// How a text is cut into sentences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sentences {
    /// Not at all: the text is one.
    #[default]
    Whole,
    /// Each line is one, as in the files that BERT was trained on.
    Lines,
    /// By the rule of Unicode (UAX #29, sentence boundaries): a sentence ends behind `.`, `!` or `?`, with what closes quotes and
    /// brackets, unless a full stop has no space behind it (`3.5`). Beside it: an empty line ends a sentence, and a line's end does
    /// not; none begins with a small letter (`"Really?" he asked.`); none ends behind an abbreviation, which is a single letter
    /// (`J. Smith`, `z. B.`) or one of a short list of English and German ones (`Dr. Smith`).
    ///
    /// What it cannot know: that a sentence ends with an abbreviation or a letter (`Vitamin C. It is …` stays one), and German
    /// ordinals (`am 3. Mai` becomes two).
    Unicode,
}

/// Words before a full stop that seldom ends a sentence, in small letters.
const ABBREVIATIONS: [&str; 30] = [
    "mr", "mrs", "ms", "dr", "prof", "st", "gen", "col", "lt", "sgt", "capt", "rev", "hon", "gov", "sen", "rep", "vs",
    "fig", "figs", "eq", "vol", "al", "cf", "approx", "bzw", "ca", "nr", "bd", "hrsg", "evtl",
];

impl Sentences {
    /// The sentences of a text, none of them empty.
    pub fn of(self, text: &str) -> Vec<String> {
        let some = |parts: &mut dyn Iterator<Item = &str>| {
            parts.map(str::trim).filter(|part| !part.is_empty()).map(String::from).collect()
        };
        match self {
            // Spaces at its ends are a part of a text.
            Self::Whole if text.trim().is_empty() => Vec::new(),
            Self::Whole => vec![text.to_string()],
            Self::Lines => some(&mut text.lines()),
            Self::Unicode => paragraphs(text).iter().flat_map(|paragraph| by_rule(paragraph)).collect(),
        }
    }
}

/// What stands between empty lines, each as one line.
fn paragraphs(text: &str) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    for line in text.lines().map(str::trim) {
        match paragraphs.last_mut() {
            Some(last) if !line.is_empty() => {
                if !last.is_empty() {
                    last.push(' ');
                }
                last.push_str(line);
            }
            _ => paragraphs.push(String::new()),
        }
    }
    paragraphs
}

fn by_rule(paragraph: &str) -> Vec<String> {
    let (mut sentences, mut goes_on) = (Vec::<String>::new(), false);
    for part in paragraph.split_sentence_bounds() {
        match sentences.last_mut() {
            Some(last) if goes_on || part.starts_with(char::is_lowercase) => last.push_str(part),
            _ => sentences.push(part.to_string()),
        }
        goes_on = ends_with_abbreviation(part);
    }
    let trimmed = sentences.iter().map(|sentence| sentence.trim());
    trimmed.filter(|sentence| !sentence.is_empty()).map(String::from).collect()
}

/// Whether its last full stop is that of an abbreviation.
fn ends_with_abbreviation(part: &str) -> bool {
    let Some(before) = part.trim_end().strip_suffix('.') else { return false };
    let word = before.rsplit(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
    let mut letters = word.chars();
    let is_letter = letters.next().is_some_and(char::is_alphabetic) && letters.next().is_none();
    is_letter || ABBREVIATIONS.contains(&word.to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_where_sentences_end() {
        let cut = |text: &str| Sentences::Unicode.of(text);
        for (text, expected) in [
            ("One. Two! Three? Four", vec!["One.", "Two!", "Three?", "Four"]),
            ("It costs 3.5 euros. \"Really?\" he asked.", vec!["It costs 3.5 euros.", "\"Really?\" he asked."]),
            ("Dr. J. Smith (Jr. too) came. He left.", vec!["Dr. J. Smith (Jr. too) came.", "He left."]),
            ("about approx. ten, e.g. this. Then", vec!["about approx. ten, e.g. this.", "Then"]),
            ("Ein Haus, z. B. Nr. 3, steht da. Es ist alt.", vec!["Ein Haus, z. B. Nr. 3, steht da.", "Es ist alt."]),
            (
                "a line that\n goes on. And\tone\n\nno stop\n \nend",
                vec!["a line that goes on.", "And\tone", "no stop", "end"],
            ),
            ("他来了。她走了。", vec!["他来了。", "她走了。"]),
            (" \n\n \t", vec![]),
        ] {
            assert_eq!(cut(text), expected, "{text:?}");
        }
        assert_eq!(Sentences::Lines.of(" one \r\n\ntwo. three"), ["one", "two. three"]);
        assert_eq!(Sentences::Whole.of(" one. two\n"), [" one. two\n"]);
        assert!(Sentences::Whole.of(" \n").is_empty());
    }
}
