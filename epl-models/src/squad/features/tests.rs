use super::*;
use crate::squad::{Answer, Article, Vocabulary};

const CONTEXT: &str = "a b c (d-e) f g h";

fn squad(context: &str, question: &str, answers: &[(&str, usize)]) -> Squad {
    let answers = answers.iter().map(|&(text, start)| Answer { text: text.into(), start }).collect();
    let question = Question { id: "q1".into(), text: question.into(), answers };
    let paragraph = Paragraph { context: context.into(), questions: vec![question] };
    Squad { articles: vec![Article { title: "Letters".into(), paragraphs: vec![paragraph] }] }
}

fn tokenizer() -> WordPiece {
    let letters = ('a'..='z').map(String::from);
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "(", ")", "-", "?"].map(String::from);
    WordPiece::new(Vocabulary::new(special.into_iter().chain(letters).collect()).unwrap()).unwrap()
}

fn config(length: usize, stride: usize, question: usize) -> FeaturesConfig {
    FeaturesConfig::new().with_length(length).with_stride(stride).with_longest_question(question)
}

fn features(config: FeaturesConfig, squad: &Squad) -> Features {
    config.features(&tokenizer(), squad).unwrap().remove(0)
}

/// A row as text.
fn shown(row: &Row) -> String {
    let tokenizer = tokenizer();
    row.ids.iter().map(|&id| tokenizer.piece(id).unwrap()).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_row_is_question_and_context() {
    let features = features(config(20, 5, 4), &squad(CONTEXT, "x y?", &[("d", 7), ("e", 9)]));
    let row = features.row(0).unwrap();
    assert_eq!(shown(&row), "[CLS] x y ? [SEP] a b c ( d - e ) f g h [SEP]");
    assert_eq!(row.token_types, [[0; 5].as_slice(), &[1; 12]].concat());
    assert_eq!((row.tokens, features.context_at(), features.windows().len()), (17, 5, 1));
    // The first answer, without the bracket before and the dash after it.
    assert_eq!(features.positions(0).unwrap(), (9, 9));
    let padded = row.padded(20, 0).unwrap();
    assert_eq!(shown(&padded), "[CLS] x y ? [SEP] a b c ( d - e ) f g h [SEP] [PAD] [PAD] [PAD]");
    assert_eq!((padded.token_types.len(), padded.token_types[17..].to_vec(), padded.tokens), (20, vec![0; 3], 17));
}

#[test]
fn a_long_context_becomes_windows() {
    // Room for 5 of 11 pieces; the question is cut to 2.
    let features = features(config(10, 3, 2), &squad(CONTEXT, "x y?", &[("d-e", 7)]));
    assert_eq!(features.windows(), [0..5, 3..8, 6..11]);
    let rows: Vec<String> = (0..3).map(|window| shown(&features.row(window).unwrap())).collect();
    assert_eq!(
        rows,
        ["[CLS] x y [SEP] a b c ( d [SEP]", "[CLS] x y [SEP] ( d - e ) [SEP]", "[CLS] x y [SEP] e ) f g h [SEP]",]
    );
    // Only the middle window has the whole answer; the others have its start or its end.
    let positions: Vec<_> = (0..3).map(|window| features.positions(window).unwrap()).collect();
    assert_eq!(positions, [(0, 0), (5, 7), (0, 0)]);
    // One piece beyond the end of a window, one before the start of another, is outside.
    for (answer, start, expected) in [("d-", 7, [(0, 0), (5, 6), (0, 0)]), ("-e", 8, [(0, 0), (6, 7), (0, 0)])] {
        let features = self::features(config(10, 3, 2), &squad(CONTEXT, "x y?", &[(answer, start)]));
        let positions: Vec<_> = (0..3).map(|window| features.positions(window).unwrap()).collect();
        assert_eq!(positions, expected, "{answer}");
    }
}

#[test]
fn a_short_question_leaves_more_room() {
    let features = features(config(10, 3, 6), &squad(CONTEXT, "x", &[]));
    assert_eq!(features.windows(), [0..6, 3..9, 6..11]);
    assert_eq!(features.row(1).unwrap().tokens, 10);
}

#[test]
fn an_answer_within_a_word_is_its_pieces() {
    let vocabulary = Vocabulary::new(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "18", "##50", "##s", "japan", "##ese"].map(String::from).into(),
    );
    let tokenizer = WordPiece::new(vocabulary.unwrap()).unwrap();
    let answer = |text: &str, start| {
        let squad = squad("1850s Japanese", "", &[(text, start)]);
        FeaturesConfig::new().features(&tokenizer, &squad).unwrap().remove(0).answer()
    };
    assert_eq!(answer("1850", 0), Some(0..2));
    assert_eq!(answer("Japan", 6), Some(3..4));
    // Cut through a piece: the whole piece.
    assert_eq!(answer("50s Jap", 2), Some(1..4));
    assert_eq!(answer(" ", 5), None);
}

#[test]
fn what_cannot_be_made_is_refused() {
    let file = squad(CONTEXT, "x", &[]);
    let message = |config: FeaturesConfig, file: &Squad| config.features(&tokenizer(), file).unwrap_err().to_string();
    let said = message(config(67, 3, 64), &file);
    assert!(said.contains("a row of 67 tokens") && said.contains("need 68"), "{said}");
    assert!(config(68, 3, 64).features(&tokenizer(), &file).is_ok());
    assert!(message(config(68, 0, 64), &file).contains("the stride between windows is 0"));
    assert!(message(config(68, 3, usize::MAX), &file).contains("a row of 68 tokens"));
    let said = message(FeaturesConfig::new(), &squad(" \u{200b}\n", "x", &[]));
    assert!(said.contains(r#"question "q1": its context has no piece"#), "{said}");
    let features = features(FeaturesConfig::new(), &file);
    assert!(features.positions(0).unwrap_err().to_string().contains(r#"question "q1" has no answer"#));
    assert!(features.row(1).unwrap_err().to_string().contains("has 1 window(s), so there is no window 1"));
    let said = features.row(0).unwrap().padded(13, 0).unwrap_err().to_string();
    assert!(said.contains("a row of 15 tokens cannot be padded to 13"), "{said}");
}
