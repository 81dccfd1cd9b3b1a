use rand::{Rng, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::text::{Error, NumberPairsConfig, numbers};

const TEXTS: [&str; 4] = [
    "forty-two boats, forty-two!",
    "über dem Fluß schweben zweiundvierzig Boote",
    "forty boats; two boats. Two boats?",
    "Boote über Booten",
];

fn characters() -> Tokenizer {
    Tokenizer::characters(TEXTS.iter()).unwrap()
}

fn bytes(pieces: usize) -> Tokenizer {
    BpeConfig::new(pieces).train(TEXTS.iter()).unwrap()
}

fn round_trip(tokenizer: &Tokenizer, text: &str) -> String {
    tokenizer.decode(&tokenizer.encode(text).unwrap()).unwrap()
}

#[test]
fn special_tokens_are_those_of_t5() {
    for tokenizer in [characters(), bytes(300), BpeConfig::new(60).with_all_bytes(false).train(TEXTS.iter()).unwrap()] {
        assert_eq!([tokenizer.pad(), tokenizer.eos(), tokenizer.unk()], [0, 1, 2]);
        assert_eq!(tokenizer.decoder_start(), 0);
        assert_eq!(*tokenizer.encode("two boats").unwrap().last().unwrap(), 1);
        assert_eq!(tokenizer.encode("").unwrap(), [1]);
        assert_eq!(tokenizer.decode(&[]).unwrap(), "");
    }
}

#[test]
fn characters_are_numbered_in_order() {
    let tokenizer = Tokenizer::characters(["ba", "cß a"].iter()).unwrap();
    assert_eq!(tokenizer.vocab_size(), 3 + 5);
    // " " 3, a 4, b 5, c 6, ß 7
    assert_eq!(tokenizer.encode("caß b").unwrap(), [6, 4, 7, 3, 5, 1]);
    assert_eq!(tokenizer.encode("xx").unwrap(), [2, 2, 1]);
    assert_eq!(tokenizer.decode(&[4, 2, 5, 1]).unwrap(), "a<unk>b");
}

#[test]
fn decoding_stops_at_the_end_and_skips_what_is_no_piece() {
    let tokenizer = characters();
    let tokens = tokenizer.encode("two boats").unwrap();
    let mut generated = vec![tokenizer.decoder_start()];
    generated.extend(&tokens);
    generated.extend([5, 6, 7, 0, 0]);
    generated.splice(3..3, [0, -1, 100_000, i64::MAX]);
    assert_eq!(tokenizer.decode(&generated).unwrap(), "two boats");
}

#[test]
fn every_text_comes_back_from_bytes() {
    let tokenizer = bytes(300);
    let odd =
        ["", " ", "  two  boats ", "\n\t ", "</s> <pad><unk>", "日本語 😀 e\u{301}", "\u{0}\u{feff}▁Ġ", "a\u{a0}b"];
    for text in odd.iter().chain(&TEXTS) {
        assert_eq!(round_trip(&tokenizer, text), *text);
        assert!(!tokenizer.encode(text).unwrap().contains(&tokenizer.unk()), "{text:?}");
    }
    let mut random = ChaCha8Rng::seed_from_u64(5);
    for _ in 0..300 {
        let length = random.random_range(0..20);
        let text: String = (0..length)
            .map(|_| if random.random_bool(0.7) { random.random_range(' '..='~') } else { random.random::<char>() })
            .collect();
        assert_eq!(round_trip(&tokenizer, &text), text);
    }
}

#[test]
fn known_characters_come_back() {
    let tokenizer = characters();
    for text in ["  two  boats ", "Fluß über Fluß", "..,", ""] {
        assert_eq!(round_trip(&tokenizer, text), text);
    }
    let small = BpeConfig::new(60).with_all_bytes(false).train(TEXTS.iter()).unwrap();
    for text in TEXTS {
        assert_eq!(round_trip(&small, text), text);
    }
}

#[test]
fn merges_stay_inside_words() {
    let texts = ["forty-two boats."; 10];
    let tokenizer = BpeConfig::new(300).train(texts.iter()).unwrap();
    assert_eq!(tokenizer.pieces("forty-two boats.").unwrap(), ["Ġforty", "-", "two", "Ġboats", "."]);
    assert_eq!(tokenizer.vocab_size(), 3 + 256 + 12, "5 + 2 + 5 merges are all there are");
}

#[test]
fn the_order_of_texts_and_the_threads_do_not_matter() {
    let mut texts: Vec<String> =
        NumberPairsConfig::new().with_training(1_000).init().unwrap().training.texts().collect();
    let config = BpeConfig::new(224).with_all_bytes(false);
    let learned = config.train(texts.iter()).unwrap().to_json().unwrap();
    let spelled = Tokenizer::characters(texts.iter()).unwrap().to_json().unwrap();
    texts.shuffle(&mut ChaCha8Rng::seed_from_u64(1));
    for _ in 0..3 {
        assert_eq!(config.train(texts.iter()).unwrap().to_json().unwrap(), learned);
    }
    assert_eq!(Tokenizer::characters(texts.iter()).unwrap().to_json().unwrap(), spelled);
}

#[test]
fn number_words_become_few_pieces() {
    let split = NumberPairsConfig::new().init().unwrap();
    let tokenizer = BpeConfig::new(224).with_all_bytes(false).train(split.training.texts().take(5_000)).unwrap();
    assert_eq!(tokenizer.vocab_size(), 224);
    for &number in &split.held_out.numbers()[..500] {
        let (source, target) = (numbers::english(number), numbers::german(number));
        assert_eq!(round_trip(&tokenizer, &source), source);
        assert_eq!(round_trip(&tokenizer, &target), target);
        assert!(tokenizer.encode(&source).unwrap().len() <= 13);
        assert!(tokenizer.encode(&target).unwrap().len() <= 9);
    }
    assert_eq!(
        tokenizer.pieces("nine hundred ninety-nine thousand").unwrap(),
        ["Ġnine", "Ġhundred", "Ġninety", "-", "nine", "Ġthousand"]
    );
}

#[test]
fn a_batch_is_the_same_as_one_by_one() {
    let tokenizer = bytes(300);
    let batch = tokenizer.encode_batch(TEXTS.iter().map(|&text| text.into()).collect()).unwrap();
    for (text, tokens) in TEXTS.iter().zip(batch) {
        assert_eq!(tokenizer.encode(text).unwrap(), tokens);
    }
}

#[test]
fn a_saved_tokenizer_is_the_same_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    for tokenizer in [characters(), bytes(300)] {
        tokenizer.save(&path).unwrap();
        let loaded = Tokenizer::load(&path).unwrap();
        assert_eq!(loaded.to_json().unwrap(), tokenizer.to_json().unwrap());
        assert_eq!(loaded.vocab_size(), tokenizer.vocab_size());
        for text in ["  two boats ", "</s>", TEXTS[1]] {
            assert_eq!(loaded.encode(text).unwrap(), tokenizer.encode(text).unwrap());
            assert_eq!(round_trip(&loaded, text), round_trip(&tokenizer, text));
        }
    }
    let nowhere = folder.path().join("missing").join("tokenizer.json");
    assert!(matches!(bytes(300).save(&nowhere), Err(Error::Write { .. })));
    assert!(matches!(Tokenizer::load(&nowhere), Err(Error::Open { .. })));
}

