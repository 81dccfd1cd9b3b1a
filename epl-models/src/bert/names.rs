//! Where the parameters of a BERT stand in a folder of Hugging Face.

use super::architecture::{BertArchitecture, SUPPORTED};
use super::config::BertConfig;
use super::head::{BertHead, HeadPaths};
use crate::huggingface::{Folder, NameTable, Names, Result};

/// The vectors of the tokens, which every BERT has.
const WORDS: &str = "embeddings.word_embeddings.weight";

/// What the stored names of heads begin with.
const HEADS: [&str; 4] = ["cls.", "lm_head.", "qa_outputs.", "classifier."];

/// The names of `BertForQuestionAnswering`, `BertForMaskedLM`, `BertForSequenceClassification`, `BertForPreTraining`, of the same
/// of a RoBERTa, and of the checkpoints that these start from: a head that the folder lacks keeps its first values.
#[derive(Clone, Debug)]
pub struct BertNames {
    /// That of the architecture, or nothing where the encoder was saved alone.
    prefix: &'static str,
    /// The parts of heads that the folder has not.
    lacking: Vec<String>,
    table: NameTable,
}

/// What a folder calls things.
#[derive(Clone, Copy)]
struct Spelling {
    architecture: BertArchitecture,
    prefix: &'static str,
    /// Scale and shift of the norms: `weight` and `bias`, or `gamma` and `beta` in the first checkpoints.
    norm: [&'static str; 2],
}

/// What a folder calls the parts of heads.
struct Heads {
    answers: [String; 2],
    transform: [String; 2],
    norm: [String; 2],
    bias: [String; 2],
    pooler: [String; 2],
    classifier: [String; 2],
    /// What the names of the parts that say which tokens were hidden begin with.
    masked: &'static str,
    /// Whether pooler and classifier are one head; otherwise a pooler is part of the encoder, and may be there alone.
    is_one: bool,
}

impl Heads {
    fn of<H: BertHead>(spelling: Spelling) -> Self {
        let Spelling { architecture, prefix, .. } = spelling;
        let HeadPaths { masked: tokens, classified } = H::PATHS;
        let pooler = format!("{prefix}pooler.dense");
        let (masked, [transform, norm, bias]) = match architecture {
            BertArchitecture::Bert => ("cls.predictions.", ["transform.dense", "transform.LayerNorm", "bias"]),
            BertArchitecture::Roberta => ("lm_head.", ["dense", "layer_norm", "bias"]),
        };
        let is_one = architecture == BertArchitecture::Roberta && !H::IS_PRETRAINING;
        let [pooler, classifier] = match (is_one, H::IS_PRETRAINING) {
            (true, _) => ["classifier.dense", "classifier.out_proj"].map(String::from),
            (false, true) => [pooler, "cls.seq_relationship".to_string()],
            (false, false) => [pooler, "classifier".to_string()],
        };
        Self {
            answers: ["head.answers", "qa_outputs"].map(String::from),
            transform: [format!("{tokens}.transform"), format!("{masked}{transform}")],
            norm: [format!("{tokens}.norm"), format!("{masked}{norm}")],
            bias: [format!("{tokens}.bias"), format!("{masked}{bias}")],
            pooler: [format!("{classified}.pooler"), pooler],
            classifier: [format!("{classified}.classifier"), classifier],
            masked,
            is_one,
        }
    }

    /// The paths of the parts of heads of which a folder has nothing; half a head is there, and an error.
    fn lacking(&self, folder: &Folder) -> Vec<String> {
        let has = |begin: &str| folder.names().any(|name| name.starts_with(begin));
        let has_part = |[_, stored]: &[String; 2]| has(&format!("{stored}."));
        let masked = [&self.transform, &self.norm, &self.bias].map(|part| (part, has(self.masked)));
        let (pooler, classifier) = (has_part(&self.pooler), has_part(&self.classifier));
        let one = self.is_one && (pooler || classifier);
        let others = [
            (&self.answers, has_part(&self.answers)),
            (&self.pooler, pooler || one),
            (&self.classifier, classifier || one),
        ];
        let parts = masked.into_iter().chain(others);
        parts.filter(|(_, is_there)| !is_there).map(|([path, _], _)| path.clone()).collect()
    }

    fn named(&self, table: NameTable, spelling: Spelling) -> NameTable {
        let linear = [&self.answers, &self.transform, &self.pooler, &self.classifier];
        let table = linear.into_iter().fold(table, |table, [path, stored]| table.linear(path, stored));
        let ([path, stored], [norm, of_norm]) = (&self.bias, &self.norm);
        normed(table.same(path, stored), norm, of_norm, spelling.norm)
    }
}

impl BertNames {
    /// The names that a folder uses, for a model with the head `H`.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::huggingface::Error::Unsupported) for another architecture,
    /// [`Error::Config`](crate::huggingface::Error::Config) when `config.json` says none.
    pub fn new<H: BertHead>(folder: &Folder) -> Result<Self> {
        let architecture = architecture(folder)?;
        let prefix = if folder.shape(WORDS).is_some() { "" } else { architecture.prefix() };
        let first = folder.shape(&format!("{prefix}embeddings.LayerNorm.gamma")).is_some();
        let norm = if first { ["gamma", "beta"] } else { ["weight", "bias"] };
        let spelling = Spelling { architecture, prefix, norm };
        let heads = Heads::of::<H>(spelling);
        let lacking = heads.lacking(folder);
        Ok(Self::with(spelling, &heads, lacking))
    }

