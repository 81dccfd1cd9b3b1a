//! Places in a text counted in characters, as SQuAD's `answer_start` is.

use std::ops::Range;

/// The part of a text from one character to another; nothing if the text is shorter.
pub(super) fn slice(text: &str, characters: Range<usize>) -> Option<&str> {
    // The place after the last character is a place, too.
    let mut places = text.char_indices().map(|(byte, _)| byte).chain([text.len()]);
    let start = places.nth(characters.start)?;
    match characters.len() {
        0 => Some(""),
        length => Some(&text[start..places.nth(length - 1)?]),
    }
}

/// The character at which a part first occurs.
pub(super) fn find(text: &str, part: &str) -> Option<usize> {
    text.find(part).map(|byte| text[..byte].chars().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_characters_not_bytes() {
        let text = "aé日🦀b";
        assert_eq!(slice(text, 0..5), Some(text));
        assert_eq!(slice(text, 1..3), Some("é日"));
        assert_eq!(slice(text, 3..4), Some("🦀"));
        assert_eq!((slice(text, 5..5), slice(text, 2..2)), (Some(""), Some("")));
        assert_eq!((slice(text, 4..6), slice(text, 6..6), slice("", 0..1)), (None, None, None));
        assert_eq!((find(text, "b"), find(text, "日🦀"), find(text, "x")), (Some(4), Some(2), None));
    }
}
