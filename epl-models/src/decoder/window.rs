//! The keys of windows in a `config.json`.

use serde_json::{Map, Value, json};

use super::architecture::Architecture;
use super::config::DecoderConfig;
use crate::huggingface::{JsonConfig, Result};

/// Its size where none is said.
const SIZE: usize = 4096;
/// From which layer on those of a Qwen3 have one where none is said.
const FIRST: usize = 28;

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// [`DecoderConfig::windows`] of so many layers.
pub(super) fn read(json: &JsonConfig, architecture: Architecture, layers: usize) -> Result<Vec<Option<usize>>> {
    let size = size(json, architecture)?;
    let are_listed = json.has("layer_types");
    let are_within = match architecture {
        _ if are_listed => listed(json, layers)?,
        Architecture::Gemma2 => (0..layers).map(|layer| layer.is_multiple_of(2)).collect(),
        Architecture::Qwen3 => {
            let first = json.count_or("max_window_layers", FIRST)?;
            (0..layers).map(|layer| size.is_some() && layer >= first).collect()
        }
        _ => vec![size.is_some(); layers],
    };
    if are_listed && !architecture.mixes_windows() && are_within.contains(&size.is_none()) {
        let class = architecture.class();
        return Err(json.error("layer_types", format!("differs from what all layers of a {class} are")));
    }
    if size.is_none() && are_within.contains(&true) {
        return Err(json.error("sliding_window", format!("is none, and `layer_types` has a `{SLIDING}`")));
    }
    let repeats = |period: &usize| (0..layers).all(|layer| are_within[layer] == are_within[layer % period]);
    let period = (1..layers).find(repeats).unwrap_or(layers);
    let windows: Vec<Option<usize>> = are_within[..period].iter().map(|within| size.filter(|_| *within)).collect();
    Ok(if windows == [None] { Vec::new() } else { windows })
}

/// The size of the windows that there are.
fn size(json: &JsonConfig, architecture: Architecture) -> Result<Option<usize>> {
    let is_used = json.flag_or("use_sliding_window", false)?;
    match architecture {
        Architecture::Gemma2 => json.unless_null("sliding_window", Some(SIZE), JsonConfig::count),
        Architecture::Mixtral => json.unless_null("sliding_window", None, JsonConfig::count),
        Architecture::Qwen3 | Architecture::Qwen3Moe if is_used => {
            json.unless_null("sliding_window", Some(SIZE), JsonConfig::count)
        }
        Architecture::Gpt2 | Architecture::Llama if is_used => {
            let class = architecture.class();
            Err(json.error("use_sliding_window", format!("is true; every position of a {class} sees all before it")))
        }
        _ => Ok(None),
    }
}

/// Of each layer, whether it has a window.
fn listed(json: &JsonConfig, layers: usize) -> Result<Vec<bool>> {
    let kinds = json.texts("layer_types")?;
    if kinds.len() != layers {
        return Err(json.error("layer_types", format!("has {} entries for {layers} layers", kinds.len())));
    }
    match kinds.iter().find(|kind| ![FULL, SLIDING].contains(kind)) {
        Some(other) => Err(json.error("layer_types", format!("has a `{other}`; supported are {FULL} and {SLIDING}"))),
        None => Ok(kinds.iter().map(|kind| *kind == SLIDING).collect()),
    }
}

/// The keys that [`read`] reads.
pub(super) fn write(config: &DecoderConfig, architecture: Architecture) -> Map<String, Value> {
    let size = config.windows.iter().flatten().next();
    let kind = |layer| if config.window_of(layer).is_some() { SLIDING } else { FULL };
    let mut keys = match architecture {
        Architecture::Gpt2 | Architecture::Llama => return Map::new(),
        Architecture::Mixtral => json!({ "sliding_window": size }),
        Architecture::Qwen3 | Architecture::Qwen3Moe => {
            json!({ "use_sliding_window": size.is_some(), "sliding_window": size })
        }
        // It makes a mask of that size, whether a layer has it or not.
        Architecture::Gemma2 => json!({ "sliding_window": size.unwrap_or(&config.positions) }),
    };
    if architecture.mixes_windows() {
        keys["layer_types"] = (0..config.layers).map(kind).collect();
    }
    if let Value::Object(keys) = keys { keys } else { Map::new() }
}
