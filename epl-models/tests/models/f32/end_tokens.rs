//! Which tokens end a text, by the files of a folder, is what `transformers` takes; likewise what else it takes where a file
//! is silent.

use std::fs;
use std::path::Path;

use epl_models::decoder::DecoderConfig;
use epl_models::huggingface::Folder;
use epl_models::t5::{self, T5Config};
use serde_json::{Value, json};
use tempfile::TempDir;

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/transformers")).join(name)
}

/// A folder with a fixture's weights, and its configuration with and without some keys.
fn folder(name: &str, change: &Value, generation: Option<&Value>) -> TempDir {
    let folder = TempDir::new().unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(fixture(name).join("config.json")).unwrap()).unwrap();
    let keys = config.as_object_mut().unwrap();
    for key in ["eos_token_id", "num_key_value_heads", "max_position_embeddings"] {
        keys.remove(key);
    }
    keys.extend(change.as_object().unwrap().clone());
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    fs::copy(fixture(name).join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    if let Some(generation) = generation {
        fs::write(folder.path().join("generation_config.json"), generation.to_string()).unwrap();
    }
    folder
}

fn decoder(name: &str, change: &Value, generation: Option<&Value>) -> Result<DecoderConfig, String> {
    let read = |folder: TempDir| DecoderConfig::from_huggingface(&Folder::open(folder.path())?);
    read(folder(name, change, generation)).map_err(|error| error.to_string())
}

fn t5(change: &Value, generation: Option<&Value>) -> T5Config {
    t5::open(folder("t5", change, generation).path()).unwrap().1
}

#[test]
fn a_missing_key_is_the_default_of_the_architecture_and_null_is_none() {
    let none: &[i64] = &[];
    for (name, default) in [("gpt2", &[50_256][..]), ("llama", &[2]), ("qwen3", none), ("gemma2", &[1])] {
        // What a Qwen3 of 4 heads does not say of its keys' would not fit it.
        let said = |eos: Option<Value>| {
            let mut change = json!({ "num_key_value_heads": 2 });
            change.as_object_mut().unwrap().extend(eos.map(|eos| ("eos_token_id".to_string(), eos)));
            decoder(name, &change, None).unwrap().ends
        };
        assert_eq!(said(None), default, "{name}");
        assert_eq!(said(Some(Value::Null)), none, "{name}");
        assert_eq!(said(Some(json!([3, 5]))), [3, 5], "{name}");
    }
    assert_eq!(t5(&json!({}), None).end_tokens(), [1]);
    assert_eq!(t5(&json!({ "eos_token_id": null }), None).end_tokens(), none);
    assert_eq!(t5(&json!({ "eos_token_id": 7 }), None).end_tokens(), [7]);
    assert_eq!(t5(&json!({ "eos_token_id": 7 }), None).ends, None, "it is the end of a sequence too");
}

#[test]
fn generation_config_goes_before_config() {
    let (change, key) = (json!({ "eos_token_id": 2, "num_key_value_heads": 2 }), "eos_token_id");
    for name in ["gpt2", "llama", "qwen3", "gemma2"] {
        let ends = |generation: Value| decoder(name, &change, Some(&generation)).map(|config| config.ends);
        assert_eq!(ends(json!({ key: [4, 9] })), Ok(vec![4, 9]), "{name}");
        assert_eq!(ends(json!({ key: 4 })), Ok(vec![4]), "{name}");
        assert_eq!(ends(json!({ key: null })), Ok(vec![]), "{name}");
        assert_eq!(ends(json!({ "do_sample": true })), Ok(vec![2]), "{name}: it does not say");
        let error = ends(json!({ key: "end" })).unwrap_err();
        assert!(error.contains("generation_config.json: `eos_token_id` is \"end\"; it should be"), "{error}");
        let error = ends(json!([])).unwrap_err();
        assert!(error.contains("generation_config.json is damaged"), "{error}");
    }
    let config = t5(&change, Some(&json!({ key: [1, 9] })));
    assert_eq!((config.eos, config.end_tokens()), (2, vec![1, 9]));
    assert_eq!(config.to_huggingface().unwrap()[key], json!([1, 9]));
}

#[test]
fn a_qwen3_that_does_not_say_has_32_heads_of_keys_and_32768_positions() {
    let heads = json!({ "num_attention_heads": 64 });
    let config = decoder("qwen3", &heads, None).unwrap();
    assert_eq!((config.key_heads(), config.positions), (32, 32_768));
    let null = decoder("qwen3", &json!({ "num_key_value_heads": null }), None).unwrap();
    assert_eq!(null.key_heads(), null.heads);
    let config = decoder("llama", &heads, None).unwrap();
    assert_eq!((config.key_heads(), config.positions), (64, 2048));
    let config = decoder("gemma2", &heads, None).unwrap();
    assert_eq!((config.key_heads(), config.positions), (4, 8192));
}

#[test]
fn a_negative_padding_token_is_none() {
    assert_eq!(decoder("llama", &json!({ "pad_token_id": -1 }), None).unwrap().pad, None);
    assert_eq!(decoder("llama", &json!({ "pad_token_id": 3 }), None).unwrap().pad, Some(3));
    let error = decoder("llama", &json!({ "pad_token_id": 96 }), None).unwrap_err();
    assert!(error.contains("`pad` is token 96; the tokens are 0 to 95"), "{error}");
}
