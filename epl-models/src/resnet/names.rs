//! Where the parameters of a ResNet stand in a folder of Hugging Face.

use std::sync::LazyLock;

use crate::huggingface::{NameTable, Names};

/// The names of `ResNetForImageClassification`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResNetNames;

static TABLE: LazyLock<NameTable> = LazyLock::new(|| {
    let table = NameTable::new().linear("class_layer", "classifier.1");
    let table = conv_norm(table, "backbone.stem", "resnet.embedder.embedder");
    let (ours, stored) = ("backbone.stages.*.layers.*", "resnet.encoder.stages.*.layers.*");
    let table = conv_norm(table, &format!("{ours}.shortcut"), &format!("{stored}.shortcut"));
    conv_norm(table, &format!("{ours}.parts.*"), &format!("{stored}.layer.*"))
});

/// A convolution with its norm.
fn conv_norm(table: NameTable, ours: &str, stored: &str) -> NameTable {
    let fields = [
        ("convolution.weight", "convolution.weight"),
        ("norm.gamma", "normalization.weight"),
        ("norm.beta", "normalization.bias"),
        ("norm.running_mean", "normalization.running_mean"),
        ("norm.running_var", "normalization.running_var"),
    ];
    let with = |table: NameTable, (own, theirs)| table.same(&format!("{ours}.{own}"), &format!("{stored}.{theirs}"));
    fields.into_iter().fold(table, with)
}

impl Names for ResNetNames {
    fn table(&self) -> &NameTable {
        &TABLE
    }

    fn may_be_left(&self, stored: &str) -> bool {
        // Counts batches, for an average that no model here takes.
        stored.ends_with(".num_batches_tracked")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huggingface::Source;

    #[test]
    fn paths_become_stored_names() {
        let same = |path: &str| match ResNetNames.source(path) {
            Some(Source::Same(name)) => name,
            other => panic!("{path}: {other:?}"),
        };
        assert_eq!(same("backbone.stem.norm.running_var"), "resnet.embedder.embedder.normalization.running_var");
        assert_eq!(
            same("backbone.stages.2.layers.0.shortcut.convolution.weight"),
            "resnet.encoder.stages.2.layers.0.shortcut.convolution.weight"
        );
        assert_eq!(
            same("backbone.stages.1.layers.3.parts.2.norm.gamma"),
            "resnet.encoder.stages.1.layers.3.layer.2.normalization.weight"
        );
        assert_eq!(ResNetNames.source("class_layer.weight"), Some(Source::Transposed("classifier.1.weight".into())));
        assert_eq!(ResNetNames.source("backbone.stem.convolution.bias"), None);
    }
}
