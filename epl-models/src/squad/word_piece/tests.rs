use proptest::prelude::*;

use super::*;
use crate::squad::characters::slice;

const PIECES: [&str; 32] = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "zoe",
    "’",
    "s",
    "tea",
    "-",
    "pot",
    "##s",
    "un",
    "##hurried",
    "##hurri",
    "the",
    "[",
    "]",
    "sep",
    "日",
    "本",
    "cafe",
    ",",
    "##d",
    "a",
    "##a",
    "x",
    "##x",
    "ss",
    "##e",
    "unhurri",
    "😀",
    "❤",
];

fn tokenizer() -> WordPiece {
    WordPiece::new(Vocabulary::new(PIECES.map(String::from).into()).unwrap()).unwrap()
}

/// Every piece with its characters, as `piece start..end`.
fn cut(text: &str) -> Vec<String> {
    let tokenizer = tokenizer();
    let pieces = tokenizer.encode(text).unwrap();
    let shown = pieces.ids().iter().zip(pieces.characters());
    shown.map(|(&id, place)| format!("{} {place:?}", tokenizer.piece(id).unwrap())).collect()
}

#[test]
fn places_are_those_of_the_original_text() {
    assert_eq!(
        cut("Zoë’s\tTea-pots"),
        ["zoe 0..3", "’ 3..4", "s 4..5", "tea 6..9", "- 9..10", "pot 10..13", "##s 13..14"]
    );
    assert_eq!(cut("  THE  [SEP] "), ["the 2..5", "[ 7..8", "sep 8..11", "] 11..12"]);
    assert!(cut("").is_empty() && cut(" \n\u{3000}").is_empty());
}

#[test]
fn the_longest_piece_is_taken_first() {
    // "unhurri" leaves "ed", which begins with no longer piece than "##e".
    assert_eq!(cut("unhurried"), ["unhurri 0..7", "##e 7..8", "##d 8..9"]);
    // One part that cannot be cut makes the whole word unknown.
    assert_eq!(cut("the unhurriedly, a"), ["the 0..3", "[UNK] 4..15", ", 15..16", "a 17..18"]);
}

#[test]
fn a_word_of_more_than_a_hundred_characters_is_unknown() {
    let word = |length: usize| "a".repeat(length);
    assert_eq!(cut(&word(100)).len(), 100);
    assert_eq!(cut(&word(101)), ["[UNK] 0..101"]);
    // Punctuation ends a word.
    assert_eq!(cut(&format!("{}-{}", word(60), word(60))).len(), 121);
    // Characters count after stripping.
    assert_eq!(cut(&"a\u{301}".repeat(100)).len(), 100);
}

#[test]
fn accents_belong_to_their_letters() {
    // One character, or a letter and a mark; two marks; a mark within a word that is cut there.
    assert_eq!(cut("café,"), ["cafe 0..4", ", 4..5"]);
    assert_eq!(cut("cafe\u{301}, a"), ["cafe 0..5", ", 5..6", "a 7..8"]);
    assert_eq!(cut("xa\u{301}\u{308}x"), ["x 0..1", "##a 1..4", "##x 4..5"]);
    // A mark without a letter is in no piece.
    assert_eq!(cut("\u{301}a"), ["a 1..2"]);
    // İ is I and a dot above once it is taken apart; ß has no accent.
    assert_eq!(cut("AẞSS"), ["[UNK] 0..4"]);
}

#[test]
fn characters_without_a_width_are_dropped_within_words() {
    assert_eq!(cut("t\u{200b}h\u{ad}e"), ["the 0..5"]);
    assert_eq!(cut("the\u{200d} a\u{0}a\u{fffd}"), ["the 0..3", "a 5..6", "##a 7..8"]);
    // A vertical tab is a control character and no space, as in BERT.
    assert_eq!(cut("a\u{b}a"), ["a 0..1", "##a 2..3"]);
}

#[test]
fn chinese_characters_and_emoji_are_pieces() {
    assert_eq!(cut("日本a語"), ["日 0..1", "本 1..2", "a 2..3", "[UNK] 3..4"]);
    // An emoji is no punctuation and sticks to its word; its variation selector is a mark.
    assert_eq!(cut("😀 ❤\u{fe0f} a😀"), ["😀 0..1", "❤ 2..4", "[UNK] 5..7"]);
}

#[test]
fn words_are_cleaned_as_by_uncased_bert() {
    for (text, expected) in [
        ("Hello, World!", "hello , world !"),
        ("ÀÉÎÕÜ Łódź straße", "aeiou łodz straße"),
        ("It's $5.00 (a_b) \u{ab}x\u{bb}", "it ' s $ 5 . 00 ( a _ b ) \u{ab} x \u{bb}"),
        ("a\u{a0}b\u{2028}c\u{3000}d", "a b c d"),
        // The last sigma is not the one of the end of a word.
        ("ΟΔΟΣ", "οδοσ"),
        // Katakana are a word of their own; hiragana stay beside Chinese characters.
        ("カタカナ漢字かな", "カタカナ 漢 字 かな"),
    ] {
        assert_eq!(words(text).unwrap().join(" "), expected);
    }
}

