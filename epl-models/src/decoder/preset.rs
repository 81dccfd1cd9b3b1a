//! Known shapes, by name.

use epl_core::{Error, Result};
use epl_modules::{Activation, Balance, Gate, NormKind, RotaryConfig, RotaryScaling};

use super::config::DecoderConfig;
use super::experts::DecoderExpertsConfig;

type Preset = (&'static str, fn() -> DecoderConfig);

/// The names that [`DecoderConfig::preset`] knows.
const PRESETS: [Preset; 24] = [
    ("gpt2", || gpt2(12, 768, 12)),
    ("gpt2-medium", || gpt2(24, 1024, 16)),
    ("gpt2-large", || gpt2(36, 1280, 20)),
    ("gpt2-xl", || gpt2(48, 1600, 25)),
    ("llama2-7b", || llama2(Shape { layers: 32, d_model: 4096, d_ff: 11_008, heads: 32, kv_heads: 32 })),
    ("llama2-13b", || llama2(Shape { layers: 40, d_model: 5120, d_ff: 13_824, heads: 40, kv_heads: 40 })),
    ("llama2-70b", || llama2(Shape { layers: 80, d_model: 8192, d_ff: 28_672, heads: 64, kv_heads: 8 })),
    ("llama3-8b", || llama3(Shape { layers: 32, d_model: 4096, d_ff: 14_336, heads: 32, kv_heads: 8 })),
    ("llama3-70b", || llama3(Shape { layers: 80, d_model: 8192, d_ff: 28_672, heads: 64, kv_heads: 8 })),
    ("llama3.2-1b", || llama3_2(Shape { layers: 16, d_model: 2048, d_ff: 8192, heads: 32, kv_heads: 8 })),
    ("llama3.2-3b", || llama3_2(Shape { layers: 28, d_model: 3072, d_ff: 8192, heads: 24, kv_heads: 8 })),
    ("qwen3-0.6b", || qwen3(Shape { layers: 28, d_model: 1024, d_ff: 3072, heads: 16, kv_heads: 8 }, true)),
    ("qwen3-1.7b", || qwen3(Shape { layers: 28, d_model: 2048, d_ff: 6144, heads: 16, kv_heads: 8 }, true)),
    ("qwen3-4b", || qwen3(Shape { layers: 36, d_model: 2560, d_ff: 9728, heads: 32, kv_heads: 8 }, true)),
    ("qwen3-8b", || qwen3(Shape { layers: 36, d_model: 4096, d_ff: 12_288, heads: 32, kv_heads: 8 }, false)),
    ("qwen3-14b", || qwen3(Shape { layers: 40, d_model: 5120, d_ff: 17_408, heads: 40, kv_heads: 8 }, false)),
    ("qwen3-32b", || qwen3(Shape { layers: 64, d_model: 5120, d_ff: 25_600, heads: 64, kv_heads: 8 }, false)),
    ("qwen3-30b-a3b", || qwen3_moe(Shape { layers: 48, d_model: 2048, d_ff: 6144, heads: 32, kv_heads: 4 }, 768)),
    ("qwen3-235b-a22b", || qwen3_moe(Shape { layers: 94, d_model: 4096, d_ff: 12_288, heads: 64, kv_heads: 4 }, 1536)),
    ("mixtral-8x7b", || {
        mixtral(Shape { layers: 32, d_model: 4096, d_ff: 14_336, heads: 32, kv_heads: 8 }, (32_768, 0.02))
    }),
    ("mixtral-8x22b", || {
        mixtral(Shape { layers: 56, d_model: 6144, d_ff: 16_384, heads: 48, kv_heads: 8 }, (65_536, 0.001))
    }),
    ("gemma2-2b", || gemma2(Shape { layers: 26, d_model: 2304, d_ff: 9216, heads: 8, kv_heads: 4 }, (256, 256))),
    ("gemma2-9b", || gemma2(Shape { layers: 42, d_model: 3584, d_ff: 14_336, heads: 16, kv_heads: 8 }, (256, 256))),
    ("gemma2-27b", || gemma2(Shape { layers: 46, d_model: 4608, d_ff: 36_864, heads: 32, kv_heads: 16 }, (128, 144))),
];

impl DecoderConfig {
    /// The names that [`preset`](Self::preset) knows.
    pub fn presets() -> Vec<&'static str> {
        PRESETS.iter().map(|(name, _)| *name).collect()
    }

    /// A known shape, by name, with its published sizes and number of tokens:
    ///
    /// | names | layers × width | tokens |
    /// |---|---|---|
    /// | `gpt2`, `gpt2-medium`, `gpt2-large`, `gpt2-xl` | 12 × 768, 24 × 1024, 36 × 1280, 48 × 1600 | 50257 |
    /// | `llama2-7b`, `llama2-13b`, `llama2-70b` | 32 × 4096, 40 × 5120, 80 × 8192 | 32000 |
    /// | `llama3-8b`, `llama3-70b` | 32 × 4096, 80 × 8192 | 128256 |
    /// | `llama3.2-1b`, `llama3.2-3b` | 16 × 2048, 28 × 3072; tied, rotary positions scaled | 128256 |
    /// | `qwen3-0.6b`, `qwen3-1.7b`, `qwen3-4b` | 28 × 1024, 28 × 2048, 36 × 2560; tied | 151936 |
    /// | `qwen3-8b`, `qwen3-14b`, `qwen3-32b` | 36 × 4096, 40 × 5120, 64 × 5120 | 151936 |
    /// | `qwen3-30b-a3b`, `qwen3-235b-a22b` | 48 × 2048, 94 × 4096; 8 of 128 experts | 151936 |
    /// | `mixtral-8x7b`, `mixtral-8x22b` | 32 × 4096, 56 × 6144; 2 of 8 experts | 32000 |
    /// | `gemma2-2b`, `gemma2-9b`, `gemma2-27b` | 26 × 2304, 42 × 3584, 46 × 4608; tied | 256000 |
    ///
    /// # Errors
    ///
    /// For another name, with those that there are.
    pub fn preset(name: &str) -> Result<Self> {
        let known = PRESETS.iter().find(|(known, _)| *known == name);
        let unknown =
            || Error::invalid(format!("there is no decoder `{name}`; there are {}", Self::presets().join(", ")));
        known.map(|(_, config)| config()).ok_or_else(unknown)
    }

    /// What all Llamas, and all that follow them, have in common: rotary positions, RMS norms, a gated feed-forward part, no
    /// biases, no dropout, a head of its own.
    pub fn llama_like(vocab: usize) -> Self {
        Self::new(vocab)
            .with_rotary(Some(RotaryConfig::new()))
            .with_norm(NormKind::RmsNorm)
            .with_activation(Activation::Silu)
            .with_gated(true)
            .with_attention_bias(false)
            .with_feed_forward_bias(false)
            .with_tied_head(false)
            .with_embedding_dropout(0.0)
            .with_dropout(0.0)
            .with_attention_dropout(0.0)
            .with_scaled_output(false)
    }
}

