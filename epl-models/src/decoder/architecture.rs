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
    /// Rotary positions, norms around each part, limits of scores and logits, windows.
    Gemma2,
}

impl Architecture {
    const ALL: [Self; 6] = [Self::Gpt2, Self::Llama, Self::Qwen3, Self::Mixtral, Self::Qwen3Moe, Self::Gemma2];

    /// What `config.json` calls them, for errors.
    pub const SUPPORTED: &'static str = "gpt2, llama, qwen3, mixtral, qwen3_moe and gemma2";

    /// What `config.json` calls it, as `model_type`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Gpt2 => "gpt2",
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
            Self::Mixtral => "mixtral",
            Self::Qwen3Moe => "qwen3_moe",
            Self::Gemma2 => "gemma2",
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
            Self::Gemma2 => "Gemma2ForCausalLM",
        }
    }

    /// The tokens that end a text where a folder does not say.
    pub fn ends(self) -> &'static [i64] {
        match self {
            Self::Gpt2 => &[50_256],
            Self::Llama | Self::Mixtral => &[2],
            Self::Qwen3 | Self::Qwen3Moe => &[],
            Self::Gemma2 => &[1],
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
        let experts = config.experts.is_some();
        let found = match (config.rotary.is_some(), config.sandwich_norm, config.qk_norm, experts) {
            (false, ..) => Self::Gpt2,
            (true, true, ..) => Self::Gemma2,
            (true, false, false, false) => Self::Llama,
            (true, false, true, false) => Self::Qwen3,
            (true, false, false, true) => Self::Mixtral,
            (true, false, true, true) => Self::Qwen3Moe,
        };
        match found.lacks(config) {
            Some((field, needed)) => Err(Error::export(field, format!("should be {needed} in a {}", found.class()))),
            None => Ok(found),
        }
    }

    /// The first field whose value it has not, with what it should be.
    fn lacks(self, config: &DecoderConfig) -> Option<Lack> {
        let norm = if self == Self::Gpt2 { NormKind::LayerNorm } else { NormKind::RmsNorm };
        if config.norm != norm {
            return Some(("norm", format!("{norm:?}")));
        }
        let differs = |(field, has, needed): (_, bool, Option<bool>)| Some((field, needed.filter(|it| *it != has)?));
        if let Some((field, needed)) = self.flags(config).into_iter().find_map(differs) {
            return Some((field, needed.to_string()));
        }
        let of_gemma2 = [
            ("query_pre_attn_scalar", config.query_pre_attn_scalar.is_some()),
            ("attention_softcap", config.attention_softcap.is_some()),
            ("logit_softcap", config.logit_softcap.is_some()),
        ];
        if let Some((field, _)) = of_gemma2.into_iter().find(|(_, has)| *has && self != Self::Gemma2) {
            return Some((field, "none".to_string()));
        }
        let experts = config.experts.as_ref().and_then(|experts| lacks_of_experts(experts, self));
        experts.or_else(|| self.lacks_of_windows(config)).or_else(|| match self {
            Self::Gpt2 if config.key_heads() != config.heads => Some(("kv_heads", "as many as `heads`".to_string())),
            Self::Gpt2 if config.head_width() * config.heads != config.d_model => {
                Some(("head_dim", "`d_model` divided by `heads`".to_string()))
            }
            // Their configurations in `transformers` refuse it, whatever `head_dim` is.
            Self::Llama | Self::Gemma2 if !config.d_model.is_multiple_of(config.heads) => {
                Some(("d_model", format!("a multiple of its {} heads", config.heads)))
            }
            _ => None,
        })
    }

    /// Windows that it has not.
    fn lacks_of_windows(self, config: &DecoderConfig) -> Option<Lack> {
        let sizes: Vec<&usize> = config.windows.iter().flatten().collect();
        let needed = match self {
            Self::Gpt2 | Self::Llama if !sizes.is_empty() => "none",
            _ if sizes.iter().any(|size| *size != sizes[0]) => "of one size",
            _ if !self.mixes_windows() && (1..config.windows.len()).contains(&sizes.len()) => "the same for all layers",
            _ => return None,
        };
        Some(("windows", needed.to_string()))
    }

    /// Whether some of its layers may have a window and others not.
    pub(super) fn mixes_windows(self) -> bool {
        matches!(self, Self::Qwen3 | Self::Gemma2)
    }

    /// What a shape has, and what it should have, if that is not open.
    fn flags(self, config: &DecoderConfig) -> [(&'static str, bool, Option<bool>); 7] {
        let (gpt2, gemma2) = (self == Self::Gpt2, self == Self::Gemma2);
        let attention_bias = match self {
            Self::Gpt2 => Some(true),
            Self::Mixtral => Some(false),
            _ => None,
        };
        let feed_forward_bias = if self == Self::Llama { None } else { Some(gpt2) };
        [
            ("gated", config.gated, Some(!gpt2)),
            ("qk_norm", config.qk_norm, Some(matches!(self, Self::Qwen3 | Self::Qwen3Moe))),
            ("sandwich_norm", config.sandwich_norm, Some(gemma2)),
            ("zero_centered_gamma", config.zero_centered_gamma, Some(gemma2)),
            ("scaled_embeddings", config.scaled_embeddings, Some(gemma2)),
            ("attention_bias", config.attention_bias, attention_bias),
            ("feed_forward_bias", config.feed_forward_bias, feed_forward_bias),
        ]
    }
}

