//! Which model of Hugging Face a shape is.

use epl_modules::NormKind;

use super::config::DecoderConfig;
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
}

/// The names of all, for errors.
pub(super) const SUPPORTED: &str = "gpt2, llama and qwen3";

impl Architecture {
    const ALL: [Self; 3] = [Self::Gpt2, Self::Llama, Self::Qwen3];

    /// What `config.json` calls it, as `model_type`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Gpt2 => "gpt2",
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
        }
    }

    /// The class of `transformers` with its head.
    pub fn class(self) -> &'static str {
        match self {
            Self::Gpt2 => "GPT2LMHeadModel",
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// The tokens that end a text where a folder does not say.
    pub fn ends(self) -> &'static [i64] {
        match self {
            Self::Gpt2 => &[50_256],
            Self::Llama => &[2],
            Self::Qwen3 => &[],
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
        let found = match (config.rotary.is_some(), config.qk_norm) {
            (false, _) => Self::Gpt2,
            (true, false) => Self::Llama,
            (true, true) => Self::Qwen3,
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
        match found {
            Self::Gpt2 if config.qk_norm => differs("qk_norm", "false"),
            Self::Gpt2 if config.key_heads() != config.heads => differs("kv_heads", "as many as `heads`"),
            Self::Gpt2 if config.head_width() * config.heads != config.d_model => {
                differs("head_dim", "`d_model` divided by `heads`")
            }
            Self::Gpt2 if !config.attention_bias => differs("attention_bias", "true"),
            Self::Gpt2 if !config.feed_forward_bias => differs("feed_forward_bias", "true"),
            Self::Qwen3 if config.feed_forward_bias => differs("feed_forward_bias", "false"),
            _ => Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_one_and_its_name_says_which() {
        for name in DecoderConfig::presets() {
            let architecture = Architecture::of(&DecoderConfig::preset(name).unwrap()).unwrap();
            assert!(name.starts_with(architecture.model_type()), "{name}: {architecture:?}");
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
        let qwen3 = llama().with_qk_norm(true).with_feed_forward_bias(true);
        assert!(refused(qwen3).contains("`feed_forward_bias` should be false in a Qwen3ForCausalLM"));
    }
}
