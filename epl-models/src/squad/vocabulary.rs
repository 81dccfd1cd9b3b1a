//! The pieces that BERT knows: a `vocab.txt`, one piece a line, its number the line's (from 0).

mod learn;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::Path;

use epl_core::checkpoint::durable::Unpublished;

use super::{Error, Result};

/// Padding, unknown, start of a row, end of a part; where BERT's own vocabulary has them does not matter.
pub(super) const SPECIAL: [&str; 4] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"];

/// Pieces by number. A piece that begins with `##` continues a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    pieces: Vec<String>,
}

impl Vocabulary {
    /// Pieces in the order of their numbers.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] if a piece is empty, has spaces or capitals or stands there twice, or if a special piece is
    /// missing.
    pub fn new(pieces: Vec<String>) -> Result<Self> {
        Self::checked(pieces, "the list of pieces".into())
    }

    /// Reads a `vocab.txt`.
    ///
    /// # Errors
    /// [`Error::Open`] if there is no such file; otherwise as [`new`](Self::new), and as [`check_uncased`] of its folder.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        check_uncased(path.parent().unwrap_or(path))?;
        let name = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|cause| Error::Open { path: path.into(), cause })?;
        match String::from_utf8(bytes) {
            Ok(text) => Self::checked(text.lines().map(str::to_owned).collect(), name),
            Err(cause) => Err(Error::Vocabulary { name, cause: format!("{cause}; it must be UTF-8") }),
        }
    }

    /// Writes a `vocab.txt`. A file that is there is replaced when the new one is whole.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let text = self.lines();
        let written = Unpublished::write(path.as_ref(), |write| write(text.as_bytes()));
        written.and_then(Unpublished::publish).map_err(|cause| Error::Write { cause: Box::new(cause) })
    }

    /// The pieces, in the order of their numbers.
    pub fn pieces(&self) -> &[String] {
        &self.pieces
    }

    /// The content of the file that [`save`](Self::save) writes.
    pub fn lines(&self) -> String {
        self.pieces.iter().flat_map(|piece| [piece.as_str(), "\n"]).collect()
    }

    fn checked(pieces: Vec<String>, name: String) -> Result<Self> {
        match fault(&pieces) {
            None => Ok(Self { pieces }),
            Some(cause) => Err(Error::Vocabulary { name, cause }),
        }
    }
}

/// Refuses the folder of a cased BERT, by its `tokenizer_config.json`: every text is lower-cased here, so that a word would
/// become other pieces than the model has learned. A folder without that file says nothing of it.
///
/// # Errors
/// [`Error::Cased`]; [`Error::Open`] and [`Error::TokenizerConfig`] if the file is there and cannot be read.
pub fn check_uncased(folder: impl AsRef<Path>) -> Result<()> {
    let path = folder.as_ref().join("tokenizer_config.json");
    let bytes = match std::fs::read(&path) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(Error::Open { path, cause }),
        Ok(bytes) => bytes,
    };
    let config: serde_json::Value = match serde_json::from_slice(&bytes) {
        Err(cause) => return Err(Error::TokenizerConfig { path, cause }),
        Ok(config) => config,
    };
    match config["do_lower_case"].as_bool() {
        Some(false) => Err(Error::Cased { path }),
        _ => Ok(()),
    }
}

/// Whether lower-casing changes a piece that is no special one: no text has such a piece.
fn is_cased(piece: &str) -> bool {
    let is_special =
        [('[', ']'), ('<', '>')].iter().any(|(first, last)| piece.starts_with(*first) && piece.ends_with(*last));
    !is_special && piece.chars().any(|letter| letter.to_lowercase().ne([letter]))
}