/// A field, and what it should be.
type Lack = (&'static str, String);

/// Experts that the architecture has not.
fn lacks_of_experts(experts: &DecoderExpertsConfig, architecture: Architecture) -> Option<Lack> {
    let (field, needed) = match (architecture, experts.gate) {
        (Architecture::Gpt2 | Architecture::Llama | Architecture::Qwen3 | Architecture::Gemma2, _) => {
            ("experts", "none")
        }
        _ if experts.capacity != Capacity::Unlimited => ("experts.capacity", "Capacity::Unlimited"),
        _ if experts.shared.is_some() => ("experts.shared", "none"),
        _ if experts.bias_rate.is_some() => ("experts.bias_rate", "none"),
        (Architecture::Mixtral, Gate::TopK { renormalise: true, .. }) if !experts.dense_layers.is_empty() => {
            ("experts.dense_layers", "empty")
        }
        (Architecture::Mixtral, Gate::TopK { renormalise: true, .. }) => return None,
        (Architecture::Qwen3Moe, Gate::TopK { .. }) => return None,
        (Architecture::Qwen3Moe, _) => ("experts.gate", "Gate::TopK"),
        (Architecture::Mixtral, _) => ("experts.gate", "Gate::TopK, renormalised"),
    };
    Some((field, needed.to_string()))
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
        }
        for architecture in Architecture::ALL {
            assert_eq!(Architecture::named(architecture.model_type()), Some(architecture));
        }
        let names = Architecture::ALL.map(Architecture::model_type).join(", ");
        assert_eq!(Architecture::SUPPORTED.replace(" and ", ", "), names);
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
        // What Gemma 2 has and the others have not, and the other way round.
        let gemma2 = || DecoderConfig::preset("gemma2-2b").unwrap();
        assert!(
            refused(gemma2().with_sandwich_norm(false)).contains("`zero_centered_gamma` should be false in a Llama")
        );
        assert!(
            refused(gemma2().with_zero_centered_gamma(false)).contains("`zero_centered_gamma` should be true in a Gem")
        );
        assert!(refused(gemma2().with_scaled_embeddings(false)).contains("`scaled_embeddings` should be true"));
        assert!(refused(gemma2().with_qk_norm(true)).contains("`qk_norm` should be false in a Gemma2ForCausalLM"));
        assert!(refused(gemma2().with_experts(Some(experts()))).contains("`experts` should be none"));
        assert!(
            refused(llama().with_query_pre_attn_scalar(Some(9))).contains("`query_pre_attn_scalar` should be none")
        );
        assert!(refused(gpt2().with_attention_softcap(Some(9.0))).contains("`attention_softcap` should be none"));
        assert!(refused(llama().with_logit_softcap(Some(9.0))).contains("`logit_softcap` should be none in a Llama"));
        assert!(refused(llama().with_windows(vec![Some(9)])).contains("`windows` should be none in a Llama"));
        let mixtral = llama().with_experts(Some(experts())).with_windows(vec![Some(9), None]);
        assert!(refused(mixtral).contains("`windows` should be the same for all layers in a Mixtral"));
        let sizes = gemma2().with_windows(vec![Some(9), Some(8)]);
        assert!(refused(sizes).contains("`windows` should be of one size in a Gemma2ForCausalLM"));
        // A width that the heads do not divide, as `head_dim` allows.
        let uneven =
            |config: DecoderConfig| config.with_d_model(30).with_heads(4).with_kv_heads(None).with_head_dim(Some(8));
        for (config, class) in [(llama(), "Llama"), (gemma2(), "Gemma2")] {
            let said = refused(uneven(config));
            assert!(said.contains(&format!("`d_model` should be a multiple of its 4 heads in a {class}")), "{said}");
        }
        assert!(Architecture::of(&uneven(llama().with_qk_norm(true))).is_ok());
    }
}
