use proptest::prelude::*;

use super::*;
use crate::squad::{FeaturesConfig, Squad, Vocabulary, WordPiece};

/// Features of one question "x" on this context: the context begins at token 3.
fn features(context: &str, length: usize, stride: usize) -> Features {
    let vocabulary = Vocabulary::learn(["abcdefghijklmnopqrstuvwxyz -"], 80).unwrap();
    let quoted = serde_json::to_string(context).unwrap();
    let json =
        format!(r#"{{"data":[{{"paragraphs":[{{"context":{quoted},"qas":[{{"id":"q1","question":"x"}}]}}]}}]}}"#);
    let config = FeaturesConfig::new().with_longest_question(1).with_length(length).with_stride(stride);
    config.features(&WordPiece::new(vocabulary).unwrap(), &Squad::parse(&json).unwrap()).unwrap().remove(0)
}

/// Logits of one window: zero but for these tokens.
fn row(tokens: usize, peaks: &[(usize, f32)]) -> Vec<f32> {
    let mut row = vec![0.0; tokens];
    peaks.iter().for_each(|&(token, value)| row[token] = value);
    row
}

fn ranked(config: AnswersConfig, features: &Features, rows: &[(Vec<f32>, Vec<f32>)]) -> Vec<RankedAnswer> {
    let logits: Vec<Logits<'_>> = rows.iter().map(|(start, end)| Logits { start, end }).collect();
    config.ranked(features, &logits).unwrap()
}

fn texts(answers: &[RankedAnswer]) -> Vec<&str> {
    answers.iter().map(|answer| answer.text.as_str()).collect()
}

#[test]
fn answers_are_ranked_by_the_sum_of_both_logits() {
    // Tokens: [CLS] x [SEP] a b c d [SEP].
    let features = features("a b c d", 9, 5);
    let rows = [(row(8, &[(3, 4.0), (4, 3.0), (6, 1.0)]), row(8, &[(4, 2.0), (3, 2.5), (5, 0.5)]))];
    let answers = ranked(AnswersConfig::new().with_n_best(3), &features, &rows);
    // "a b" 6, "b" 5, "a" 6.5, "a b c" 4.5, ...: of 3 starts and 3 ends, "d" has no end at or after it.
    assert_eq!(texts(&answers), ["a", "a b", "b"]);
    assert_eq!((answers[1].start_logit, answers[1].end_logit), (4.0, 2.0));
    let powers = [6.5f64, 6.0, 5.0].map(f64::exp);
    for (answer, power) in answers.iter().zip(powers) {
        assert!((answer.probability - power / powers.iter().sum::<f64>()).abs() < 1e-15);
    }
}

#[test]
fn what_is_no_answer_is_passed_over() {
    let features = features("a b c d", 9, 5);
    let config = AnswersConfig::new().with_n_best(2);
    // [CLS], the question and both [SEP] take places among the best, but are no answers.
    let rows = [(row(8, &[(0, 9.0), (3, 1.0)]), row(8, &[(7, 9.0), (4, 1.0)]))];
    assert_eq!(texts(&ranked(config, &features, &rows)), ["a b"]);
    // An end before the start; only then is nothing left.
    let rows = [(row(8, &[(0, 9.0), (5, 1.0)]), row(8, &[(2, 9.0), (4, 1.0)]))];
    let nothing = ranked(config, &features, &rows);
    let expected = RankedAnswer { text: "empty".into(), probability: 1.0, start_logit: 0.0, end_logit: 0.0 };
    assert_eq!(nothing, [expected]);
    // Three pieces are too long if two are the most.
    let rows = [(row(8, &[(3, 9.0), (5, 1.0)]), row(8, &[(5, 9.0), (6, 1.0)]))];
    assert_eq!(texts(&ranked(config, &features, &rows)), ["a b c", "a b c d"]);
    assert_eq!(texts(&ranked(config.with_longest(2), &features, &rows)), ["c", "c d"]);
}

#[test]
fn a_text_is_ranked_once_and_cut_from_the_original() {
    // Two "A-b" with different spaces between; the pieces know nothing of case and spaces.
    let features = features("A-b  c A-b", 20, 5);
    let rows = [(row(11, &[(3, 5.0), (7, 4.0)]), row(11, &[(5, 5.0), (9, 4.5)]))];
    let answers = ranked(AnswersConfig::new().with_n_best(2), &features, &rows);
    assert_eq!(texts(&answers), ["A-b", "A-b  c A-b"]);
    assert_eq!((answers[0].start_logit, answers[0].end_logit), (5.0, 5.0));
}

#[test]
fn an_answer_starts_only_where_it_has_most_context() {
    // Room for 5, 3 apart: 0..5, 3..8, 5..; piece 3 (d) has most context in window 0, piece 4 (e) in window 1.
    let features = features("a b c d e f g h", 9, 3);
    assert_eq!(features.windows(), [0..5, 3..8]);
    let config = AnswersConfig::new().with_n_best(1);
    let quiet = || (row(9, &[]), row(9, &[]));
    let at = |token| (row(9, &[(token, 5.0)]), row(9, &[(token, 5.0)]));
    assert_eq!(texts(&ranked(config, &features, &[at(6), quiet()])), ["d"]);
    assert_eq!(texts(&ranked(config, &features, &[quiet(), at(3)])), ["empty"]);
    assert_eq!(texts(&ranked(config, &features, &[at(7), quiet()])), ["empty"]);
    assert_eq!(texts(&ranked(config, &features, &[quiet(), at(4)])), ["e"]);
    // Equal sums: the earlier window first.
    let both = ranked(config.with_n_best(2), &features, &[at(5), at(5)]);
    assert_eq!(texts(&both), ["c", "f"]);
}

#[test]
fn padding_changes_nothing() {
    let features = features("a b c d", 9, 5);
    let rows = (row(8, &[(3, 4.0)]), row(8, &[(4, 2.0)]));
    let longer = |row: &[f32]| [row, &[f32::NAN, 99.0, 99.0]].concat();
    let padded = (longer(&rows.0), longer(&rows.1));
    let config = AnswersConfig::new();
    assert_eq!(ranked(config, &features, &[padded]), ranked(config, &features, &[rows]));
}

#[test]
fn logits_that_cannot_be_ranked_are_refused() {
    let features = features("a b c d", 9, 5);
    let (good, mut bad) = (row(8, &[]), row(8, &[]));
    bad[4] = f32::NAN;
    let message =
        |config: AnswersConfig, logits: &[Logits<'_>]| config.ranked(&features, logits).unwrap_err().to_string();
    let config = AnswersConfig::new();
    let said = message(config, &[Logits { start: &good, end: &bad }]);
    assert!(said.contains(r#"question "q1", window 0: the end logit of token 4 is NaN"#), "{said}");
    bad[4] = f32::NEG_INFINITY;
    assert!(message(config, &[Logits { start: &bad, end: &good }]).contains("the start logit of token 4 is -inf"));
    let said = message(config, &[Logits { start: &good, end: &good[..7] }]);
    assert!(said.contains("has 8 token(s) in window 0 but the logits have 7"), "{said}");
    assert!(message(config, &[]).contains("has 1 window(s) but the logits have 0"));
    let whole = [Logits { start: &good, end: &good }];
    assert!(message(config.with_n_best(0), &whole).contains("n_best is 0"));
    assert!(message(config.with_longest(0), &whole).contains("the longest answer is 0"));
}

proptest! {
    #[test]
    fn ranked_answers_are_ordered_stretches_with_finite_numbers(
        logits in proptest::collection::vec((any::<f32>(), any::<f32>()), 64),
        words in 1usize..30,
    ) {
        let context = "ab cd ".repeat(words);
        let features = features(&context, 16, 4);
        let finite = |value: f32| if value.is_finite() { value } else { f32::MAX };
        let start: Vec<f32> = logits.iter().map(|pair| finite(pair.0)).collect();
        let end: Vec<f32> = logits.iter().map(|pair| finite(pair.1)).collect();
        let all = vec![Logits { start: &start, end: &end }; features.windows().len()];
        let answers = AnswersConfig::new().ranked(&features, &all).unwrap();
        prop_assert!(!answers.is_empty() && answers.len() <= 20);
        prop_assert!((answers.iter().map(|answer| answer.probability).sum::<f64>() - 1.0).abs() < 1e-9);
        prop_assert!(answers.windows(2).all(|two| two[0].probability >= two[1].probability));
        let different: HashSet<&str> = answers.iter().map(|answer| answer.text.as_str()).collect();
        prop_assert_eq!(different.len(), answers.len());
        for answer in &answers {
            prop_assert!(context.contains(&answer.text) || answer.text == "empty");
            prop_assert!([answer.probability, answer.start_logit, answer.end_logit].iter().all(|value| value.is_finite()));
        }
    }
}
