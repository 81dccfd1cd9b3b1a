//! Known shapes, by name.
//!
//! Two families share the names "small" and "large" and mean different models by them, so the prefix says which:
//! `epl_` for the examples of EPL, `hf_` for the checkpoints on Hugging Face.

use epl_modules::moe::{Capacity, Gate};

use super::config::{T5Config, T5FeedForward, T5MoeConfig};

/// A name that no preset has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no model `{name}`; there are {}", T5Config::presets().join(", "))]
pub struct UnknownPreset {
    /// The name that was asked for.
    pub name: String,
}

impl T5Config {
    /// The names that [`preset`](Self::preset) knows.
    pub fn presets() -> Vec<&'static str> {
        PRESETS.iter().map(|(name, _)| *name).collect()
    }

    /// A known shape. The number of tokens is the family's; change it by [`with_vocab`](Self::with_vocab).
    ///
    /// | name | blocks | width | inside | heads | experts |
    /// |---|---|---|---|---|---|
    /// | `moe_t5_numbers` | 2 + 2 | 128 | 256 | 4 × 32 | 4 in every other block, top-2 |
    /// | `moe_t5_corpus` | 3 + 3 | 256 | 512 | 8 × 32 | 4 in every other block, top-2 |
    /// | `moe_t5_small` (EPL) | 4 + 4 | 512 | 2048 | 16 × 64 | 8 in every block, top-2 |
    /// | `epl_t5_small` | 4 + 4 | 1024 | 4096 | 16 × 64 | |
    /// | `epl_t5_large` | 24 + 24 | 1024 | 4096 | 16 × 64 | |
    /// | `hf_t5_small` | 6 + 6 | 512 | 2048 | 8 × 64 | |
    /// | `hf_t5_base` | 12 + 12 | 768 | 3072 | 12 × 64 | |
    /// | `hf_t5_large` | 24 + 24 | 1024 | 4096 | 16 × 64 | |
    /// | `hf_t5_v1_1_small` | 8 + 8 | 512 | 1024, gated | 6 × 64 | |
    /// | `hf_t5_v1_1_base` | 12 + 12 | 768 | 2048, gated | 12 × 64 | |
    /// | `hf_switch_base_8` | 12 + 12 | 768 | 3072 | 12 × 64 | 8 in every other block, top-1 |
    ///
    /// # Errors
    ///
    /// [`UnknownPreset`], which lists the names.
    pub fn preset(name: &str) -> Result<Self, UnknownPreset> {
        let known = PRESETS.iter().find(|(known, _)| *known == name);
        known.map(|(_, config)| config()).ok_or_else(|| UnknownPreset { name: name.to_string() })
    }
}

type Preset = (&'static str, fn() -> T5Config);

const PRESETS: [Preset; 11] = [
    ("moe_t5_numbers", moe_t5_numbers),
    ("moe_t5_corpus", moe_t5_corpus),
    ("moe_t5_small", moe_t5_small),
    ("epl_t5_small", || epl(4)),
    ("epl_t5_large", || epl(24)),
    ("hf_t5_small", || hugging_face(6, 512, 2048, 8)),
    ("hf_t5_base", || hugging_face(12, 768, 3072, 12)),
    ("hf_t5_large", || hugging_face(24, 1024, 4096, 16)),
    ("hf_t5_v1_1_small", || version_1_1(8, 512, 1024, 6)),
    ("hf_t5_v1_1_base", || version_1_1(12, 768, 2048, 12)),
    ("hf_switch_base_8", hf_switch_base_8),
];

/// Small enough to learn number words within minutes on two cores.
fn moe_t5_numbers() -> T5Config {
    // Sentences of ten tokens fill the experts unevenly: with room for twice the mean few are dropped.
    let moe = T5MoeConfig::new(4)
        .with_encoder_sparse_step(2)
        .with_decoder_sparse_step(2)
        .with_capacity(Capacity::Factor { train: 2.0, eval: 2.0 });
    T5Config::new(32_000)
        .with_d_model(128)
        .with_d_kv(32)
        .with_d_ff(256)
        .with_heads(4)
        .with_encoder_layers(2)
        .with_decoder_layers(2)
        .with_dropout(0.0)
        .with_moe(Some(moe))
}

/// Small enough to learn a corpus of some ten thousand sentences within half an hour on two cores.
fn moe_t5_corpus() -> T5Config {
    let moe = T5MoeConfig::new(4).with_encoder_sparse_step(2).with_decoder_sparse_step(2);
    T5Config::new(8000)
        .with_d_model(256)
        .with_d_kv(32)
        .with_d_ff(512)
        .with_encoder_layers(3)
        .with_decoder_layers(3)
        .with_label_smoothing(0.1)
        .with_moe(Some(moe))
}

fn moe_t5_small() -> T5Config {
    T5Config::new(32_000)
        .with_heads(16)
        .with_encoder_layers(4)
        .with_decoder_layers(4)
        .with_moe(Some(T5MoeConfig::new(8)))
}

fn epl(layers: usize) -> T5Config {
    hugging_face(layers, 1024, 4096, 16).with_vocab(32_000)
}

fn hugging_face(layers: usize, d_model: usize, d_ff: usize, heads: usize) -> T5Config {
    T5Config::new(32_128)
        .with_d_model(d_model)
        .with_d_ff(d_ff)
        .with_heads(heads)
        .with_encoder_layers(layers)
        .with_decoder_layers(layers)
}

fn version_1_1(layers: usize, d_model: usize, d_ff: usize, heads: usize) -> T5Config {
    hugging_face(layers, d_model, d_ff, heads)
        .with_feed_forward(T5FeedForward::GatedGelu)
        .with_tied_head(false)
        .with_scaled_head(false)
}

fn hf_switch_base_8() -> T5Config {
    let moe = T5MoeConfig::new(8)
        .with_gate(Gate::Switch)
        .with_encoder_sparse_step(2)
        .with_decoder_sparse_step(2)
        .with_capacity(Capacity::Fixed(64))
        .with_auxiliary(0.001)
        .with_z(0.001)
        .with_jitter(0.01);
    hugging_face(12, 768, 3072, 12).with_moe(Some(moe))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_possible_and_has_its_own_name() {
        for name in T5Config::presets() {
            assert!(T5Config::preset(name).unwrap().validate().is_ok(), "{name}");
            assert_eq!(PRESETS.iter().filter(|(other, _)| *other == name).count(), 1);
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known() {
        let message = T5Config::preset("t5_small").unwrap_err().to_string();
        assert!(message.starts_with("there is no model `t5_small`; there are moe_t5_numbers, "), "{message}");
        assert!(message.contains("epl_t5_small") && message.contains("hf_t5_small"));
    }
}
