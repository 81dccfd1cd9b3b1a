//! The keys of rotary positions in a `config.json`.

use epl_modules::{RotaryConfig, RotaryScaling};
use serde_json::{Map, Value, json};

use crate::huggingface::{JsonConfig, Result};

/// Rotary positions as `transformers` 5 writes them, in one object, or as versions before did: the base beside the scaling.
/// `theta` is the base where none is said.
pub(super) fn read(json: &JsonConfig, theta: f64) -> Result<RotaryConfig> {
    let key = ["rope_parameters", "rope_scaling"].into_iter().find(|key| json.has(key));
    let theta = json.number_or("rope_theta", theta)?;
    let Some(key) = key else { return Ok(RotaryConfig::new().with_theta(theta)) };
    let inside = json.object(key)?;
    if inside.number_or("partial_rotary_factor", 1.0)? != 1.0 {
        return Err(inside.error("partial_rotary_factor", "is not 1; all features of a head are turned here"));
    }
    let config = RotaryConfig::new().with_theta(inside.number_or("rope_theta", theta)?);
    let kind = if inside.has("rope_type") { "rope_type" } else { "type" };
    let scaling = match inside.text_or(kind, "default")? {
        "default" => return Ok(config),
        "linear" => RotaryScaling::Linear { factor: inside.number("factor")? },
        "llama3" => RotaryScaling::Llama3 {
            factor: inside.number("factor")?,
            low_frequency_factor: inside.number("low_freq_factor")?,
            high_frequency_factor: inside.number("high_freq_factor")?,
            original_positions: inside.count("original_max_position_embeddings")?,
        },
        other => return Err(inside.error(kind, format!("is `{other}`; supported are default, linear and llama3"))),
    };
    Ok(config.with_scaling(Some(scaling)))
}

/// The keys that [`read`] reads: one object, and those that versions before `transformers` 5 read.
pub(super) fn write(rotary: &RotaryConfig) -> Map<String, Value> {
    let mut inside = match rotary.scaling {
        None => json!({ "rope_type": "default" }),
        Some(RotaryScaling::Linear { factor }) => json!({ "rope_type": "linear", "factor": factor }),
        Some(RotaryScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_positions }) => {
            json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low_frequency_factor,
                "high_freq_factor": high_frequency_factor,
                "original_max_position_embeddings": original_positions,
            })
        }
    };
    let mut keys = Map::new();
    if rotary.scaling.is_some() {
        keys.insert("rope_scaling".into(), inside.clone());
    }
    keys.insert("rope_theta".into(), rotary.theta.into());
    inside["rope_theta"] = rotary.theta.into();
    keys.insert("rope_parameters".into(), inside);
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(keys: &Value) -> Result<RotaryConfig> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, keys.to_string()).unwrap();
        read(&JsonConfig::open(path)?, 10_000.0)
    }

    const LLAMA_3: RotaryScaling = RotaryScaling::Llama3 {
        factor: 32.0,
        low_frequency_factor: 1.0,
        high_frequency_factor: 4.0,
        original_positions: 8192,
    };

    #[test]
    fn what_is_written_is_read_again() {
        for scaling in [None, Some(RotaryScaling::Linear { factor: 2.0 }), Some(LLAMA_3)] {
            for theta in [10_000.0, 500_000.0] {
                let rotary = RotaryConfig::new().with_theta(theta).with_scaling(scaling);
                let mut keys = write(&rotary);
                assert_eq!(parsed(&Value::Object(keys.clone())).unwrap(), rotary);
                // As a version reads that knows no `rope_parameters`.
                keys.remove("rope_parameters");
                assert_eq!(parsed(&Value::Object(keys)).unwrap(), rotary);
            }
        }
    }

    #[test]
    fn keys_of_published_models() {
        let plain = |theta| RotaryConfig::new().with_theta(theta);
        assert_eq!(parsed(&json!({})).unwrap(), plain(10_000.0));
        assert_eq!(parsed(&json!({ "rope_scaling": null, "rope_theta": 1_000_000 })).unwrap(), plain(1e6));
        let old = json!({ "rope_theta": 500_000.0, "rope_scaling": { "type": "linear", "factor": 4 } });
        let linear = RotaryScaling::Linear { factor: 4.0 };
        assert_eq!(parsed(&old).unwrap(), plain(500_000.0).with_scaling(Some(linear)));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        let refused = |keys: Value| parsed(&keys).unwrap_err().to_string();
        let yarn = json!({ "rope_parameters": { "rope_type": "yarn", "factor": 4.0 } });
        assert!(
            refused(yarn).contains("`rope_parameters.rope_type` is `yarn`; supported are default, linear and llama3")
        );
        let none = json!({ "rope_scaling": { "type": "linear" } });
        assert!(refused(none).contains("`rope_scaling.factor` is missing"));
        let partial = json!({ "rope_parameters": { "partial_rotary_factor": 0.5 } });
        assert!(refused(partial).contains("partial_rotary_factor"));
    }
}
