//! What `transformers` writes with a small model that was trained, token for token: greedily, by beams, by chance; in every layout.

use std::path::PathBuf;

use burn::optim::SgdConfig;
use epl_comm::shard_range;
use epl_core::engine::{Engine, EngineSettings};
use epl_core::testing;
use epl_core::{Config, Epl, Plan, Result, launch};
use epl_models::decoder::{self, Decoder, DecoderConfig};
use epl_models::generation::{GenerationConfig, Generative, generate, generate_told};
use epl_models::t5::{self, T5};
use serde_json::{Map, Value, json};

/// What is stored with the model.
struct Stored {
    longest: usize,
    seed: u64,
    prompts: Vec<Vec<i64>>,
    entries: Vec<(Map<String, Value>, Vec<Vec<i64>>)>,
}

fn folder(kind: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/transformers")).join(format!("{kind}-reversed"))
}

fn tokens(value: &Value) -> Vec<Vec<i64>> {
    serde_json::from_value(value.clone()).unwrap()
}

fn stored(kind: &str) -> Stored {
    let text = std::fs::read_to_string(folder(kind).join("generation.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let entry = |entry: &Value| (entry["settings"].as_object().unwrap().clone(), tokens(&entry["written"]));
    Stored {
        longest: all["longest"].as_u64().unwrap() as usize,
        seed: all["seed"].as_u64().unwrap(),
        prompts: tokens(&all["prompts"]),
        entries: all["entries"].as_array().unwrap().iter().map(entry).collect(),
    }
}

impl Stored {
    /// The settings of an entry: the defaults, but for those that it says.
    fn config(&self, settings: &Map<String, Value>) -> GenerationConfig {
        let sample = settings.contains_key("sample");
        let config = GenerationConfig::new(self.longest).with_seed(if sample { self.seed } else { 0 });
        let mut all: Value = serde_json::from_str(&config.to_string()).unwrap();
        for (key, value) in settings {
            assert!(all.get(key).is_some(), "there is no setting {key}");
            all[key] = value.clone();
        }
        serde_json::from_value(all).unwrap()
    }
}

fn t5(epl: &Epl) -> Result<Engine<T5>> {
    let (weights, config) = t5::open(folder("t5"))?;
    let load = |model, plan: &Plan| Ok(t5::load(model, plan.records(), &weights)?);
    let built = epl.build(|at| config.init(at))?.try_map(load)?;
    Engine::new(built, &SgdConfig::new(), EngineSettings::from_config(epl.config()))
}

fn decoder(epl: &Epl, kind: &str) -> Result<Engine<Decoder>> {
    decoder_with(epl, kind, |config| config)
}

fn decoder_with(epl: &Epl, kind: &str, change: impl FnOnce(DecoderConfig) -> DecoderConfig) -> Result<Engine<Decoder>> {
    let (weights, config) = decoder::open(folder(kind))?;
    let config = change(config);
    let load = |model, plan: &Plan| Ok(decoder::load(model, plan.records(), &weights)?);
    let built = epl.build(|at| config.init(at))?.try_map(load)?;
    Engine::new(built, &SgdConfig::new(), EngineSettings::from_config(epl.config()))
}

/// What all ranks write in a layout, compared with what is stored.
fn check(kind: &str, mesh: (usize, usize), stages: usize) {
    check_with(kind, (mesh.0, mesh.1, 1), stages);
}

/// The same, with experts over so many of the replicas.
fn check_with(kind: &str, mesh: (usize, usize, usize), stages: usize) {
    let mut options = testing::config(mesh.0, mesh.1, mesh.2);
    options.dist.pipeline_parallel_size = stages;
    check_in(kind, &options, &format!("{kind}, {mesh:?}, {stages} stages"));
}

/// The same, where attention that may be is whole on each of two tensor ranks, with all it remembers.
fn check_whole(kind: &str, attention: &str) {
    let options = testing::config(1, 2, 1).with("dist.whole_layers", Some(vec![attention.to_string()]));
    check_in(kind, &options.unwrap_or_else(|error| panic!("{error}")), &format!("{kind}, attention whole"));
}

fn check_in(kind: &str, options: &Config, what: &str) {
    let stored = stored(kind);
    let ranks = launch(options, |epl| match kind {
        "t5" => compare(&t5(&epl)?, &stored, what),
        _ => compare(&decoder(&epl, kind)?, &stored, what),
    });
    ranks.unwrap_or_else(|error| panic!("{error}"));
}

fn compare<M: Generative>(engine: &Engine<M>, stored: &Stored, what: &str) -> Result<()> {
    let data = engine.context().data().clone();
    let mine = shard_range(stored.prompts.len(), data.size(), data.rank());
    for (settings, expected) in &stored.entries {
        let config = stored.config(settings);
        let written = generate(engine, &stored.prompts[mine.clone()], &config)?;
        assert_eq!(written, expected[mine.clone()], "{what}: {settings:?}");
    }
    Ok(())
}

const KINDS: [&str; 6] = ["t5", "gpt2", "llama", "qwen3", "mixtral", "gemma2"];

#[test]
fn on_one_rank() {
    KINDS.into_iter().for_each(|kind| check(kind, (1, 1), 1));
}

#[test]
fn over_replicas_slices_and_stages() {
    for kind in KINDS {
        check(kind, (2, 1), 1);
        check(kind, (1, 2), 1);
        check(kind, (1, 1), 2);
    }
    check("t5", (2, 2), 2);
    check("llama", (2, 2), 2);
    check_with("mixtral", (2, 1, 2), 1);
    check_with("mixtral", (2, 2, 2), 2);
    check_whole("t5", "**.cross_attention");
    check_whole("gemma2", "**.self_attention");
}

#[test]
fn settings_differ_in_what_they_write() {
    // Else a setting that has no effect would go unseen.
    for kind in KINDS {
        let stored = stored(kind);
        let written = |key: &str| {
            let has = |(settings, _): &&(Map<String, Value>, Vec<Vec<i64>>)| settings.contains_key(key);
            let mut all: Vec<_> = stored.entries.iter().filter(has).map(|(_, written)| written.clone()).collect();
            all.sort();
            all.dedup();
            all
        };
        let (greedy, beams) = (&stored.entries[0].1, written("beams"));
        assert!(beams.len() > 1 && beams.iter().any(|written| written != greedy), "{kind}: {beams:?}");
        assert!(written("temperature").len() > 3, "{kind}");
        assert!(written("no_repeat_ngram").iter().all(|written| written != greedy), "{kind}");
    }
    // What beams find differs where a model is unsure of lengths: the T5, and of length penalties the Llama.
    let of = |stored: &Stored, settings: Value| {
        let has = |(known, _): &&(Map<String, Value>, Vec<Vec<i64>>)| settings.as_object() == Some(known);
        stored.entries.iter().find(has).map(|(_, written)| written.clone()).unwrap()
    };
    let longer = json!({ "beams": 3, "length_penalty": 4.0 });
    for kind in ["t5", "llama"] {
        let stored = stored(kind);
        assert_ne!(of(&stored, longer.clone()), of(&stored, json!({ "beams": 4, "length_penalty": 0.0 })), "{kind}");
    }
    let (stored, mut early) = (stored("t5"), longer.clone());
    early["early_stopping"] = true.into();
    assert_ne!(of(&stored, longer), of(&stored, early));
}

/// With prompts of unequal lengths, whose padding stands in windows, and beams that are reordered: what `transformers` writes is
/// what it writes with windows of six positions.
#[test]
fn a_window_is_that_of_every_step() {
    let stored = stored("gemma2");
    let ranks = launch(&testing::config(1, 1, 1), |epl| {
        for windows in [vec![], vec![Some(5), None], vec![Some(7), None], vec![None, Some(6)]] {
            let engine = decoder_with(&epl, "gemma2", |config| config.with_windows(windows.clone()))?;
            for (settings, expected) in stored.entries.iter().take(2) {
                let written = generate(&engine, &stored.prompts, &stored.config(settings))?;
                assert_ne!(written, *expected, "{windows:?}: {settings:?}");
            }
        }
        Ok(())
    });
    ranks.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn tokens_are_told_as_they_come_and_stop_tokens_end_a_text() {
    let stored = stored("llama");
    let ranks = launch(&testing::config(1, 1, 1), |epl| {
        let engine = decoder(&epl, "llama")?;
        let (greedy, expected) = (GenerationConfig::new(stored.longest), &stored.entries[0].1);
        let mut told = vec![Vec::new(); stored.prompts.len()];
        let written = generate_told(&engine, &stored.prompts, &greedy, |prompt, token| told[prompt].push(token))?;
        assert_eq!((&written, &told), (expected, expected));
        // Of all prompts the third token of the first text ends it.
        let stop = expected[0][2];
        let stopped = generate(&engine, &stored.prompts, &greedy.with_stop(vec![stop]))?;
        for (text, whole) in stopped.iter().zip(expected) {
            let end = whole.iter().position(|token| *token == stop).unwrap_or(whole.len());
            assert_eq!(*text, whole[..end]);
        }
        let refused = generate(&engine, &stored.prompts, &GenerationConfig::new(4).with_top_k(Some(2)));
        assert!(refused.unwrap_err().to_string().contains("`top_k` has no effect without `sample`"));
        let unknown = generate(&engine, &stored.prompts, &GenerationConfig::new(4).with_stop(vec![7, 40]));
        assert!(
            unknown
                .unwrap_err()
                .to_string()
                .contains("`stop` has token 40, which is never written; the tokens are 0 to 39")
        );
        Ok(())
    });
    ranks.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn all_positions_are_used_and_no_more() {
    let prompt = stored("gpt2").prompts[1].clone();
    let ranks = launch(&testing::config(1, 1, 1), |epl| {
        // Its positions are learned: beyond the 64 there is nothing to read. Without end tokens nothing ends before.
        let engine = decoder_with(&epl, "gpt2", |config| config.with_ends(Vec::new()))?;
        let ask = |longest| generate(&engine, std::slice::from_ref(&prompt), &GenerationConfig::new(longest));
        assert_eq!((prompt.len(), ask(56)?[0].len()), (9, 56));
        for longest in [57, usize::MAX] {
            let told = ask(longest).unwrap_err().to_string();
            let expected = format!("prompt 0 has 9 tokens, and {longest} may be written behind it; the model has 64");
            assert!(told.contains(&expected) && told.contains("a `longest` of at most 56"), "{told}");
        }
        Ok(())
    });
    ranks.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn beams_end_where_they_are_done_however_long_texts_may_be() {
    let stored = stored("t5");
    let ranks = launch(&testing::config(1, 1, 1), |epl| {
        let (engine, prompts) = (t5(&epl)?, &stored.prompts[..1]);
        let beams = |longest| GenerationConfig::new(longest).with_beams(3).with_early_stopping(true);
        let short = generate(&engine, prompts, &beams(64))?;
        assert!(!short[0].is_empty() && short[0].len() < 64, "{short:?}");
        for longest in [4_611_686_018_427_387_904, usize::MAX] {
            assert_eq!(generate(&engine, prompts, &beams(longest))?, short);
        }
        Ok(())
    });
    ranks.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn without_prompts_nothing_is_written_or_told() {
    for (replicas, stages) in [(1, 1), (2, 1), (1, 2)] {
        let mut options = testing::config(replicas, 1, 1);
        options.dist.pipeline_parallel_size = stages;
        let ranks = launch(&options, |epl| {
            let engine = decoder(&epl, "llama")?;
            for beams in [1, 3] {
                let mut told = Vec::new();
                let config = GenerationConfig::new(4).with_beams(beams);
                let written = generate_told(&engine, &[], &config, |prompt, token| told.push((prompt, token)))?;
                assert!(written.is_empty() && told.is_empty(), "{beams} beams: {written:?} {told:?}");
            }
            Ok(())
        });
        ranks.unwrap_or_else(|error| panic!("{error}"));
    }
}
