//! Where the parameters of a ViT stand in a folder of Hugging Face.

use std::sync::LazyLock;

use crate::huggingface::{NameTable, Names};

/// The names of `ViTForImageClassification`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ViTNames;

static TABLE: LazyLock<NameTable> = LazyLock::new(|| {
    let at = |part: &str| format!("vit.encoder.layer.*.{part}");
    let table = NameTable::new()
        .same("embeddings.class_token", "vit.embeddings.cls_token")
        .same("embeddings.positions", "vit.embeddings.position_embeddings")
        .same("embeddings.projection.weight", "vit.embeddings.patch_embeddings.projection.weight")
        .same("embeddings.projection.bias", "vit.embeddings.patch_embeddings.projection.bias")
        .linear("layers.*.self_attention.heads.query", &at("attention.attention.query"))
        .linear("layers.*.self_attention.heads.key", &at("attention.attention.key"))
        .linear("layers.*.self_attention.heads.value", &at("attention.attention.value"))
        .linear("layers.*.self_attention.heads.output", &at("attention.output.dense"))
        .linear("layers.*.feed_forward.dense.input", &at("intermediate.dense"))
        .linear("layers.*.feed_forward.dense.output", &at("output.dense"))
        .linear("class_layer", "classifier");
    let norms = [
        ("layers.*.self_attention.norm", at("layernorm_before")),
        ("layers.*.feed_forward.norm", at("layernorm_after")),
        ("norm", "vit.layernorm".to_string()),
    ];
    norms.into_iter().fold(table, |table, (ours, stored)| {
        table
            .same(&format!("{ours}.gamma"), &format!("{stored}.weight"))
            .same(&format!("{ours}.beta"), &format!("{stored}.bias"))
    })
});

impl Names for ViTNames {
    fn table(&self) -> &NameTable {
        &TABLE
    }

    fn may_be_left(&self, stored: &str) -> bool {
        // Of models that were trained for something else, too.
        stored.starts_with("vit.pooler.")
    }
}

/// The parameter beside which to measure the gradient at `path`, if that is zero up to rounding: a bias of the keys shifts all scores
/// of a query alike.
pub fn measured_beside(path: &str) -> Option<String> {
    path.ends_with(".key.bias").then(|| path.replace(".key.bias", ".query.bias"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huggingface::Source;

    #[test]
    fn paths_become_stored_names() {
        let same = |name: &str| Some(Source::Same(name.into()));
        let turned = |name: &str| Some(Source::Transposed(name.into()));
        assert_eq!(ViTNames.source("embeddings.class_token"), same("vit.embeddings.cls_token"));
        assert_eq!(ViTNames.source("norm.beta"), same("vit.layernorm.bias"));
        assert_eq!(
            ViTNames.source("layers.3.self_attention.heads.key.weight"),
            turned("vit.encoder.layer.3.attention.attention.key.weight")
        );
        assert_eq!(ViTNames.source("class_layer.weight"), turned("classifier.weight"));
        assert_eq!(ViTNames.source("layers.3.feed_forward.dense.gate.weight"), None);
    }
}