    /// The names that `transformers` writes, of a model with the head `H`.
    pub fn written<H: BertHead>(architecture: BertArchitecture) -> Self {
        let spelling = Spelling { architecture, prefix: architecture.prefix(), norm: ["weight", "bias"] };
        Self::with(spelling, &Heads::of::<H>(spelling), Vec::new())
    }

    fn with(spelling: Spelling, heads: &Heads, lacking: Vec<String>) -> Self {
        let Spelling { prefix, norm, .. } = spelling;
        let table = layers(embeddings(NameTable::new(), prefix, norm), prefix, norm);
        Self { prefix, lacking, table: heads.named(table, spelling) }
    }
}

/// The architecture of a folder.
pub(super) fn architecture(folder: &Folder) -> Result<BertArchitecture> {
    let model_type = folder.model_type()?;
    BertArchitecture::named(model_type).ok_or_else(|| folder.unsupported(model_type, SUPPORTED))
}

/// Whether a name ends here, or a part of it.
fn is_whole(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('.')
}

fn embeddings(table: NameTable, prefix: &str, norm: [&str; 2]) -> NameTable {
    let at = format!("{prefix}embeddings");
    let table = table
        .same("embeddings.words.weight", &format!("{prefix}{WORDS}"))
        .same("embeddings.positions.weight", &format!("{at}.position_embeddings.weight"))
        .same("embeddings.token_types.weight", &format!("{at}.token_type_embeddings.weight"));
    normed(table, "embeddings.norm", &format!("{at}.LayerNorm"), norm)
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
    let table = normed(table, "layers.*.self_attention.norm", &at("attention.output.LayerNorm"), norm);
    normed(table, "layers.*.feed_forward.norm", &at("output.LayerNorm"), norm)
}

/// A norm.
fn normed(table: NameTable, ours: &str, at: &str, [gamma, beta]: [&str; 2]) -> NameTable {
    let table = table.same(&format!("{ours}.gamma"), &format!("{at}.{gamma}"));
    table.same(&format!("{ours}.beta"), &format!("{at}.{beta}"))
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
            || HEADS.iter().any(|head| stored.starts_with(head))
    }

    fn keeps(&self, path: &str) -> bool {
        self.lacking.iter().any(|part| path.strip_prefix(part.as_str()).is_some_and(is_whole))
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
    use super::super::masked_language::MaskedLanguage;
    use super::super::pretraining::Pretraining;
    use super::*;
    use crate::huggingface::Source;

    #[test]
    fn paths_become_stored_names() {
        let same = |name: &str| Some(Source::Same(name.into()));
        let turned = |name: &str| Some(Source::Transposed(name.into()));
        let names = BertNames::written::<MaskedLanguage>(BertArchitecture::Bert);
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

        let names = BertNames::written::<Pretraining>(BertArchitecture::Bert);
        assert_eq!(names.source("head.masked.bias"), same("cls.predictions.bias"));
        assert_eq!(names.source("head.sentence.classifier.weight"), turned("cls.seq_relationship.weight"));
        assert_eq!(names.source("head.sentence.pooler.bias"), same("bert.pooler.dense.bias"));
        let names = BertNames::written::<MaskedLanguage>(BertArchitecture::Roberta);
        assert_eq!(names.source("embeddings.norm.beta"), same("roberta.embeddings.LayerNorm.bias"));
        assert_eq!(names.source("head.norm.gamma"), same("lm_head.layer_norm.weight"));
        assert_eq!(names.source("head.classifier.weight"), turned("classifier.out_proj.weight"));
    }

    #[test]
    fn the_first_checkpoints_have_other_names() {
        let spelling = Spelling { architecture: BertArchitecture::Bert, prefix: "", norm: ["gamma", "beta"] };
        let heads = Heads::of::<MaskedLanguage>(spelling);
        let names = BertNames::with(spelling, &heads, vec!["head.answers".to_string()]);
        assert_eq!(names.source("embeddings.norm.gamma"), Some(Source::Same("embeddings.LayerNorm.gamma".into())));
        assert!(names.keeps("head.answers.bias") && !names.keeps("head.pooler.bias"));
        assert!(names.may_be_left("pooler.dense.bias") && names.may_be_left("cls.seq_relationship.weight"));
        assert!(!names.may_be_left("encoder.layer.12.output.dense.bias"));
    }
}