#[test]
fn files_that_are_no_tokenizer_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let message = |content: &str| {
        std::fs::write(&path, content).unwrap();
        Tokenizer::load(&path).unwrap_err().to_string()
    };
    assert!(message("not json").contains("tokenizer.json is not a usable tokenizer file"));
    assert!(message("{}").contains("tokenizer.json is not a usable tokenizer file"));
    let renamed = bytes(300).to_json().unwrap().replace("</s>", "[SEP]");
    assert!(message(&renamed).contains("it has no token </s>"));
    let no_unknown = characters().to_json().unwrap().replace(r#""unk_token":"<unk>""#, r#""unk_token":"<gone>""#);
    assert!(message(&no_unknown).contains("tokenizer.json is not a usable tokenizer file"));
}

#[test]
fn a_vocabulary_without_room_for_its_alphabet_is_refused() {
    let message = |config: BpeConfig| config.train(TEXTS.iter()).unwrap_err().to_string();
    let said = message(BpeConfig::new(258));
    assert!(said.contains("a vocabulary of 258 is too small: 3 special tokens and 256 bytes need 259"), "{said}");
    assert!(said.contains("all_bytes = false"), "{said}");
    let said = message(BpeConfig::new(10).with_all_bytes(false));
    assert!(
        said.contains("a vocabulary of 10 is too small: 3 special tokens and 34 bytes of the training text need 37"),
        "{said}"
    );
    assert!(said.ends_with("ask for more pieces"), "{said}");
}

#[test]
fn nothing_is_learned_from_no_text() {
    let none: [&str; 0] = [];
    assert!(matches!(Tokenizer::characters(none.iter()), Err(Error::NoText)));
    assert!(matches!(Tokenizer::characters(["", ""].iter()), Err(Error::NoText)));
    assert!(matches!(BpeConfig::new(300).train(none.iter()), Err(Error::NoText)));
}

/// As a full disk or a kill would leave it: whole, the one before or the one after.
#[test]
fn a_tokenizer_is_never_half_written() {
    let folder = tempfile::tempdir().unwrap();
    let [path, before] = ["tokenizer.json", "before.json"].map(|name| folder.path().join(name));
    std::fs::write(&path, "before").unwrap();
    std::fs::hard_link(&path, &before).unwrap();
    characters().save(&path).unwrap();
    assert_eq!(std::fs::read_to_string(&before).unwrap(), "before", "the file that was there is not written to");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), characters().to_json().unwrap());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}
