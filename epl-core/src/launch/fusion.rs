//! What Burn may fuse on a device.

use std::sync::Once;

use burn::tensor::Device;
use burn_std::config::{BurnConfig, RuntimeConfig};

use crate::error::{Error, Result};
use crate::offload::is_host;

/// Has Burn fuse one block of operations at a time. Where it searches several that do not depend on each other, Burn 0.22.1
/// computes wrong numbers and reads beyond tensors: `docs/decisions/launch/one-block.md`. Also where this rank computes on the host,
/// as Burn reads its configuration once, and a later launch may be on a device.
///
/// # Errors
///
/// When `device` fuses operations, and `burn.toml` asks for several blocks, or Burn had read its configuration before this.
pub(super) fn one_block_at_a_time(device: &Device) -> Result<()> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let given = BurnConfig::from_current_dir().override_from_env();
        // Another number than Burn's own was asked for, and stays.
        if blocks(&given) == blocks(&BurnConfig::default()) {
            // Not where it was read before.
            of_one_block(&given).map(BurnConfig::try_set).ok();
        }
    });
    // Without the feature no device is fused that these layers run on.
    let is_fused = cfg!(feature = "cuda") && !is_host(device);
    match blocks(&BurnConfig::get()) {
        blocks if is_fused && blocks != 1 => Err(Error::invalid(format!(
            "fusion.beam_search.max_blocks = {blocks}: on a device Burn 0.22.1 computes wrong numbers unless it is 1; launch ranks \
             before anything is computed, or write a `burn.toml` of [fusion.beam_search] and max_blocks = 1 where the program runs"
        ))),
        _ => Ok(()),
    }
}

fn blocks(config: &BurnConfig) -> usize {
    config.fusion().beam_search.max_blocks
}

/// The same configuration of one block; its fields are not open.
fn of_one_block(given: &BurnConfig) -> serde_json::Result<BurnConfig> {
    let mut value = serde_json::to_value(given)?;
    value["fusion"]["beam_search"]["max_blocks"] = 1.into();
    serde_json::from_value(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burn_searches_one_block_and_nothing_else_changes() {
        let (given, changed) = (BurnConfig::default(), of_one_block(&BurnConfig::default()).unwrap());
        assert_eq!(blocks(&changed), 1);
        let text = |config: &BurnConfig| {
            let mut value = serde_json::to_value(config).unwrap();
            value["fusion"]["beam_search"]["max_blocks"] = 0.into();
            value
        };
        assert_eq!(text(&given), text(&changed));
    }

    #[test]
    fn it_is_set_by_the_first_rank() {
        epl_testing::alone(|| {
            one_block_at_a_time(&Device::flex()).unwrap();
            assert_eq!(blocks(&BurnConfig::get()), 1);
            one_block_at_a_time(&Device::flex()).expect("it may be said twice");
        });
    }
}
