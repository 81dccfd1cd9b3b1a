//! Which model of Hugging Face a shape is.

use epl_modules::{Capacity, Gate, NormKind};

use super::config::DecoderConfig;
use super::experts::DecoderExpertsConfig;
use crate::huggingface::{Error, Result};

/// The decoders of `transformers` that are read and written here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Learned positions.
    Gpt2,
    /// Rotary positions.
    Llama,
    /// Rotary positions, and norms of queries and keys.
    Qwen3,
    /// A Llama with experts.
    Mixtral,
    /// A Qwen3 with experts.
    Qwen3Moe,
}

/// The names of all, for errors.
pub(super) const SUPPORTED: &str = "gpt2, llama, qwen3, mixtral and qwen3_moe";

impl Architecture {
    const ALL: [Self; 5] = [Self::Gpt2, Self::Llama, Self::Qwen3, Self::Mixtral, Self::Qwen3Moe];

    /// What `config.json` calls it, as `model_type`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Gpt2 => "gpt2",
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
            Self::Mixtral => "mixtral",
            Self::Qwen3Moe => "qwen3_moe",
        }
    }

    /// The class of `transformers` with its head.
    pub fn class(self) -> &'static str {
        match self {
            Self::Gpt2 => "GPT2LMHeadModel",
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Mixtral => "MixtralForCausalLM",
            Self::Qwen3Moe => "Qwen3MoeForCausalLM",
        }
    }

    /// The tokens that end a text where a folder does not say.
    pub fn ends(self) -> &'static [i64] {
        match self {
            Self::Gpt2 => &[50_256],
            Self::Llama | Self::Mixtral => &[2],
            Self::Qwen3 | Self::Qwen3Moe => &[],
        }
    }

    /// The one of a `model_type`, if it is one of these.
    pub fn named(model_type: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|architecture| architecture.model_type() == model_type)
    }

    /// The one that has all that a shape has.
    ///
    /// # Errors
    ///
    /// [`Error::Export`] with the field that none has together with the others.
    pub fn of(config: &DecoderConfig) -> Result<Self> {
        let found = match (config.rotary.is_some(), config.qk_norm, config.experts.is_some()) {
            (false, ..) => Self::Gpt2,
            (true, false, false) => Self::Llama,
            (true, true, false) => Self::Qwen3,
            (true, false, true) => Self::Mixtral,
            (true, true, true) => Self::Qwen3Moe,
        };
        let norm = if found == Self::Gpt2 { NormKind::LayerNorm } else { NormKind::RmsNorm };
        let class = found.class();
        let differs = |field, needed: &str| Err(Error::export(field, format!("should be {needed} in a {class}")));
        if config.norm != norm {
            return differs("norm", &format!("{norm:?}"));
        }
        if config.gated != (found != Self::Gpt2) {
            return differs("gated", if config.gated { "false" } else { "true" });
        }
        match (&config.experts, found) {
            (Some(_), Self::Gpt2) => return differs("experts", "none"),
            (Some(experts), found) => check_experts(experts, found)?,
            (None, _) => {}
        }
        match found {
            Self::Gpt2 if config.qk_norm => differs("qk_norm", "false"),
            Self::Gpt2 if config.key_heads() != config.heads => differs("kv_heads", "as many as `heads`"),
            Self::Gpt2 if config.head_width() * config.heads != config.d_model => {
                differs("head_dim", "`d_model` divided by `heads`")
            }
            Self::Gpt2 if !config.attention_bias => differs("attention_bias", "true"),
            Self::Gpt2 if !config.feed_forward_bias => differs("feed_forward_bias", "true"),
            Self::Qwen3 | Self::Mixtral | Self::Qwen3Moe if config.feed_forward_bias => {
                differs("feed_forward_bias", "false")
            }
            Self::Mixtral if config.attention_bias => differs("attention_bias", "false"),
            _ => Ok(found),
        }
    }
}

/// Refuses experts that the architecture has not.
fn check_experts(experts: &DecoderExpertsConfig, architecture: Architecture) -> Result<()> {
    let class = architecture.class();
    let differs =
        |field: &'static str, needed: &str| Err(Error::export(field, format!("should be {needed} in a {class}")));
    match (architecture, experts.gate) {
        _ if experts.capacity != Capacity::Unlimited => differs("experts.capacity", "Capacity::Unlimited"),
        _ if experts.shared.is_some() => differs("experts.shared", "none"),
        _ if experts.bias_rate.is_some() => differs("experts.bias_rate", "none"),
        (Architecture::Mixtral, Gate::TopK { renormalise: true, .. }) if !experts.dense_layers.is_empty() => {
            differs("experts.dense_layers", "empty")
        }
        (Architecture::Mixtral, Gate::TopK { renormalise: true, .. }) | (Architecture::Qwen3Moe, Gate::TopK { .. }) => {
            Ok(())
        }
        (Architecture::Qwen3Moe, _) => differs("experts.gate", "Gate::TopK"),
        _ => differs("experts.gate", "Gate::TopK, renormalised"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_one_and_its_name_says_which() {
        for name in DecoderConfig::presets() {
            let architecture = Architecture::of(&DecoderConfig::preset(name).unwrap()).unwrap();
            // Of the names `qwen3-30b-a3b` is one, whose last part counts the parameters that a token uses.
            let is_routed = architecture == Architecture::Qwen3Moe;
            let family = if is_routed { "qwen3" } else { architecture.model_type() };
            assert!(name.starts_with(family) && name.contains("b-a") == is_routed, "{name}: {architecture:?}");
            assert_eq!(Architecture::named(architecture.model_type()), Some(architecture));
        }
        assert_eq!(Architecture::named("t5"), None);
    }

    #[test]
    fn what_none_has_is_named() {
        let refused = |config: DecoderConfig| Architecture::of(&config).unwrap_err().to_string();
        let (gpt2, llama) = (|| DecoderConfig::new(100), || DecoderConfig::llama_like(100));
        assert!(
            refused(gpt2().with_norm(NormKind::RmsNorm)).contains("`norm` should be LayerNorm in a GPT2LMHeadModel")
        );
        assert!(refused(gpt2().with_gated(true)).contains("`gated` should be false"));
        assert!(refused(gpt2().with_kv_heads(Some(6))).contains("`kv_heads`"));
        assert!(refused(gpt2().with_head_dim(Some(32))).contains("`head_dim`"));
        assert!(refused(gpt2().with_attention_bias(false)).contains("`attention_bias` should be true"));
        assert!(refused(llama().with_gated(false)).contains("`gated` should be true in a LlamaForCausalLM"));
        let mixtral = |experts: DecoderExpertsConfig| refused(llama().with_experts(Some(experts)));
        let experts = || DecoderExpertsConfig::new(4);
        assert!(mixtral(experts().with_gate(Gate::Top2)).contains("`experts.gate` should be Gate::TopK, renormalised"));
        assert!(mixtral(experts().with_capacity(Capacity::Fixed(3))).contains("`experts.capacity`"));
        assert!(mixtral(experts().with_shared(Some(8))).contains("`experts.shared` should be none"));
        assert!(mixtral(experts().with_dense_layers(vec![1])).contains("`experts.dense_layers` should be empty"));
        assert!(
            refused(gpt2().with_experts(Some(experts()))).contains("`experts` should be none in a GPT2LMHeadModel")
        );
        let qwen3 = llama().with_qk_norm(true).with_feed_forward_bias(true);
        assert!(refused(qwen3).contains("`feed_forward_bias` should be false in a Qwen3ForCausalLM"));
    }
}
