//! What can be wrong with a folder is said by name, before anything is assigned.

use std::fs;
use std::path::{Path, PathBuf};

use epl_core::testing::run;
use epl_models::huggingface::{Error, Folder};
use epl_models::t5::{self, T5Config};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize_to_file};
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/transformers")).join(name)
}

/// A copy of the T5 fixture whose files may be spoilt.
fn copy() -> TempDir {
    let copy = TempDir::new().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixture("t5").join(file), copy.path().join(file)).unwrap();
    }
    copy
}

/// The fixture's tensors, changed, as the files of a folder.
fn store(folder: &Path, change: impl Fn(Vec<(String, TensorView<'_>)>) -> Vec<(String, TensorView<'_>)>) {
    let bytes = fs::read(fixture("t5").join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    serialize_to_file(change(tensors), None, &folder.join("model.safetensors")).unwrap();
}

fn set(folder: &Path, key: &str, value: &str) {
    let path = folder.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config[key] = serde_json::from_str(value).unwrap();
    fs::write(&path, config.to_string()).unwrap();
}

/// Loads a folder into the model that the folder, or `config`, describes.
fn load(folder: &Path, config: Option<T5Config>) -> Result<(), String> {
    let folder = Folder::open(folder).map_err(|error| error.to_string())?;
    let config = config.map_or_else(|| T5Config::from_huggingface(&folder), Ok).map_err(|error| error.to_string())?;
    let mut results = run((1, 1, 1), |epl| {
        let built = epl.build(|at| config.init(at))?;
        let loaded = built.try_map(|model, plan| Ok(t5::load(model, plan.records(), &folder)?));
        Ok(loaded.map(drop).map_err(|error| error.to_string()))
    });
    results.remove(0)
}

fn fault(folder: &Path) -> String {
    load(folder, None).unwrap_err()
}

#[test]
fn the_copy_is_whole() {
    assert_eq!(load(copy().path(), None), Ok(()));
}

#[test]
fn another_architecture_is_named() {
    let error = t5::open(fixture("bert-mlm")).unwrap_err();
    assert!(matches!(&error, Error::Unsupported { model_type, .. } if model_type == "bert"), "{error}");
    assert!(error.to_string().contains("is a `bert`, which is not supported; supported are t5, switch_transformers"));
}

#[test]
fn what_is_missing_left_over_or_of_another_shape_is_listed() {
    let folder = copy();
    store(folder.path(), |mut tensors| {
        tensors.retain(|(name, _)| name != "decoder.final_layer_norm.weight");
        let spare = TensorView::new(Dtype::F32, vec![1], &[0; 4]).unwrap();
        tensors.push(("decoder.spare.weight".into(), spare));
        let narrow = TensorView::new(Dtype::F32, vec![16], &[0; 64]).unwrap();
        let norm = tensors.iter_mut().find(|(name, _)| name == "encoder.final_layer_norm.weight").unwrap();
        norm.1 = narrow;
        tensors
    });
    let error = fault(folder.path());
    for part in [
        "1 missing: decoder.final_layer_norm.weight",
        "1 not in the model: decoder.spare.weight",
        "1 of another shape: encoder.final_layer_norm.weight is [16] where the model has [32]",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_model_of_another_size_does_not_fit() {
    let (_, config) = t5::open(fixture("t5")).unwrap();
    let error = load(&fixture("t5"), Some(config.with_encoder_layers(3))).unwrap_err();
    assert!(error.contains("missing: encoder.block.2.layer.0.layer_norm.weight"), "{error}");
    assert!(error.contains("and 2 more") || error.contains("and 3 more"), "{error}");
}

#[test]
fn copies_and_the_unused_bias_may_be_there() {
    let folder = copy();
    store(folder.path(), |mut tensors| {
        let shared = tensors.iter().find(|(name, _)| name == "shared.weight").unwrap().1.clone();
        tensors.push(("lm_head.weight".into(), shared.clone()));
        tensors.push(("encoder.embed_tokens.weight".into(), shared));
        let unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";
        tensors.push((unused.into(), TensorView::new(Dtype::F32, vec![1], &[0; 4]).unwrap()));
        tensors
    });
    assert_eq!(load(folder.path(), None), Ok(()));
    assert!(t5::open(folder.path()).unwrap().1.tied_head);
}

#[test]
fn a_head_of_its_own_is_seen() {
    let folder = copy();
    store(folder.path(), |mut tensors| {
        tensors.push(("lm_head.weight".into(), TensorView::new(Dtype::F32, vec![96, 32], &[0; 4 * 96 * 32]).unwrap()));
        tensors
    });
    assert!(!t5::open(folder.path()).unwrap().1.tied_head);
    assert_eq!(load(folder.path(), None), Ok(()));
    let (_, tied) = t5::open(fixture("t5")).unwrap();
    let error = load(folder.path(), Some(tied)).unwrap_err();
    assert!(error.contains("1 not in the model: lm_head.weight"), "{error}");
}

/// Stores the embedding by another name too: its values, or others.
fn store_copy(folder: &Path, name: &str, differs: bool) {
    store(folder, |mut tensors| {
        let shared = tensors.iter().find(|(name, _)| name == "shared.weight").unwrap().1.clone();
        let zeros: &'static [u8] = &[0; 4 * 96 * 32];
        let other = TensorView::new(Dtype::F32, vec![96, 32], zeros).unwrap();
        tensors.push((name.into(), if differs { other } else { shared }));
        tensors
    });
}

#[test]
fn the_configuration_decides_whether_the_head_is_tied() {
    for (tie, scale, differs, own) in [
        ("false", "null", false, true),
        ("false", "null", true, true),
        ("true", "null", false, false),
        ("null", "null", false, false),
        ("true", "false", false, true),
        ("true", "true", false, false),
        ("true", "true", true, true),
    ] {
        let folder = copy();
        set(folder.path(), "tie_word_embeddings", tie);
        set(folder.path(), "scale_decoder_outputs", scale);
        store_copy(folder.path(), "lm_head.weight", differs);
        let config = t5::open(folder.path()).unwrap().1;
        assert_eq!(config.tied_head, !own, "tied {tie}, scaled {scale}, differs {differs}");
        assert_eq!(load(folder.path(), None), Ok(()));
    }
}

#[test]
fn a_head_that_contradicts_the_configuration_is_refused() {
    let folder = copy();
    set(folder.path(), "tie_word_embeddings", "false");
    set(folder.path(), "scale_decoder_outputs", "null");
    let error = fault(folder.path());
    assert!(error.contains("`tie_word_embeddings` is false, but no `lm_head.weight` is stored"), "{error}");
    set(folder.path(), "tie_word_embeddings", "true");
    store_copy(folder.path(), "lm_head.weight", true);
    let error = fault(folder.path());
    assert!(error.contains("is true, but `lm_head.weight` differs from `shared.weight`"), "{error}");
}

#[test]
fn embeddings_that_differ_are_refused() {
    for name in ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"] {
        let folder = copy();
        store_copy(folder.path(), name, true);
        let error = fault(folder.path());
        assert!(
            error.contains(&format!("`shared.weight` and `{name}` should be one embedding, but differ")),
            "{error}"
        );
    }
}

#[test]
fn parts_with_an_index_are_one_folder() {
    let folder = copy();
    let bytes = fs::read(folder.path().join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    let mut index = serde_json::json!({ "weight_map": {} });
    for (part, tensors) in tensors.chunks(20).enumerate() {
        let file = format!("model-{part}.safetensors");
        tensors.iter().for_each(|(name, _)| index["weight_map"][name] = file.clone().into());
        serialize_to_file(tensors.to_vec(), None, &folder.path().join(file)).unwrap();
    }
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let path = folder.path().join("model.safetensors.index.json");
    fs::write(&path, index.to_string()).unwrap();
    assert_eq!(load(folder.path(), None), Ok(()));

    index["weight_map"]["extra.weight"] = "model-1.safetensors".into();
    fs::write(&path, index.to_string()).unwrap();
    assert!(fault(folder.path()).contains("`extra.weight` should be in model-1.safetensors, but is not"));
    index["weight_map"]["extra.weight"] = "../model-1.safetensors".into();
    fs::write(&path, index.to_string()).unwrap();
    assert!(fault(folder.path()).contains("is not the name of a file in the folder"));
}

#[test]
fn damaged_files_are_named() {
    let folder = copy();
    let path = folder.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let error = fault(folder.path());
    assert!(error.contains("model.safetensors is damaged or of another format: it has"), "{error}");
    for (bytes, part) in [(&b"PK"[..], "it has 2 bytes"), (b"PK\x03\x04 not a header", "its header should have")] {
        fs::write(&path, bytes).unwrap();
        let error = fault(folder.path());
        assert!(error.contains(part), "{error}");
    }
    fs::remove_file(&path).unwrap();
    assert!(fault(folder.path()).contains("safe_serialization=True"));
    fs::write(folder.path().join("config.json"), "{").unwrap();
    assert!(fault(folder.path()).contains("config.json is damaged or of another format"));
    assert!(fault(&folder.path().join("nowhere")).contains("cannot read"));
}

#[test]
fn a_configuration_that_cannot_be_is_named() {
    for (key, value, part) in [
        ("d_model", "null", "`d_model` is null; it should be a count"),
        ("d_model", "-3", "`d_model` is -3; it should be a count"),
        (
            "feed_forward_proj",
            "\"gated-silu\"",
            "`feed_forward_proj` is `gated-silu`; supported are relu and gated-gelu",
        ),
        ("eos_token_id", "96", "`eos` is token 96; the tokens are 0 to 95"),
        ("dropout_rate", "1.5", "`dropout` is 1.5"),
        ("scale_decoder_outputs", "1", "`scale_decoder_outputs` is 1; it should be true or false"),
    ] {
        let folder = copy();
        set(folder.path(), key, value);
        let error = fault(folder.path());
        assert!(error.contains(part), "{error}");
    }
}
