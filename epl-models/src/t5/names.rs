//! Where the parameters of a T5 stand in a folder of Hugging Face.

use super::tying::{self, EMBEDDINGS, HEAD};
use crate::huggingface::{Folder, Names, Result, Source};

/// The first T5 checkpoints hold it; no model reads it.
const UNUSED: &str = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";

/// The names of T5, T5 1.1 and Switch Transformers.
#[derive(Clone, Debug)]
pub struct T5Names {
    embedding: &'static str,
    /// What the feed-forward part is called: `DenseReluDense`, or `mlp` in Switch.
    network: &'static str,
    /// Whether the feed-forward part is gated.
    gated: bool,
    /// How many experts a layer has.
    experts: usize,
    /// Whether there is a head that is not a copy of the embedding.
    own_head: bool,
}

impl T5Names {
    /// The names that a folder uses.
    ///
    /// # Errors
    ///
    /// When its `config.json` says no architecture or no number of experts, contradicts the weights about the head,
    /// or the embedding is stored by several names with different values.
    pub fn new(folder: &Folder) -> Result<Self> {
        let embedding = tying::embedding(folder)?;
        let (network, experts) = match folder.model_type()? {
            "switch_transformers" => ("mlp", folder.config().count("num_experts")?),
            _ => ("DenseReluDense", 0),
        };
        Ok(Self {
            embedding,
            network,
            gated: folder.names().any(|name| name.ends_with(".wi_0.weight")),
            experts,
            own_head: tying::has_own_head(folder, embedding)?,
        })
    }

    /// Whether there is a head that is not a copy of the embedding.
    pub fn has_own_head(&self) -> bool {
        self.own_head
    }

    /// A parameter of block `index` of a stack.
    fn block(&self, stack: &str, index: &str, part: &str, rest: &str) -> Option<Source> {
        let feed_forward = if stack == "encoder" { 1 } else { 2 };
        let (layer, attention) = match part {
            "self_attention" => (0, "SelfAttention"),
            "cross_attention" => (1, "EncDecAttention"),
            "feed_forward" => (feed_forward, self.network),
            _ => return None,
        };
        let layer = format!("{stack}.block.{index}.layer.{layer}");
        match rest.split_once('.')? {
            ("norm", "gamma") => Some(Source::Same(format!("{layer}.layer_norm.weight"))),
            ("heads", weight) => {
                let name = match weight {
                    "query.weight" => "q",
                    "key.weight" => "k",
                    "value.weight" => "v",
                    "output.weight" => "o",
                    _ => return None,
                };
                Some(Source::Transposed(format!("{layer}.{attention}.{name}.weight")))
            }
            _ => self.network(&format!("{layer}.{}", self.network), rest),
        }
    }

    /// A parameter of a feed-forward network or of its experts.
    fn network(&self, at: &str, rest: &str) -> Option<Source> {
        let linear = |name: &str| Source::Transposed(format!("{at}.{name}.weight"));
        let experts = |name: &str| {
            let expert = |index| linear(&format!("experts.expert_{index}.{name}"));
            Source::Stacked((0..self.experts).map(expert).collect())
        };
        // What is activated has no number unless something multiplies it.
        let input = if self.gated { "wi_0" } else { "wi" };
        Some(match rest {
            "dense.input.weight" => linear(input),
            "dense.gate.weight" => linear("wi_1"),
            "dense.output.weight" => linear("wo"),
            "moe.router.weight" => linear("router.classifier"),
            "moe.experts.input" => experts(input),
            "moe.experts.gate" => experts("wi_1"),
            "moe.experts.output" => experts("wo"),
            _ => return None,
        })
    }
}

impl Names for T5Names {
    fn source(&self, path: &str) -> Option<Source> {
        let (part, rest) = path.split_once('.')?;
        match (part, rest) {
            ("embedding", "weight") => Some(Source::Same(self.embedding.into())),
            ("head", "weight") => Some(Source::Transposed(HEAD.into())),
            ("encoder" | "decoder", "bias.weight") => {
                let layer = format!("{part}.block.0.layer.0.SelfAttention");
                Some(Source::Same(format!("{layer}.relative_attention_bias.weight")))
            }
            ("encoder" | "decoder", "final_norm.gamma") => {
                Some(Source::Same(format!("{part}.final_layer_norm.weight")))
            }
            ("encoder" | "decoder", _) => {
                let (index, rest) = rest.strip_prefix("blocks.")?.split_once('.')?;
                let (inside, rest) = rest.split_once('.')?;
                self.block(part, index, inside, rest)
            }
            _ => None,
        }
    }

    fn may_be_left(&self, stored: &str) -> bool {
        EMBEDDINGS.contains(&stored) || stored == UNUSED || (stored == HEAD && !self.own_head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(network: &'static str, gated: bool, experts: usize) -> T5Names {
        T5Names { embedding: "shared.weight", network, gated, experts, own_head: false }
    }

    #[test]
    fn paths_become_stored_names() {
        let same = |name: &str| Some(Source::Same(name.into()));
        let turned = |name: &str| Some(Source::Transposed(name.into()));
        let first = names("DenseReluDense", false, 0);
        assert_eq!(first.source("embedding.weight"), same("shared.weight"));
        assert_eq!(first.source("encoder.final_norm.gamma"), same("encoder.final_layer_norm.weight"));
        assert_eq!(
            first.source("decoder.bias.weight"),
            same("decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight")
        );
        assert_eq!(
            first.source("encoder.blocks.3.self_attention.norm.gamma"),
            same("encoder.block.3.layer.0.layer_norm.weight")
        );
        assert_eq!(
            first.source("decoder.blocks.1.cross_attention.heads.output.weight"),
            turned("decoder.block.1.layer.1.EncDecAttention.o.weight")
        );
        assert_eq!(
            first.source("encoder.blocks.0.feed_forward.dense.input.weight"),
            turned("encoder.block.0.layer.1.DenseReluDense.wi.weight")
        );
        assert_eq!(first.source("encoder.blocks.0.feed_forward.dense.input.bias"), None);
        let gated = names("DenseReluDense", true, 0);
        assert_eq!(
            gated.source("decoder.blocks.2.feed_forward.dense.input.weight"),
            turned("decoder.block.2.layer.2.DenseReluDense.wi_0.weight")
        );
    }

    #[test]
    fn experts_are_stacked() {
        let switch = names("mlp", false, 2);
        let wi = |expert| format!("encoder.block.1.layer.1.mlp.experts.expert_{expert}.wi.weight");
        let stacked = Source::Stacked(vec![Source::Transposed(wi(0)), Source::Transposed(wi(1))]);
        assert_eq!(switch.source("encoder.blocks.1.feed_forward.moe.experts.input"), Some(stacked));
        assert_eq!(
            switch.source("decoder.blocks.1.feed_forward.moe.router.weight"),
            Some(Source::Transposed("decoder.block.1.layer.2.mlp.router.classifier.weight".into()))
        );
    }
}