/// What is wrong with these pieces. Lines count from one.
fn fault(pieces: &[String]) -> Option<String> {
    let mut lines = HashMap::new();
    for (index, piece) in pieces.iter().enumerate() {
        let line = index + 1;
        if piece.is_empty() || piece.contains(char::is_whitespace) {
            return Some(format!("line {line} is {piece:?}; a piece has a character and no spaces"));
        }
        if is_cased(piece) {
            return Some(format!(
                "line {line} is {piece:?}, which has a capital, and every text is lower-cased; take the weights and the \
                 vocabulary of an uncased BERT"
            ));
        }
        if let Some(first) = lines.insert(piece.as_str(), line) {
            return Some(format!("{piece:?} is on line {first} and on line {line}; each piece has one number"));
        }
    }
    let missing = SPECIAL.iter().find(|special| !lines.contains_key(*special))?;
    Some(format!("none of its {} pieces is {missing}; it needs {}", pieces.len(), SPECIAL.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(pieces: &[&str]) -> String {
        Vocabulary::new(pieces.iter().map(|&piece| piece.into()).collect()).unwrap_err().to_string()
    }

    #[test]
    fn unusable_lists_are_refused() {
        let said = message(&["[PAD]", "[UNK]", "[CLS]"]);
        assert!(said.contains("none of its 3 pieces is [SEP]; it needs [PAD], [UNK], [CLS], [SEP]"), "{said}");
        let said = message(&["[PAD]", "a", "b", "a"]);
        assert!(said.contains(r#""a" is on line 2 and on line 4"#), "{said}");
        assert!(message(&["[PAD]", ""]).contains(r#"line 2 is """#));
        assert!(message(&["a b"]).contains(r#"line 1 is "a b""#));
        assert!(matches!(Vocabulary::load("no/such/vocab.txt"), Err(Error::Open { .. })));
    }

    /// What would never be found in a text, as every text is lower-cased.
    #[test]
    fn a_vocabulary_of_a_cased_model_is_refused() {
        let said = message(&["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]", "paris", "##Ä"]);
        assert!(said.contains("line 8 is \"##Ä\"") && said.contains("uncased"), "{said}");
        // As the vocabulary of the Chinese BERT has them, which lower-cases.
        let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<S>", "<T>"].map(String::from);
        assert!(Vocabulary::new(special.to_vec()).is_ok());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vocab.txt");
        std::fs::write(&path, "[PAD]\n[UNK]\n[CLS]\n[SEP]\nparis\n").unwrap();
        let config = |text: &str| {
            std::fs::write(folder.path().join("tokenizer_config.json"), text).unwrap();
            Vocabulary::load(&path).map_err(|error| error.to_string())
        };
        for fits in ["{}", r#"{"do_lower_case": true, "model_max_length": 512}"#, r#"{"do_lower_case": null}"#] {
            assert_eq!(config(fits), Ok(Vocabulary::load(&path).unwrap()));
        }
        let said = config(r#"{"do_lower_case": false}"#).unwrap_err();
        assert!(said.contains("tokenizer_config.json") && said.contains("do_lower_case"), "{said}");
        let said = config(r#"{"do_lower_case""#).unwrap_err();
        assert!(said.contains("tokenizer_config.json") && said.contains("JSON"), "{said}");
    }

    /// As a full disk or a kill would leave it: whole, the one before or the one after.
    #[test]
    fn a_vocabulary_is_never_half_written() {
        let folder = tempfile::tempdir().unwrap();
        let [path, before] = ["vocab.txt", "before.txt"].map(|name| folder.path().join(name));
        std::fs::write(&path, "before").unwrap();
        std::fs::hard_link(&path, &before).unwrap();
        Vocabulary::new(SPECIAL.map(String::from).into()).unwrap().save(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&before).unwrap(), "before", "the file that was there is not written to");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_saved_vocabulary_is_the_same_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vocab.txt");
        let pieces = ["[PAD]", "é", "##é", "[UNK]", "[CLS]", "[SEP]", "日"];
        let vocabulary = Vocabulary::new(pieces.map(String::from).into()).unwrap();
        vocabulary.save(&path).unwrap();
        assert_eq!(Vocabulary::load(&path).unwrap(), vocabulary);
        // A file from Windows.
        std::fs::write(&path, vocabulary.lines().replace('\n', "\r\n")).unwrap();
        assert_eq!(Vocabulary::load(&path).unwrap(), vocabulary);
        std::fs::write(&path, b"[PAD]\n\xff\n").unwrap();
        let said = Vocabulary::load(&path).unwrap_err().to_string();
        assert!(said.contains("it must be UTF-8"), "{said}");
    }
}
