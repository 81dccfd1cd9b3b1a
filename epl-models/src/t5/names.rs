//! Where the parameters of a T5 stand in a folder of Hugging Face.

use super::config::{T5Config, T5FeedForward};
use super::tying::{self, EMBEDDINGS, HEAD};
use crate::huggingface::{Folder, NameTable, Names, Result};

/// The first T5 checkpoints hold it; no model reads it.
const UNUSED: &str = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";

/// The names of T5, T5 1.1 and Switch Transformers.
#[derive(Clone, Debug)]
pub struct T5Names {
    /// Whether there is a head that is not a copy of the embedding.
    own_head: bool,
    table: NameTable,
}

/// What the names depend on.
struct Variant {
    embedding: &'static str,
    /// What the feed-forward part is called: `DenseReluDense`, or `mlp` in Switch.
    network: &'static str,
    /// Whether the feed-forward part is gated.
    gated: bool,
    /// How many experts a layer has.
    experts: usize,
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
        let gated = folder.names().any(|name| name.ends_with(".wi_0.weight"));
        let own_head = tying::has_own_head(folder, embedding)?;
        Ok(Self { own_head, table: Variant { embedding, network, gated, experts }.table() })
    }

    /// The names that `transformers` writes for a model of this shape.
    pub fn written(config: &T5Config) -> Self {
        let (network, experts) = match config.moe.as_ref().filter(|_| config.has_experts()) {
            Some(moe) => ("mlp", moe.experts),
            None => ("DenseReluDense", 0),
        };
        let gated = config.feed_forward == T5FeedForward::GatedGelu;
        let variant = Variant { embedding: EMBEDDINGS[0], network, gated, experts };
        Self { own_head: !config.tied_head, table: variant.table() }
    }

    /// Whether there is a head that is not a copy of the embedding.
    pub fn has_own_head(&self) -> bool {
        self.own_head
    }
}

impl Variant {
    fn table(&self) -> NameTable {
        let table = NameTable::new().same("embedding.weight", self.embedding).transposed("head.weight", HEAD);
        ["encoder", "decoder"].into_iter().fold(table, |table, stack| self.stack(table, stack))
    }

    fn stack(&self, table: NameTable, stack: &str) -> NameTable {
        let bias = format!("{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight");
        let table = table
            .same(&format!("{stack}.bias.weight"), &bias)
            .same(&format!("{stack}.final_norm.gamma"), &format!("{stack}.final_layer_norm.weight"));
        let (block, layer) = (format!("{stack}.blocks.*"), format!("{stack}.block.*.layer"));
        let table = attention(table, &format!("{block}.self_attention"), &format!("{layer}.0"), "SelfAttention");
        let (table, last) = match stack {
            "encoder" => (table, 1),
            _ => (attention(table, &format!("{block}.cross_attention"), &format!("{layer}.1"), "EncDecAttention"), 2),
        };
        self.network(table, &format!("{block}.feed_forward"), &format!("{layer}.{last}"))
    }

    /// A feed-forward network, dense or of experts.
    fn network(&self, table: NameTable, ours: &str, layer: &str) -> NameTable {
        let at = format!("{layer}.{}", self.network);
        // What is activated has no number unless something multiplies it.
        let input = if self.gated { "wi_0" } else { "wi" };
        let table = table
            .same(&format!("{ours}.norm.gamma"), &format!("{layer}.layer_norm.weight"))
            .transposed(&format!("{ours}.moe.router.weight"), &format!("{at}.router.classifier.weight"));
        let parts = [("input", input), ("gate", "wi_1"), ("output", "wo")];
        parts.into_iter().fold(table, |table, (own, theirs)| {
            let expert = format!("{at}.experts.expert_#.{theirs}.weight");
            table.transposed(&format!("{ours}.dense.{own}.weight"), &format!("{at}.{theirs}.weight")).stacked(
                &format!("{ours}.moe.experts.{own}"),
                &expert,
                self.experts,
            )
        })
    }
}

/// An attention part: its norm and its four weights.
fn attention(table: NameTable, ours: &str, layer: &str, name: &str) -> NameTable {
    let table = table.same(&format!("{ours}.norm.gamma"), &format!("{layer}.layer_norm.weight"));
    let weights = [("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")];
    weights.into_iter().fold(table, |table, (own, theirs)| {
        table.transposed(&format!("{ours}.heads.{own}.weight"), &format!("{layer}.{name}.{theirs}.weight"))
    })
}

impl Names for T5Names {
    fn table(&self) -> &NameTable {
        &self.table
    }

    /// A copy of the embedding is no parameter.
    fn paths(&self, stored: &str) -> Vec<String> {
        if stored == HEAD && !self.own_head { Vec::new() } else { self.table.paths(stored) }
    }

    fn may_be_left(&self, stored: &str) -> bool {
        EMBEDDINGS.contains(&stored) || stored == UNUSED || (stored == HEAD && !self.own_head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huggingface::Source;

    fn names(network: &'static str, gated: bool, experts: usize) -> T5Names {
        T5Names { own_head: false, table: Variant { embedding: "shared.weight", network, gated, experts }.table() }
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
    fn a_stored_tensor_is_one_parameter() {
        let first = names("DenseReluDense", false, 0);
        for (stored, path) in [
            ("encoder.block.1.layer.1.layer_norm.weight", Some("encoder.blocks.1.feed_forward.norm.gamma")),
            ("decoder.block.1.layer.1.layer_norm.weight", Some("decoder.blocks.1.cross_attention.norm.gamma")),
            ("encoder.block.0.layer.1.EncDecAttention.q.weight", None),
            // A copy of the embedding.
            ("lm_head.weight", None),
        ] {
            assert_eq!(first.paths(stored), Vec::from_iter(path), "{stored}");
        }
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
