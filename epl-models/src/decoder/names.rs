//! Where the parameters of a decoder stand in a folder of Hugging Face.

use super::architecture::Architecture;
use super::config::DecoderConfig;
use super::{gpt2, llama, mixtral};
use crate::huggingface::{Folder, NameTable, Names, Result};

/// The head, which a folder of a tied one may have as a copy.
const HEAD: &str = "lm_head.weight";

/// Buffers that older versions of `transformers` have stored, and that are no weights.
const BUFFERS: [&str; 3] = [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"];

/// The names of the classes of [`Architecture`].
#[derive(Clone, Debug)]
pub struct DecoderNames {
    /// Whether the head is not a copy of the table of the tokens.
    own_head: bool,
    table: NameTable,
}

impl DecoderNames {
    /// The names that a folder uses, for a model of this shape.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::huggingface::Error::Unsupported) for another architecture,
    /// [`Error::Config`](crate::huggingface::Error::Config) when `config.json` says none.
    pub fn new(folder: &Folder, config: &DecoderConfig) -> Result<Self> {
        // Published GPT-2s were saved without their heads.
        let prefix = if folder.shape("wte.weight").is_some() { "" } else { "transformer." };
        Ok(Self::with(architecture(folder)?, prefix, config))
    }

    /// The names that `transformers` writes.
    pub fn written(architecture: Architecture, config: &DecoderConfig) -> Self {
        Self::with(architecture, "transformer.", config)
    }

    fn with(architecture: Architecture, prefix: &str, config: &DecoderConfig) -> Self {
        let table = match (architecture, &config.experts) {
            (Architecture::Gpt2, _) => gpt2::names(prefix),
            (_, Some(experts)) => mixtral::names(llama::names(architecture), architecture, experts.experts),
            (_, None) => llama::names(architecture),
        };
        Self { own_head: !config.tied_head, table }
    }
}

/// The architecture of a folder.
pub(super) fn architecture(folder: &Folder) -> Result<Architecture> {
    let model_type = folder.model_type()?;
    Architecture::named(model_type).ok_or_else(|| folder.unsupported(model_type, Architecture::SUPPORTED))
}

impl Names for DecoderNames {
    fn table(&self) -> &NameTable {
        &self.table
    }

    /// A copy of the table of the tokens is no parameter.
    fn paths(&self, stored: &str) -> Vec<String> {
        if stored == HEAD && !self.own_head { Vec::new() } else { self.table.paths(stored) }
    }

    fn may_be_left(&self, stored: &str) -> bool {
        (stored == HEAD && !self.own_head) || BUFFERS.iter().any(|buffer| stored.ends_with(buffer))
    }
}

/// The parameter beside which to measure the gradient at `path`, if that is zero up to rounding: a bias of keys shifts all
/// scores of a query alike, unless the keys are turned or normalised after it, or scores have a limit.
pub fn measured_beside(config: &DecoderConfig, path: &str) -> Option<String> {
    let is_plain = config.rotary.is_none() && !config.qk_norm && config.attention_softcap.is_none();
    let shifts = is_plain && path.ends_with(".key.bias");
    shifts.then(|| path.replace(".key.bias", ".query.bias"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huggingface::Source;

    #[test]
    fn paths_become_stored_names() {
        let same = |name: &str| Some(Source::Same(name.into()));
        let turned = |name: &str| Some(Source::Transposed(name.into()));
        let names = |config: DecoderConfig| DecoderNames::written(Architecture::of(&config).unwrap(), &config);
        let (gpt2, llama) = (names(DecoderConfig::new(9)), names(DecoderConfig::llama_like(9)));
        assert_eq!(gpt2.source("embeddings.positions"), same("transformer.wpe.weight"));
        assert_eq!(gpt2.source("layers.3.feed_forward.norm.beta"), same("transformer.h.3.ln_2.bias"));
        assert_eq!(gpt2.source("layers.1.feed_forward.dense.input.weight"), same("transformer.h.1.mlp.c_fc.weight"));
        let key = Source::Part { name: "transformer.h.0.attn.c_attn.bias".into(), part: 1, of: 3 };
        assert_eq!(gpt2.source("layers.0.self_attention.heads.key.bias"), Some(key));
        assert_eq!(gpt2.paths("transformer.h.0.attn.c_attn.weight").len(), 3);
        assert_eq!(
            llama.source("layers.2.feed_forward.dense.gate.weight"),
            turned("model.layers.2.mlp.up_proj.weight")
        );
        assert_eq!(
            llama.source("layers.2.self_attention.heads.key_norm.gamma"),
            same("model.layers.2.self_attn.k_norm.weight")
        );
        let gemma2 = names(DecoderConfig::preset("gemma2-2b").unwrap());
        let post = "model.layers.2.post_attention_layernorm.weight";
        assert_eq!(llama.paths(post), ["layers.2.feed_forward.norm.gamma"]);
        assert_eq!(gemma2.paths(post), ["layers.2.self_attention.output_norm.gamma"]);
        assert_eq!(llama.source("head.weight"), turned("lm_head.weight"));
        assert!(gpt2.may_be_left("lm_head.weight") && gpt2.paths("lm_head.weight").is_empty());
        assert!(!llama.may_be_left("lm_head.weight"));
        assert!(gpt2.may_be_left("transformer.h.0.attn.bias") && !gpt2.may_be_left("transformer.h.0.attn.c_attn.bias"));
    }
}
