use serde_json::Value;

use super::*;

/// What `tools/make_bleu_fixture.py` wrote.
fn fixture() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/bleu/pairs.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn texts(entry: &Value) -> (&str, &str) {
    (entry["hypothesis"].as_str().unwrap(), entry["reference"].as_str().unwrap())
}

fn entries(fixture: &Value) -> &[Value] {
    fixture["pairs"].as_array().unwrap()
}

/// Every component equals sacreBLEU's: counts exactly, floats to 1e-9.
fn assert_equal(ours: Bleu, theirs: &Value, what: &str) {
    let close = |ours: f64, theirs: &Value, name: &str| {
        let theirs = theirs.as_f64().unwrap();
        assert!((ours - theirs).abs() <= 1e-9, "{what}: {name} {ours}, sacreBLEU {theirs}");
    };
    close(ours.score, &theirs["score"], "score");
    close(ours.brevity_penalty, &theirs["brevity_penalty"], "brevity penalty");
    let counts = ours.counts;
    assert_eq!(counts.hypothesis_length, theirs["hypothesis_length"].as_u64().unwrap(), "{what}");
    assert_eq!(counts.reference_length, theirs["reference_length"].as_u64().unwrap(), "{what}");
    for n in 0..ORDER {
        close(ours.precisions[n], &theirs["precisions"][n], "precision");
        assert_eq!(counts.matches[n], theirs["matches"][n].as_u64().unwrap(), "{what}: matches of order {}", n + 1);
        assert_eq!(counts.totals[n], theirs["totals"][n].as_u64().unwrap(), "{what}: totals of order {}", n + 1);
    }
}

#[test]
fn tokens_are_those_of_13a() {
    for entry in entries(&fixture()) {
        let (hypothesis, reference) = texts(entry);
        for (text, tokens) in [(hypothesis, "hypothesis_tokens"), (reference, "reference_tokens")] {
            let theirs: Vec<&str> = entry[tokens].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
            assert_eq!(tokenize_13a(text), theirs, "{text:?}");
        }
    }
}

#[test]
fn each_pair_scores_as_in_sacrebleu() {
    let fixture = fixture();
    assert!(entries(&fixture).len() >= 50);
    for entry in entries(&fixture) {
        let pair = texts(entry);
        assert_equal(Bleu::of([pair]), &entry["bleu"], &format!("{pair:?}"));
    }
}

#[test]
fn the_corpus_scores_as_in_sacrebleu_however_it_is_divided() {
    let fixture = fixture();
    let pairs: Vec<_> = entries(&fixture).iter().map(texts).collect();
    assert_equal(Bleu::of(pairs.iter().copied()), &fixture["corpus"], "corpus");
    for parts in [2, 7] {
        let mut sum = BleuCounts::new();
        for part in 0..parts {
            let mine = pairs.iter().skip(part).step_by(parts).copied();
            sum.merge(&BleuCounts::from_values(Bleu::of(mine).counts.values()));
        }
        assert_eq!(sum.score(), Bleu::of(pairs.iter().copied()));
    }
}

#[test]
fn nothing_scores_zero() {
    let empty = BleuCounts::new().score();
    assert_eq!((empty.score, empty.brevity_penalty), (0.0, 1.0));
    assert_eq!(empty.to_string(), "BLEU = 0.00 0.0/0.0/0.0/0.0 (BP = 1.000 ratio = 0.000 hyp_len = 0 ref_len = 0)");
}

#[test]
fn the_display_is_sacrebleus() {
    let bleu = Bleu::of([("the cat sat on a mat", "the cat sat on the mat")]);
    let printed = "BLEU = 53.73 83.3/60.0/50.0/33.3 (BP = 1.000 ratio = 1.000 hyp_len = 6 ref_len = 6)";
    assert_eq!(bleu.to_string(), printed);
}
