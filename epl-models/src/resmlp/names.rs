//! Where the parameters of a ResMLP stand in a folder of timm.

use crate::huggingface::{Folder, NameTable, Names};

/// The class layer, ours and theirs.
const CLASS_LAYER: (&str, &str) = ("class_layer", "head");

/// The names of timm's `resmlp_*`: a class layer that the folder lacks keeps its first values.
#[derive(Clone, Debug)]
pub struct ResMlpNames {
    /// Whether the folder has a class layer.
    has_classes: bool,
    table: NameTable,
}

impl ResMlpNames {
    /// The names that a folder uses.
    pub fn new(folder: &Folder) -> Self {
        let has_classes = folder.names().any(|name| name.starts_with(&format!("{}.", CLASS_LAYER.1)));
        Self { has_classes, table: table() }
    }

    /// The names that timm writes.
    pub fn written() -> Self {
        Self { has_classes: true, table: table() }
    }
}

fn table() -> NameTable {
    let (ours, stored) = ("layers.*", "blocks.*");
    let of = |at: &str, field: &str| format!("{at}.{field}");
    let mut table = NameTable::new().linear(CLASS_LAYER.0, CLASS_LAYER.1);
    for (own, theirs) in
        [("patches", "linear_tokens"), ("channels.input", "mlp_channels.fc1"), ("channels.output", "mlp_channels.fc2")]
    {
        table = table.linear(&of(ours, own), &of(stored, theirs));
    }
    let norms = [
        (of(ours, "patch_norm"), of(stored, "norm1")),
        (of(ours, "channel_norm"), of(stored, "norm2")),
        ("norm".to_string(), "norm".to_string()),
    ];
    for (own, theirs) in norms {
        for field in ["alpha", "beta"] {
            table = table.same(&of(&own, field), &of(&theirs, field));
        }
    }
    for (own, theirs) in [("patch_scale", "ls1"), ("channel_scale", "ls2")] {
        table = table.same(&of(ours, own), &of(stored, theirs));
    }
    table.same("stem.weight", "stem.proj.weight").same("stem.bias", "stem.proj.bias")
}

impl Names for ResMlpNames {
    fn table(&self) -> &NameTable {
        &self.table
    }

    fn may_be_left(&self, _stored: &str) -> bool {
        false
    }

    fn keeps(&self, path: &str) -> bool {
        !self.has_classes && path.strip_prefix(CLASS_LAYER.0).is_some_and(|rest| rest.starts_with('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huggingface::Source;

    #[test]
    fn paths_become_stored_names() {
        let same = |name: &str| Some(Source::Same(name.into()));
        let turned = |name: &str| Some(Source::Transposed(name.into()));
        let names = ResMlpNames::written();
        assert_eq!(names.source("stem.bias"), same("stem.proj.bias"));
        assert_eq!(names.source("layers.3.patch_norm.alpha"), same("blocks.3.norm1.alpha"));
        assert_eq!(names.source("layers.10.channel_scale"), same("blocks.10.ls2"));
        assert_eq!(names.source("layers.3.patches.weight"), turned("blocks.3.linear_tokens.weight"));
        assert_eq!(names.source("layers.3.channels.output.weight"), turned("blocks.3.mlp_channels.fc2.weight"));
        assert_eq!(names.source("class_layer.weight"), turned("head.weight"));
        assert_eq!(names.source("layers.3.channels.gate.weight"), None);
        assert_eq!(names.paths("norm.beta"), ["norm.beta"]);
        assert!(!names.keeps("class_layer.bias"));
    }
}
