//! Where the parameters of a BERT stand in a folder of Hugging Face.

use super::config::BertConfig;
use super::head::BertHead;
use crate::huggingface::{Folder, NameTable, Names};

/// The vectors of the tokens, which every BERT has.
const WORDS: &str = "embeddings.word_embeddings.weight";

/// The names of `BertForQuestionAnswering`, `BertForMaskedLM`, `BertForSequenceClassification`, and of the checkpoints
/// that these start from: a head that the folder lacks keeps its first values.
#[derive(Clone, Debug)]
pub struct BertNames {
    /// `bert.`, or nothing where the encoder was saved alone.
    prefix: &'static str,
    /// The parts of heads that the folder has not.
    lacking: Vec<&'static str>,
    /// Scale and shift of the norms are called `weight` and `bias`, or `gamma` and `beta` in the first checkpoints.
    table: NameTable,
}

/// The parts of heads by the begin of their paths, and of what they are called.
const HEADS: [(&str, &str); 6] = [
    ("head.answers.", "qa_outputs."),
    ("head.transform.", "cls.predictions."),
    ("head.norm.", "cls.predictions."),
    ("head.bias", "cls.predictions."),
    ("head.pooler.", "pooler."),
    ("head.classifier.", "classifier."),
];

impl BertNames {
    /// The names that a folder uses.
    pub fn new(folder: &Folder) -> Self {
        let prefix = if folder.shape(WORDS).is_some() { "" } else { "bert." };
        let first = folder.shape(&format!("{prefix}embeddings.LayerNorm.gamma")).is_some();
        let has = |part: &str| {
            let part = if part == "pooler." { format!("{prefix}{part}") } else { part.to_string() };
            folder.names().any(|name| name.starts_with(&part))
        };
        let norm = if first { ["gamma", "beta"] } else { ["weight", "bias"] };
        let lacking = HEADS.iter().filter(|(_, part)| !has(part)).map(|(path, _)| *path).collect();
        Self::with(prefix, norm, lacking)
    }

    /// The names that `transformers` writes.
    pub fn written() -> Self {
        Self::with("bert.", ["weight", "bias"], Vec::new())
    }

    fn with(prefix: &'static str, norm: [&'static str; 2], lacking: Vec<&'static str>) -> Self {
        let table = NameTable::new();
        let table = heads(layers(embeddings(table, prefix, norm), prefix, norm), prefix, norm);
        Self { prefix, lacking, table }
    }
}

fn embeddings(table: NameTable, prefix: &str, norm: [&str; 2]) -> NameTable {
    let at = format!("{prefix}embeddings");
    let table = table
        .same("embeddings.words.weight", &format!("{prefix}{WORDS}"))
        .same("embeddings.positions.weight", &format!("{at}.position_embeddings.weight"))
        .same("embeddings.token_types.weight", &format!("{at}.token_type_embeddings.weight"));
    normed(table, "embeddings.norm", &at, norm)
}

fn layers(table: NameTable, prefix: &str, norm: [&str; 2]) -> NameTable {
    let at = |part: &str| format!("{prefix}encoder.layer.*.{part}");
    let table = table
        .linear("layers.*.self_attention.heads.query", &at("attention.self.query"))
        .linear("layers.*.self_attention.heads.key", &at("attention.self.key"))
        .linear("layers.*.self_attention.heads.value", &at("attention.self.value"))
        .linear("layers.*.self_attention.heads.output", &at("attention.output.dense"))
        .linear("layers.*.feed_forward.dense.input", &at("intermediate.dense"))
        .linear("layers.*.feed_forward.dense.output", &at("output.dense"));
    let table = normed(table, "layers.*.self_attention.norm", &at("attention.output"), norm);
    normed(table, "layers.*.feed_forward.norm", &at("output"), norm)
}

fn heads(table: NameTable, prefix: &str, norm: [&str; 2]) -> NameTable {
    let table = table
        .linear("head.answers", "qa_outputs")
        .linear("head.transform", "cls.predictions.transform.dense")
        .same("head.bias", "cls.predictions.bias")
        .linear("head.pooler", &format!("{prefix}pooler.dense"))
        .linear("head.classifier", "classifier");
    normed(table, "head.norm", "cls.predictions.transform", norm)
}

