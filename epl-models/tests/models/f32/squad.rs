//! SQuAD from the file to the score: the sample of `fixtures/squad`, rows and windows, answers from perfect logits,
//! and scores against an independent program's.

use epl_models::squad::{
    Answer, AnswersConfig, Features, FeaturesConfig, Logits, Paragraph, Predictions, Question, Squad, SquadScore,
    Vocabulary, WordPiece,
};
use proptest::prelude::*;

/// Pieces in the vocabulary of the sample: few enough that many of its words are several pieces.
const PIECES: usize = 800;

fn fixture(name: &str) -> String {
    format!("{}/fixtures/squad/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn sample() -> Squad {
    Squad::load(fixture("sample.json")).unwrap()
}

/// A tokenizer that knows every character of the file.
fn learned(squad: &Squad, pieces: usize) -> WordPiece {
    let contexts = paragraphs(squad).map(|paragraph| paragraph.context.as_str());
    let questions = squad.questions().map(|(_, question)| question.text.as_str());
    WordPiece::new(Vocabulary::learn(contexts.chain(questions), pieces).unwrap()).unwrap()
}

fn paragraphs(squad: &Squad) -> impl Iterator<Item = &Paragraph> {
    squad.articles.iter().flat_map(|article| &article.paragraphs)
}

/// Rows of BERT's length, and rows so short that the sample's contexts are cut.
fn lengths() -> [FeaturesConfig; 2] {
    [FeaturesConfig::new(), FeaturesConfig::new().with_length(96).with_stride(32)]
}

/// The answer that a model gives which knows every start and end.
fn answer_of_a_perfect_model(features: &Features) -> Vec<epl_models::squad::RankedAnswer> {
    let one_at = |token: usize, tokens: usize| (0..tokens).map(|at| if at == token { 10.0 } else { 0.0 }).collect();
    let rows: Vec<(Vec<f32>, Vec<f32>)> = (0..features.windows().len())
        .map(|window| {
            let tokens = features.row(window).unwrap().tokens;
            let (start, end) = features.positions(window).unwrap();
            (one_at(start, tokens), one_at(end, tokens))
        })
        .collect();
    let logits: Vec<Logits<'_>> = rows.iter().map(|(start, end)| Logits { start, end }).collect();
    AnswersConfig::new().ranked(features, &logits).unwrap()
}

#[test]
fn scores_are_those_of_an_independent_program() {
    let fixture: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(fixture("pairs.json")).unwrap()).unwrap();
    let pairs = fixture["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 200);
    let mut all = SquadScore::new();
    for pair in pairs {
        let texts = pair["answers"].as_array().unwrap().iter();
        let answers: Vec<Answer> = texts.map(|text| Answer { text: text.as_str().unwrap().into(), start: 0 }).collect();
        let mut one = SquadScore::new();
        one.add(pair["prediction"].as_str(), &answers);
        assert_eq!(one.matched, pair["exact_match"].as_u64().unwrap(), "{pair}");
        assert_eq!(one.f1, pair["f1"].as_f64().unwrap(), "{pair}");
        all.merge(&one);
    }
    assert_eq!(all.exact_match(), fixture["exact_match"].as_f64().unwrap());
    assert_eq!(all.mean_f1(), fixture["f1"].as_f64().unwrap());
}

#[test]
fn the_sample_is_what_it_is_meant_to_be() {
    let sample = sample();
    assert_eq!((paragraphs(&sample).count(), sample.questions().count()), (12, 70));
    for paragraph in paragraphs(&sample) {
        assert!((60..=150).contains(&paragraph.context.split_whitespace().count()), "{}", paragraph.context);
        assert!((5..=6).contains(&paragraph.questions.len()));
    }
    // Bytes and characters differ before some of the answers, so that mixing them up shows.
    let shifted = sample.questions().filter(|(paragraph, question)| {
        paragraph.context.chars().take(question.answers[0].start).any(|letter| !letter.is_ascii())
    });
    assert!(shifted.count() > 10);
}

#[test]
fn the_learned_vocabulary_knows_the_sample() {
    let sample = sample();
    let tokenizer = learned(&sample, PIECES);
    assert_eq!(tokenizer.vocab_size(), PIECES);
    for (paragraph, question) in sample.questions() {
        for text in [&paragraph.context, &question.text] {
            assert!(!tokenizer.encode(text).unwrap().ids().contains(&tokenizer.unk()), "{text}");
        }
    }
    let again = learned(&sample, PIECES);
    assert!((0..PIECES as i64).all(|id| tokenizer.piece(id) == again.piece(id)));
}

#[test]
fn windows_of_the_sample_have_every_piece() {
    let sample = sample();
    let tokenizer = learned(&sample, PIECES);
    for config in lengths() {
        let all = config.features(&tokenizer, &sample).unwrap();
        let several = all.iter().filter(|features| features.windows().len() > 1).count();
        assert_eq!(several > 30, config.length == 96, "{several} of {} questions have several windows", all.len());
        for features in &all {
            let mut found = vec![None; features.pieces().len()];
            for (window, pieces) in features.windows().iter().enumerate() {
                let row = features.row(window).unwrap();
                assert!(row.tokens <= config.length);
                let context = &row.ids[features.context_at()..row.tokens - 1];
                found[pieces.clone()].iter_mut().zip(context).for_each(|(found, &id)| *found = Some(id));
            }
            let found: Option<Vec<i64>> = found.into_iter().collect();
            assert_eq!(found.as_deref(), Some(features.pieces().ids()));
        }
    }
}

#[test]
fn perfect_logits_give_every_answer_of_the_sample() {
    let sample = sample();
    let tokenizer = learned(&sample, PIECES);
    for config in lengths() {
        let mut predictions = Predictions::new();
        for features in config.features(&tokenizer, &sample).unwrap() {
            predictions.add(features.id(), answer_of_a_perfect_model(&features)).unwrap();
        }
        let file: serde_json::Value = serde_json::from_str(&predictions.to_json()).unwrap();
        for (_, question) in sample.questions() {
            assert_eq!(file[&question.id], question.answers[0].text, "{}", question.id);
        }
        let score = SquadScore::of(&sample, &predictions).unwrap();
        assert_eq!((score.exact_match(), score.mean_f1(), score.total), (100.0, 100.0, 70));
    }
}

#[test]
fn spans_are_those_of_words_tightened_by_search() {
    let sample = sample();
    let tokenizer = learned(&sample, PIECES);
    let all = FeaturesConfig::new().features(&tokenizer, &sample).unwrap();
    let mut tightened = 0;
    for (features, (paragraph, question)) in all.iter().zip(sample.questions()) {
        let (loose, tight) = searched(&tokenizer, paragraph, question);
        assert_eq!(features.answer().unwrap(), tight, "{}", question.id);
        tightened += usize::from(loose != tight);
    }
    assert!(tightened > 10, "only {tightened} answers begin or end within a word");
}

/// The span of an answer as `run_squad` finds it, which has no places: the words between spaces that have a character
/// of it, and within them the first and then longest run of pieces that reads as the answer's own pieces.
fn searched(
    tokenizer: &WordPiece,
    paragraph: &Paragraph,
    question: &Question,
) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
    let answer = &question.answers[0];
    let (mut ids, mut loose, mut place) = (Vec::new(), None::<std::ops::Range<usize>>, 0);
    for word in paragraph.context.split(' ') {
        let first = ids.len();
        ids.extend_from_slice(tokenizer.encode(word).unwrap().ids());
        let end = place + word.chars().count();
        if place < answer.characters().end && answer.characters().start < end {
            loose = Some(loose.map_or(first, |loose| loose.start)..ids.len());
        }
        place = end + 1;
    }
    let loose = loose.unwrap();
    let sought = tokenizer.encode(&answer.text).unwrap();
    let runs = loose.clone().flat_map(|start| (start + 1..loose.end + 1).rev().map(move |end| start..end));
    let tight = runs.into_iter().find(|run| ids[run.clone()] == *sought.ids());
    (loose.clone(), tight.unwrap_or(loose))
}

