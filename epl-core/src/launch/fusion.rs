//! What Burn may fuse on a device.

use burn_std::config::{BurnConfig, RuntimeConfig};

use crate::error::{Error, Result};

/// Has Burn fuse one block of operations at a time. Where it searches several that do not depend on each other, Burn 0.22.1
/// computes wrong numbers and reads beyond tensors: <https://github.com/tracel-ai/burn/issues/4366>, and
/// `docs/decisions/fusion.md`.
///
/// # Errors
///
/// When `burn.toml` asks for several, or Burn has read it before this process could.
pub(super) fn one_block_at_a_time() -> Result<()> {
    let given = BurnConfig::from_current_dir().override_from_env();
    let blocks = given.fusion().beam_search.max_blocks;
    if ![1, BurnConfig::default().fusion().beam_search.max_blocks].contains(&blocks) {
        return Err(refused(blocks, "leave it out of `burn.toml`"));
    }
    if !BurnConfig::try_set(of_one_block(&given)?) {
        let blocks = BurnConfig::get().fusion().beam_search.max_blocks;
        if blocks != 1 {
            return Err(refused(blocks, "set it to 1 in `burn.toml`, or make no tensor before ranks are launched"));
        }
    }
    Ok(())
}

fn refused(blocks: usize, remedy: &str) -> Error {
    Error::invalid(format!(
        "fusion.beam_search.max_blocks = {blocks}: with more than 1 block Burn 0.22.1 computes wrong numbers on a device; {remedy}"
    ))
}

/// The same configuration of one block; its fields are not open.
fn of_one_block(given: &BurnConfig) -> Result<BurnConfig> {
    let changed = serde_json::to_value(given).and_then(|mut value| {
        value["fusion"]["beam_search"]["max_blocks"] = 1.into();
        serde_json::from_value(value)
    });
    changed.map_err(|error| Error::invalid(format!("Burn's configuration: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burn_searches_one_block_and_nothing_else_changes() {
        let (given, changed) = (BurnConfig::default(), of_one_block(&BurnConfig::default()).unwrap());
        assert_eq!(changed.fusion().beam_search.max_blocks, 1);
        let text = |config: &BurnConfig| {
            let mut value = serde_json::to_value(config).unwrap();
            value["fusion"]["beam_search"]["max_blocks"] = 0.into();
            value
        };
        assert_eq!(text(&given), text(&changed));
        one_block_at_a_time().unwrap();
        one_block_at_a_time().expect("it may be said twice");
        assert_eq!(BurnConfig::get().fusion().beam_search.max_blocks, 1);
    }
}