#[test]
fn special_pieces_are_found_wherever_they_stand() {
    let pieces = ["a", "[SEP]", "[CLS]", "[UNK]", "[PAD]"];
    let tokenizer = WordPiece::new(Vocabulary::new(pieces.map(String::from).into()).unwrap()).unwrap();
    assert_eq!([tokenizer.pad(), tokenizer.unk(), tokenizer.cls(), tokenizer.sep()], [4, 3, 2, 1]);
    assert_eq!((tokenizer.vocab_size(), tokenizer.piece(0), tokenizer.piece(5)), (5, Some("a"), None));
    assert_eq!(tokenizer.piece(-1), None);
    assert_eq!(format!("{tokenizer:?}"), "WordPiece { vocab_size: 5, .. }");
}

#[test]
fn kept_marks_in_another_order_have_the_place_of_one_another() {
    // The vowel sign (class 30) comes before the Glagolitic letter (class 230), and only the former is stripped.
    let text = "a\u{1e026}\u{618}";
    assert!(is_ordered_and_kept('\u{1e026}') && !is_ordered_and_kept('\u{618}') && !is_ordered_and_kept('a'));
    let tokenizer = WordPiece::new(
        Vocabulary::new([&PIECES[..], &["##\u{1e026}"]].concat().into_iter().map(String::from).collect()).unwrap(),
    )
    .unwrap();
    assert_eq!(tokenizer.encode(text).unwrap().characters(), [0..1, 2..3]);
}

/// Whether a mark is moved within a run of marks (its combining class is not 0) and BERT does not strip it.
fn is_ordered_and_kept(letter: char) -> bool {
    // U+0334 has class 1, the lowest: it goes before every mark that has a class.
    let mut pair = NormalizedString::from(format!("{letter}\u{334}"));
    pair.nfd();
    pair.get().contains(&format!("\u{334}{letter}")) && !is_mark(letter).unwrap()
}

/// Letters, marks, syllables, Chinese, emoji with joiners, spaces and invisible characters, close together; without
/// the marks of which [`WordPiece::encode`] says that their places may be those of others.
fn unruly() -> impl Strategy<Value = String> {
    let letters = "[a-dA-DéÉñßİΣ가각힣日本😀👩❤\u{300}-\u{305}\u{fe0f}\u{200b}-\u{200d}\u{ad}\u{85}\u{2028}\u{a0} \t\n.,'#\\[\\]–’]{0,30}";
    let any = any::<String>().prop_map(|text| text.chars().filter(|&letter| !is_ordered_and_kept(letter)).collect());
    prop_oneof![letters.prop_map(String::from), any]
}

proptest! {
    #[test]
    fn places_slice_the_text_back_to_the_pieces(text in unruly()) {
        let tokenizer = WordPiece::new(Vocabulary::learn([text.as_str(), "a"], 400).unwrap()).unwrap();
        let pieces = tokenizer.encode(&text).unwrap();
        for (&id, place) in pieces.ids().iter().zip(pieces.characters()) {
            let piece = tokenizer.piece(id).unwrap();
            prop_assert_ne!(piece, "[UNK]");
            let bare = piece.strip_prefix("##").filter(|rest| !rest.is_empty()).unwrap_or(piece);
            let part = slice(&text, place.clone()).unwrap();
            let clean = words(part).unwrap().concat();
            // A syllable that was taken apart holds several pieces.
            let taken_apart = part.chars().filter(|&letter| !is_mark(letter).unwrap()).count() < clean.chars().count();
            prop_assert!(clean == bare || taken_apart && clean.contains(bare), "{piece:?} is {part:?} of {text:?}");
        }
        for two in pieces.characters().windows(2) {
            prop_assert!(two[0].start <= two[1].start && two[0].end <= two[1].end);
            prop_assert!(two[0].end <= two[1].start || two[0] == two[1], "{two:?} of {text:?}");
        }
    }

    #[test]
    fn pieces_are_the_words_again(text in unruly()) {
        let tokenizer = WordPiece::new(Vocabulary::learn([text.as_str(), "a"], 400).unwrap()).unwrap();
        let pieces = tokenizer.encode(&text).unwrap();
        let joined: String = pieces.ids().iter().map(|&id| tokenizer.piece(id).unwrap()).map(|piece| {
            piece.strip_prefix("##").filter(|rest| !rest.is_empty()).map_or(format!(" {piece}"), String::from)
        }).collect();
        prop_assert_eq!(joined.trim_start(), words(&text).unwrap().join(" "));
    }
}
