//! Where the parameters of a Swin transformer stand in a folder of Hugging Face.

use super::config::SwinVersion;
use crate::huggingface::{Folder, NameTable, Names};

/// What every Swin has.
const FIRST_NORM: &str = "embeddings.norm.weight";

/// The class layer, ours and theirs.
const CLASS_LAYER: (&str, &str) = ("class_layer", "classifier");

/// What is computed from the shape, and was saved by earlier versions.
const COMPUTED: [&str; 3] = [".relative_position_index", ".relative_coords_table", ".attn_mask"];

/// The names of `SwinForImageClassification` and `Swinv2ForImageClassification`, and of the model alone: a class layer that the folder
/// lacks keeps its first values.
#[derive(Clone, Debug)]
pub struct SwinNames {
    /// Whether the folder has a class layer.
    has_classes: bool,
    table: NameTable,
}

impl SwinNames {
    /// The names that a folder uses.
    pub fn new(version: SwinVersion, folder: &Folder) -> Self {
        let prefix = if folder.shape(FIRST_NORM).is_some() { "" } else { prefix(version) };
        let has_classes = folder.names().any(|name| name.starts_with(&format!("{}.", CLASS_LAYER.1)));
        Self { has_classes, table: table(prefix) }
    }

    /// The names that `transformers` writes.
    pub fn written(version: SwinVersion) -> Self {
        Self { has_classes: true, table: table(prefix(version)) }
    }
}

fn prefix(version: SwinVersion) -> &'static str {
    match version {
        SwinVersion::V1 => "swin.",
        SwinVersion::V2 => "swinv2.",
    }
}

fn table(prefix: &str) -> NameTable {
    let (ours, stored) = ("stages.*.blocks.*", format!("{prefix}encoder.layers.*.blocks.*"));
    let linear = [
        ("layer.self_attention.heads.query", "attention.self.query"),
        ("layer.self_attention.heads.key", "attention.self.key"),
        ("layer.self_attention.heads.value", "attention.self.value"),
        ("layer.self_attention.heads.output", "attention.output.dense"),
        ("layer.feed_forward.dense.input", "intermediate.dense"),
        ("layer.feed_forward.dense.output", "output.dense"),
        ("bias.network.input", "attention.self.continuous_position_bias_mlp.0"),
    ];
    let mut table = NameTable::new().linear(CLASS_LAYER.0, CLASS_LAYER.1);
    for (own, part) in linear {
        table = table.linear(&format!("{ours}.{own}"), &format!("{stored}.{part}"));
    }
    let norms = [
        ("embeddings.norm".to_string(), format!("{prefix}embeddings.norm")),
        (format!("{ours}.layer.self_attention.norm"), format!("{stored}.layernorm_before")),
        (format!("{ours}.layer.feed_forward.norm"), format!("{stored}.layernorm_after")),
        ("stages.*.merging.norm".to_string(), format!("{prefix}encoder.layers.*.downsample.norm")),
        ("norm".to_string(), format!("{prefix}layernorm")),
    ];
    for (own, part) in norms {
        table = table.same(&format!("{own}.gamma"), &format!("{part}.weight"));
        table = table.same(&format!("{own}.beta"), &format!("{part}.bias"));
    }
    let projection = format!("{prefix}embeddings.patch_embeddings.projection");
    let attention = format!("{stored}.attention.self");
    table
        .same("embeddings.projection.weight", &format!("{projection}.weight"))
        .same("embeddings.projection.bias", &format!("{projection}.bias"))
        .same("embeddings.positions", &format!("{prefix}embeddings.position_embeddings"))
        .same(&format!("{ours}.bias.table"), &format!("{attention}.relative_position_bias_table"))
        .transposed(
            &format!("{ours}.bias.network.output.weight"),
            &format!("{attention}.continuous_position_bias_mlp.2.weight"),
        )
        .same(&format!("{ours}.layer.self_attention.heads.logit_scale"), &format!("{attention}.logit_scale"))
        .transposed(
            "stages.*.merging.reduction.weight",
            &format!("{prefix}encoder.layers.*.downsample.reduction.weight"),
        )
}

impl Names for SwinNames {
    fn table(&self) -> &NameTable {
        &self.table
    }

    fn may_be_left(&self, stored: &str) -> bool {
        // What stands for hidden patches in pretraining, and the head that fills them in.
        let of_pretraining = stored.ends_with("embeddings.mask_token") || stored.starts_with("decoder.");
        of_pretraining || COMPUTED.iter().any(|computed| stored.ends_with(computed))
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
        let names = SwinNames::written(SwinVersion::V1);
        assert_eq!(names.source("norm.beta"), same("swin.layernorm.bias"));
        assert_eq!(
            names.source("stages.2.blocks.5.bias.table"),
            same("swin.encoder.layers.2.blocks.5.attention.self.relative_position_bias_table")
        );
        let names = SwinNames::written(SwinVersion::V2);
        assert_eq!(
            names.source("stages.2.blocks.5.bias.network.output.weight"),
            turned("swinv2.encoder.layers.2.blocks.5.attention.self.continuous_position_bias_mlp.2.weight")
        );
        assert_eq!(names.source("class_layer.weight"), turned("classifier.weight"));
        let computed = "swinv2.encoder.layers.0.blocks.1.attention.self.relative_position_index";
        assert!(names.may_be_left(computed) && !names.may_be_left("swinv2.layernorm.bias"));
        assert!(!names.keeps("class_layer.bias"));
    }
}