/// A norm, which is part of what it normalises.
fn normed(table: NameTable, ours: &str, at: &str, [gamma, beta]: [&str; 2]) -> NameTable {
    let table = table.same(&format!("{ours}.gamma"), &format!("{at}.LayerNorm.{gamma}"));
    table.same(&format!("{ours}.beta"), &format!("{at}.LayerNorm.{beta}"))
}

impl Names for BertNames {
    fn table(&self) -> &NameTable {
        &self.table
    }

    /// Other heads, and the numbers of the positions, which are no weights.
    fn may_be_left(&self, stored: &str) -> bool {
        let inside = stored.strip_prefix(self.prefix).unwrap_or(stored);
        inside.starts_with("pooler.")
            || inside == "embeddings.position_ids"
            || ["cls.", "qa_outputs.", "classifier."].iter().any(|head| stored.starts_with(head))
    }

    fn keeps(&self, path: &str) -> bool {
        self.lacking.iter().any(|part| path.starts_with(part))
    }
}

/// The parameter beside which to measure the gradient at `path`, if that is zero up to rounding.
///
/// A bias of the keys shifts all scores of a query alike. Where tokens are the classes, what shifts all tokens of a row
/// alike changes nothing either: the head's bias, and the shift of the last norm.
pub fn measured_beside<H: BertHead>(config: &BertConfig, path: &str) -> Option<String> {
    let last = format!("layers.{}.feed_forward.norm", config.layers - 1);
    match path.rsplit_once('.')? {
        (heads, "bias") if heads.ends_with(".key") => Some(path.replace(".key.bias", ".query.bias")),
        ("head.answers", "bias") if H::TOKENS_ARE_CLASSES => Some("head.answers.weight".into()),
        (norm, "beta") if H::TOKENS_ARE_CLASSES && norm == last => Some(format!("{last}.gamma")),
        _ => None,
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
        let names = BertNames::written();
        assert_eq!(names.source("embeddings.words.weight"), same("bert.embeddings.word_embeddings.weight"));
        assert_eq!(names.source("embeddings.norm.beta"), same("bert.embeddings.LayerNorm.bias"));
        for (path, stored) in [
            ("self_attention.heads.key.weight", turned("attention.self.key.weight")),
            ("self_attention.heads.output.bias", same("attention.output.dense.bias")),
            ("self_attention.norm.gamma", same("attention.output.LayerNorm.weight")),
            ("feed_forward.dense.input.weight", turned("intermediate.dense.weight")),
            ("feed_forward.dense.output.bias", same("output.dense.bias")),
            ("feed_forward.norm.beta", same("output.LayerNorm.bias")),
            ("feed_forward.dense.gate.weight", None),
        ] {
            let stored = stored.map(|source| match source {
                Source::Same(name) => Source::Same(format!("bert.encoder.layer.3.{name}")),
                Source::Transposed(name) => Source::Transposed(format!("bert.encoder.layer.3.{name}")),
                other => other,
            });
            assert_eq!(names.source(&format!("layers.3.{path}")), stored, "{path}");
        }
        assert_eq!(names.source("head.answers.weight"), turned("qa_outputs.weight"));
        assert_eq!(names.source("head.norm.gamma"), same("cls.predictions.transform.LayerNorm.weight"));
        assert_eq!(names.source("head.pooler.bias"), same("bert.pooler.dense.bias"));
    }

    #[test]
    fn the_first_checkpoints_have_other_names() {
        let names = BertNames::with("", ["gamma", "beta"], vec!["head.answers."]);
        assert_eq!(names.source("embeddings.norm.gamma"), Some(Source::Same("embeddings.LayerNorm.gamma".into())));
        assert!(names.keeps("head.answers.bias") && !names.keeps("head.pooler.bias"));
        assert!(names.may_be_left("pooler.dense.bias") && names.may_be_left("cls.seq_relationship.weight"));
        assert!(!names.may_be_left("encoder.layer.12.output.dense.bias"));
    }
}
