//! Where the parameters of a ViT stand in a folder of Hugging Face.

use crate::huggingface::{Folder, NameTable, Names};

/// The class token, which every ViT has.
const CLASS_TOKEN: &str = "embeddings.cls_token";

/// The class layer, ours and theirs.
const CLASS_LAYER: (&str, &str) = ("class_layer", "classifier");

/// The names of `ViTForImageClassification`, and of the `ViTModel` or `ViTMAEForPreTraining` that it starts from: a class layer that
/// the folder lacks keeps its first values.
#[derive(Clone, Debug)]
pub struct ViTNames {
    /// `vit.`, or nothing where the encoder was saved alone.
    prefix: &'static str,
    /// Whether the folder has a class layer.
    has_classes: bool,
    table: NameTable,
}

impl ViTNames {
    /// The names that a folder uses.
    pub fn new(folder: &Folder) -> Self {
        let prefix = if folder.shape(CLASS_TOKEN).is_some() { "" } else { "vit." };
        let has_classes = folder.names().any(|name| name.starts_with(&format!("{}.", CLASS_LAYER.1)));
        Self { prefix, has_classes, table: table(prefix) }
    }

    /// The names that `transformers` writes.
    pub fn written() -> Self {
        Self { prefix: "vit.", has_classes: true, table: table("vit.") }
    }
}

fn table(prefix: &str) -> NameTable {
    let projection = format!("{prefix}embeddings.patch_embeddings.projection");
    let table = encoder_names(NameTable::new(), ["layers", &format!("{prefix}encoder.layer")])
        .same("embeddings.class_token", &format!("{prefix}{CLASS_TOKEN}"))
        .same("embeddings.positions", &format!("{prefix}embeddings.position_embeddings"))
        .same("embeddings.projection.weight", &format!("{projection}.weight"))
        .same("embeddings.projection.bias", &format!("{projection}.bias"))
        .linear(CLASS_LAYER.0, CLASS_LAYER.1);
    normed(table, "norm", &format!("{prefix}layernorm"))
}

/// The layers of an encoder, ours and theirs.
pub(crate) fn encoder_names(table: NameTable, [ours, stored]: [&str; 2]) -> NameTable {
    let linear = [
        ("self_attention.heads.query", "attention.attention.query"),
        ("self_attention.heads.key", "attention.attention.key"),
        ("self_attention.heads.value", "attention.attention.value"),
        ("self_attention.heads.output", "attention.output.dense"),
        ("feed_forward.dense.input", "intermediate.dense"),
        ("feed_forward.dense.output", "output.dense"),
    ];
    let table = linear
        .into_iter()
        .fold(table, |table, (own, part)| table.linear(&format!("{ours}.*.{own}"), &format!("{stored}.*.{part}")));
    let table = normed(table, &format!("{ours}.*.self_attention.norm"), &format!("{stored}.*.layernorm_before"));
    normed(table, &format!("{ours}.*.feed_forward.norm"), &format!("{stored}.*.layernorm_after"))
}

fn normed(table: NameTable, ours: &str, stored: &str) -> NameTable {
    table
        .same(&format!("{ours}.gamma"), &format!("{stored}.weight"))
        .same(&format!("{ours}.beta"), &format!("{stored}.bias"))
}

impl Names for ViTNames {
    fn table(&self) -> &NameTable {
        &self.table
    }

    fn may_be_left(&self, stored: &str) -> bool {
        // Of models that were trained for something else, too: a `ViTModel`, and what an MAE has behind its encoder.
        let inside = stored.strip_prefix(self.prefix);
        inside.is_some_and(|inside| inside.starts_with("pooler.")) || stored.starts_with("decoder.")
    }

    fn keeps(&self, path: &str) -> bool {
        !self.has_classes && path.strip_prefix(CLASS_LAYER.0).is_some_and(|rest| rest.starts_with('.'))
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
        let names = ViTNames::written();
        assert_eq!(names.source("embeddings.class_token"), same("vit.embeddings.cls_token"));
        assert_eq!(names.source("norm.beta"), same("vit.layernorm.bias"));
        assert_eq!(
            names.source("layers.3.self_attention.heads.key.weight"),
            turned("vit.encoder.layer.3.attention.attention.key.weight")
        );
        assert_eq!(names.source("class_layer.weight"), turned("classifier.weight"));
        assert_eq!(names.source("layers.3.feed_forward.dense.gate.weight"), None);
        assert!(names.may_be_left("vit.pooler.dense.bias") && !names.keeps("class_layer.bias"));
    }
}