/// Words with marks, brackets, Chinese characters and an emoji, with one sort of space or another after each.
fn words() -> impl Strategy<Value = Vec<(String, String)>> {
    let word =
        prop_oneof!["[a-z]{1,6}", "[A-Z][a-zéñ]{0,4}", "[ae]\u{301}[b-d]?e\u{301}", "日本", "🦀", "\\(x-y\\)", "7,5"];
    let space = prop_oneof![" ", "  ", "\n", "\u{a0}", "\t "];
    proptest::collection::vec((word, space), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn perfect_logits_give_any_answer(words in words(), first in any::<prop::sample::Index>(), two in any::<bool>()) {
        let first = first.index(words.len());
        let last = (first + usize::from(two)).min(words.len() - 1);
        let text = |words: &[(String, String)]| words.iter().flat_map(|(word, space)| [word.as_str(), space]).collect();
        let (before, context): (String, String) = (text(&words[..first]), text(&words));
        let answer = text(&words[first..last]) + &words[last].0;
        let answers = vec![Answer { text: answer.clone(), start: before.chars().count() }];
        let question = Question { id: "q".into(), text: "Where is it?".into(), answers };
        let mut squad = sample();
        squad.articles.truncate(1);
        squad.articles[0].paragraphs = vec![Paragraph { context, questions: vec![question] }];
        // One piece for every character: answers of up to 15 pieces, contexts of hundreds.
        let tokenizer = learned(&squad, 100);
        let config = FeaturesConfig::new().with_longest_question(12).with_length(72).with_stride(20);
        let features = config.features(&tokenizer, &squad).unwrap().remove(0);
        let ranked = answer_of_a_perfect_model(&features);
        prop_assert_eq!(&ranked[0].text, &answer);
        prop_assert_eq!((ranked[0].start_logit, ranked[0].end_logit), (10.0, 10.0));
    }
}
