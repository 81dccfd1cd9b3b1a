use std::io;
use std::path::PathBuf;

/// What can be wrong with a SQuAD file, a vocabulary, the settings or a model's logits.
///
/// Every message names the file, article or question, both of the numbers that disagree, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file is missing or may not be read.
    #[error("cannot open {}: {cause}; check the path", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },

    /// A file could not be written.
    #[error("cannot write {cause}")]
    Write {
        /// The file, and what the operating system said.
        cause: Box<epl_core::Error>,
    },

    /// A file is not JSON, or not of SQuAD's form.
    #[error("{name} is not SQuAD v1.1: {cause}; expected data > paragraphs > context, qas > id, question, answers")]
    Format {
        /// The file.
        name: String,
        /// What the JSON reader said, with line and column.
        cause: serde_json::Error,
    },

    /// Two questions have one id.
    #[error(
        "article {article:?}: the id {id:?} belongs to two questions; predictions are told apart by id, so give one \
         of them another"
    )]
    DoubleId {
        /// The article of the second question.
        article: String,
        /// The id.
        id: String,
    },

    /// An answer without a character.
    #[error("article {article:?}, question {id:?}: answer {number} is empty; take it out of the list of answers")]
    EmptyAnswer {
        /// The article.
        article: String,
        /// The question.
        id: String,
        /// Which answer of the question, from one.
        number: usize,
    },

    /// An answer is not where it says.
    #[error(
        "article {article:?}, question {id:?}: the answer {answer:?} is not at character {start} of the context, \
         where there is {found:?}; {}", hint(*place)
    )]
    Misplaced {
        /// The article.
        article: String,
        /// The question.
        id: String,
        /// The answer.
        answer: String,
        /// Where it says to be.
        start: usize,
        /// What is there.
        found: String,
        /// Where it first occurs, if anywhere.
        place: Option<usize>,
    },

    /// A vocabulary with which no text can be cut.
    #[error("{name} is not a usable vocabulary: {cause}")]
    Vocabulary {
        /// The file, or what else it came from.
        name: String,
        /// What is wrong with it, and what to do.
        cause: String,
    },

    /// What lies beside a vocabulary cannot be read.
    #[error("{} is not JSON: {cause}; take it from where the vocabulary is from, or remove it", path.display())]
    TokenizerConfig {
        /// The file.
        path: PathBuf,
        /// What the JSON reader said, with line and column.
        cause: serde_json::Error,
    },

    /// A model that tells capitals from small letters.
    #[error(
        "{} says do_lower_case = false, so this is a cased BERT, and here every text is lower-cased: take the weights and \
         the vocabulary of an uncased one",
        path.display()
    )]
    Cased {
        /// The file.
        path: PathBuf,
    },

    /// A vocabulary cannot be learned from a text without a character.
    #[error("cannot learn a vocabulary: the text is empty")]
    NoText,

    /// The crate `tokenizers` failed.
    #[error("the tokenizer failed while {doing}: {cause}")]
    Tokenizer {
        /// What it was doing.
        doing: &'static str,
        /// What it said.
        cause: String,
    },

    /// A setting that must not be zero.
    #[error("{name} is 0; it must be at least 1 (BERT's is {usual})")]
    Zero {
        /// The setting.
        name: &'static str,
        /// What BERT has.
        usual: usize,
    },

    /// No room for the context.
    #[error(
        "a row of {length} tokens has no room for the context: {longest_question} pieces of the question, [CLS], two \
         [SEP] and one piece of the context need {}; use longer rows or shorter questions", longest_question.saturating_add(4)
    )]
    Length {
        /// Tokens of a row.
        length: usize,
        /// The most pieces of a question.
        longest_question: usize,
    },

    /// A context in which nothing is left to read.
    #[error("question {id:?}: its context has no piece (only spaces or control characters); drop its paragraph")]
    EmptyContext {
        /// The first question of the paragraph.
        id: String,
    },

    /// A question without an answer where one is needed.
    #[error(
        "question {id:?} has no answer to learn from or to compare with; SQuAD v1.1 answers every question (2.0 does \
         not): drop it"
    )]
    NoAnswer {
        /// The question.
        id: String,
    },

    /// A window that is not there.
    #[error("question {id:?} has {windows} window(s), so there is no window {window}, counted from 0")]
    NoWindow {
        /// The question.
        id: String,
        /// Its windows.
        windows: usize,
        /// The window asked for.
        window: usize,
    },

    /// A row that does not fit in the length it is padded to.
    #[error("a row of {tokens} tokens cannot be padded to {length}; pad to the length its windows were made for")]
    Padding {
        /// Its tokens.
        tokens: usize,
        /// The length asked for.
        length: usize,
    },

    /// Logits that do not belong to the windows of a question.
    #[error("question {id:?} has {expected} {what} but the logits have {given}; {remedy}")]
    Logits {
        /// The question.
        id: String,
        /// What was counted.
        what: String,
        /// As many are needed.
        expected: usize,
        /// As many were given.
        given: usize,
        /// What to do.
        remedy: &'static str,
    },

    /// A logit that is no number.
    #[error(
        "question {id:?}, window {window}: the {side} logit of token {token} is {value}; only finite numbers can be \
         ranked: look for the step at which the model's loss stopped being finite"
    )]
    NotFinite {
        /// The question.
        id: String,
        /// Its window, from 0.
        window: usize,
        /// `start` or `end`.
        side: &'static str,
        /// The token in the row, from 0.
        token: usize,
        /// The logit.
        value: f32,
    },

    /// A number of a prediction that JSON cannot hold.
    #[error("question {id:?}: the {name} of answer {number} is {value}; JSON has finite numbers only")]
    Number {
        /// The question.
        id: String,
        /// Which answer of the question, from one, the best first.
        number: usize,
        /// The field.
        name: &'static str,
        /// Its value.
        value: f64,
    },

    /// A question was answered twice.
    #[error("question {id:?} already has a prediction; add the answers of each question once")]
    DoublePrediction {
        /// The question.
        id: String,
    },
}

fn hint(place: Option<usize>) -> String {
    match place {
        Some(place) => format!("it first occurs at {place}: answer_start counts characters from 0, not bytes"),
        None => "the context has it nowhere: correct the answer".into(),
    }
}

/// What the functions of this module return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