struct Shape {
    layers: usize,
    d_model: usize,
    d_ff: usize,
    heads: usize,
    kv_heads: usize,
}

impl Shape {
    fn of(self, config: DecoderConfig) -> DecoderConfig {
        config
            .with_layers(self.layers)
            .with_d_model(self.d_model)
            .with_d_ff(self.d_ff)
            .with_heads(self.heads)
            .with_kv_heads(Some(self.kv_heads))
    }
}

fn gpt2(layers: usize, d_model: usize, heads: usize) -> DecoderConfig {
    DecoderConfig::new(50_257).with_layers(layers).with_d_model(d_model).with_d_ff(4 * d_model).with_heads(heads)
}

fn llama2(shape: Shape) -> DecoderConfig {
    shape.of(DecoderConfig::llama_like(32_000)).with_positions(4096)
}

fn llama3(shape: Shape) -> DecoderConfig {
    let rotary = RotaryConfig::new().with_theta(500_000.0);
    shape.of(DecoderConfig::llama_like(128_256)).with_positions(8192).with_rotary(Some(rotary))
}

fn llama3_2(shape: Shape) -> DecoderConfig {
    let scaling = RotaryScaling::Llama3 {
        factor: 32.0,
        low_frequency_factor: 1.0,
        high_frequency_factor: 4.0,
        original_positions: 8192,
    };
    let rotary = RotaryConfig::new().with_theta(500_000.0).with_scaling(Some(scaling));
    llama3(shape).with_positions(131_072).with_rotary(Some(rotary)).with_tied_head(true)
}

