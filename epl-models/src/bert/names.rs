//! Where the parameters of a BERT stand in a folder of Hugging Face.

use super::config::BertConfig;
use super::head::BertHead;
use crate::huggingface::{Folder, Names, Source};

/// The vectors of the tokens, which every BERT has.
const WORDS: &str = "embeddings.word_embeddings.weight";

/// The names of `BertForQuestionAnswering`, `BertForMaskedLM`, `BertForSequenceClassification`, and of the checkpoints
/// that these start from: a head that the folder lacks keeps its first values.
#[derive(Clone, Debug)]
pub struct BertNames {
    /// `bert.`, or nothing where the encoder was saved alone.
    prefix: &'static str,
    /// What scale and shift of the norms are called: `weight` and `bias`, or `gamma` and `beta` in the first checkpoints.
    norm: [&'static str; 2],
    /// The parts of heads that the folder has not.
    lacking: Vec<&'static str>,
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
        Self {
            prefix,
            norm: if first { ["gamma", "beta"] } else { ["weight", "bias"] },
            lacking: HEADS.iter().filter(|(_, part)| !has(part)).map(|(path, _)| *path).collect(),
        }
    }

    /// A linear layer, by what is inside of it.
    fn linear(at: &str, inside: &str) -> Option<Source> {
        match inside {
            "weight" => Some(Source::Transposed(format!("{at}.weight"))),
            "bias" => Some(Source::Same(format!("{at}.bias"))),
            _ => None,
        }
    }

    /// A norm, by what is inside of it.
    fn norm(&self, at: &str, inside: &str) -> Option<Source> {
        let [gamma, beta] = self.norm;
        match inside {
            "gamma" => Some(Source::Same(format!("{at}.LayerNorm.{gamma}"))),
            "beta" => Some(Source::Same(format!("{at}.LayerNorm.{beta}"))),
            _ => None,
        }
    }

    fn embeddings(&self, rest: &str) -> Option<Source> {
        let at = format!("{}embeddings", self.prefix);
        match rest.split_once('.')? {
            ("words", "weight") => Some(Source::Same(format!("{}{WORDS}", self.prefix))),
            ("positions", "weight") => Some(Source::Same(format!("{at}.position_embeddings.weight"))),
            ("token_types", "weight") => Some(Source::Same(format!("{at}.token_type_embeddings.weight"))),
            ("norm", inside) => self.norm(&at, inside),
            _ => None,
        }
    }

    /// A parameter of layer `index`.
    fn layer(&self, index: &str, rest: &str) -> Option<Source> {
        let at = format!("{}encoder.layer.{index}", self.prefix);
        let (part, rest) = rest.split_once('.')?;
        match (part, rest.split_once('.')?) {
            ("self_attention", ("norm", inside)) => self.norm(&format!("{at}.attention.output"), inside),
            ("self_attention", ("heads", rest)) => match rest.split_once('.')? {
                ("output", inside) => Self::linear(&format!("{at}.attention.output.dense"), inside),
                (name @ ("query" | "key" | "value"), inside) => {
                    Self::linear(&format!("{at}.attention.self.{name}"), inside)
                }
                _ => None,
            },
            ("feed_forward", ("norm", inside)) => self.norm(&format!("{at}.output"), inside),
            ("feed_forward", ("dense", rest)) => match rest.split_once('.')? {
                ("input", inside) => Self::linear(&format!("{at}.intermediate.dense"), inside),
                ("output", inside) => Self::linear(&format!("{at}.output.dense"), inside),
                _ => None,
            },
            _ => None,
        }
    }

    fn head(&self, rest: &str) -> Option<Source> {
        if rest == "bias" {
            return Some(Source::Same("cls.predictions.bias".into()));
        }
        match rest.split_once('.')? {
            ("answers", inside) => Self::linear("qa_outputs", inside),
            ("transform", inside) => Self::linear("cls.predictions.transform.dense", inside),
            ("norm", inside) => self.norm("cls.predictions.transform", inside),
            ("pooler", inside) => Self::linear(&format!("{}pooler.dense", self.prefix), inside),
            ("classifier", inside) => Self::linear("classifier", inside),
            _ => None,
        }
    }
}

impl Names for BertNames {
    fn source(&self, path: &str) -> Option<Source> {
        match path.split_once('.')? {
            ("embeddings", rest) => self.embeddings(rest),
            ("layers", rest) => {
                let (index, rest) = rest.split_once('.')?;
                self.layer(index, rest)
            }
            ("head", rest) => self.head(rest),
            _ => None,
        }
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

    #[test]
    fn paths_become_stored_names() {
        let same = |name: &str| Some(Source::Same(name.into()));
        let turned = |name: &str| Some(Source::Transposed(name.into()));
        let names = BertNames { prefix: "bert.", norm: ["weight", "bias"], lacking: vec![] };
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
        let names = BertNames { prefix: "", norm: ["gamma", "beta"], lacking: vec!["head.answers."] };
        assert_eq!(names.source("embeddings.norm.gamma"), Some(Source::Same("embeddings.LayerNorm.gamma".into())));
        assert!(names.keeps("head.answers.bias") && !names.keeps("head.pooler.bias"));
        assert!(names.may_be_left("pooler.dense.bias") && names.may_be_left("cls.seq_relationship.weight"));
        assert!(!names.may_be_left("encoder.layer.12.output.dense.bias"));
    }
}