fn qwen3(shape: Shape, tied: bool) -> DecoderConfig {
    let rotary = RotaryConfig::new().with_theta(1_000_000.0);
    shape
        .of(DecoderConfig::llama_like(151_936))
        .with_head_dim(Some(128))
        .with_qk_norm(true)
        .with_epsilon(1e-6)
        .with_positions(40_960)
        .with_rotary(Some(rotary))
        .with_tied_head(tied)
}

/// With what Hugging Face's files say of the load-balancing loss, where it is asked for.
fn experts(count: usize, choices: usize, d_ff: Option<usize>, coefficient: f64) -> DecoderExpertsConfig {
    DecoderExpertsConfig::new(count)
        .with_gate(Gate::TopK { experts: choices, renormalise: true })
        .with_d_ff(d_ff)
        .with_balance(Balance::Batch)
        .with_auxiliary(coefficient * choices as f64)
}

fn qwen3_moe(shape: Shape, d_ff: usize) -> DecoderConfig {
    qwen3(shape, false).with_experts(Some(experts(128, 8, Some(d_ff), 0.001)))
}

fn mixtral(shape: Shape, (positions, coefficient): (usize, f64)) -> DecoderConfig {
    let rotary = RotaryConfig::new().with_theta(1_000_000.0);
    shape
        .of(DecoderConfig::llama_like(32_000))
        .with_positions(positions)
        .with_rotary(Some(rotary))
        .with_experts(Some(experts(8, 2, None, coefficient)))
}

fn gemma2(shape: Shape, (head_dim, scalar): (usize, usize)) -> DecoderConfig {
    shape
        .of(DecoderConfig::llama_like(256_000))
        .with_head_dim(Some(head_dim))
        .with_positions(8192)
        .with_epsilon(1e-6)
        .with_activation(Activation::GeluNew)
        .with_tied_head(true)
        .with_scaled_embeddings(true)
        .with_zero_centered_gamma(true)
        .with_sandwich_norm(true)
        .with_windows(vec![Some(4096), None])
        .with_query_pre_attn_scalar(Some(scalar))
        .with_attention_softcap(Some(50.0))
        .with_logit_softcap(Some(30.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huggingface::export::parameter_count;

    /// As counted over the published weights, a tied head once.
    const PUBLISHED: [(&str, usize); 24] = [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("llama2-7b", 6_738_415_616),
        ("llama2-13b", 13_015_864_320),
        ("llama2-70b", 68_976_648_192),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3.2-1b", 1_235_814_400),
        ("llama3.2-3b", 3_212_749_824),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-235b-a22b", 235_093_634_560),
        ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_620_634_112),
        ("gemma2-2b", 2_614_341_888),
        ("gemma2-9b", 9_241_705_984),
        ("gemma2-27b", 27_227_128_320),
    ];

    #[test]
    fn every_preset_has_as_many_parameters_as_are_published() {
        assert_eq!(DecoderConfig::presets(), PUBLISHED.map(|(name, _)| name));
        for (name, published) in PUBLISHED {
            let config = DecoderConfig::preset(name).unwrap();
            assert_eq!(parameter_count(|place| config.init(place)), published, "{name}");
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known() {
        let message = DecoderConfig::preset("gpt3").unwrap_err().to_string();
        assert!(message.contains("no decoder `gpt3`; there are gpt2, gpt2-medium, "), "{message}");
    }
}
