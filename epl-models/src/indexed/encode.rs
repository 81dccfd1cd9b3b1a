//! Corpora of texts.

use std::path::{Path, PathBuf};

use burn::config::Config;
use epl_core::checkpoint::durable::{Unpublished, publish_all};
use epl_core::{Error, Result};

use super::corpus::file;
use super::encoder::TextEncoder;
use super::token_type::TokenType;
use super::write::{CorpusWriter, Written};
use crate::text::{Document, Sentences};

/// Documents and bytes that are turned into tokens at a time, on all threads.
const DOCUMENTS: usize = 4096;
const BYTES: usize = 8 << 20;

/// Configuration to write a corpus of texts by the [write function](EncodeConfig::write).
///
/// ```
/// use epl_models::indexed::{EncodeConfig, IndexedCorpus, TextEncoder};
/// use epl_models::text::{self, Document, Sentences, Tokenizer};
///
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// # let prefix = folder.path().join("corpus");
/// let texts = ["One. Two.", "Three."];
/// let encoder = TextEncoder::from(&Tokenizer::characters(texts.into_iter())?);
/// let documents = texts.map(|text| Ok::<_, text::Error>(Document::from(text.to_string()))); // `Documents` reads files
/// let written = EncodeConfig::new().with_sentences(Sentences::Unicode).write(&prefix, &encoder, documents)?;
/// assert_eq!((written.train.documents, written.train.sequences), (2, 3));
/// assert_eq!(IndexedCorpus::open(&prefix)?.tokens(), written.train.tokens);
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Config, Debug)]
pub struct EncodeConfig {
    /// How a document is cut into the sequences of the corpus, as [`MaskedWords`](super::MaskedWords) of two texts needs.
    #[config(default = "Sentences::Whole")]
    pub sentences: Sentences,
    /// The token that each document ends with.
    pub end: Option<i64>,
    /// Of so many documents that are not blank the last is held out, and goes to the corpus of [`held_out_prefix`].
    pub held_out: Option<usize>,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The corpus.
    pub train: Written,
    /// The one of what is held out.
    pub held_out: Option<Written>,
    /// Documents that were left out, as they have no token.
    pub empty: usize,
    /// Tokens that stand for what the tokenizer does not know.
    pub unknown: usize,
}

/// Where the corpus of what is held out stands: `PREFIX-held-out`.
pub fn held_out_prefix(prefix: impl AsRef<Path>) -> PathBuf {
    file(prefix.as_ref(), "-held-out")
}

impl EncodeConfig {
    /// Whether the settings can be.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] where all would be held out.
    pub fn validate(&self) -> Result<()> {
        match self.held_out {
            Some(each @ ..2) => Err(Error::invalid(format!(
                "one of {each} texts would be held out: give at least 2, or none is left to train on"
            ))),
            _ => Ok(()),
        }
    }

    /// Whether the document of this number is held out, from 0, counted without those that are blank.
    pub fn holds_out(&self, document: usize) -> bool {
        self.held_out.is_some_and(|each| (document + 1).is_multiple_of(each))
    }

    /// Of the first documents those that are not held out: what a tokenizer may be learned from.
    pub fn to_learn_from<'a>(&self, documents: &'a [Document]) -> Vec<&'a str> {
        let texts = documents.iter().map(|document| document.text.as_str()).filter(|text| !text.trim().is_empty());
        texts.enumerate().filter(|(number, _)| !self.holds_out(*number)).map(|(_, text)| text).collect()
    }

    /// Writes documents as a corpus of the encoder's tokens, `PREFIX.bin` and `PREFIX.idx`; files that are there are replaced.
    /// Documents are read as they are needed, a few megabytes at a time.
    ///
    /// # Errors
    ///
    /// What a document is; [`Error::Invalid`] for a document that cannot be encoded, an end that is no token, and where nothing is
    /// left for a corpus; [`Error::File`] when it cannot be written.
    pub fn write<E: Into<Error>>(
        &self,
        prefix: impl AsRef<Path>,
        encoder: &TextEncoder,
        documents: impl IntoIterator<Item = Result<Document, E>>,
    ) -> Result<Encoded> {
        let (encoded, files) = self.write_unpublished(prefix, encoder, documents)?;
        publish_all(files)?;
        Ok(encoded)
    }

    /// The same, for a caller who writes more beside it: all files are whole, and get their names by [`publish_all`].
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn write_unpublished<E: Into<Error>>(
        &self,
        prefix: impl AsRef<Path>,
        encoder: &TextEncoder,
        documents: impl IntoIterator<Item = Result<Document, E>>,
    ) -> Result<(Encoded, Vec<Unpublished<'static>>)> {
        self.validate()?;
        let vocab = encoder.vocab_size();
        if let Some(end) = self.end.filter(|end| !crate::rows::is_token(*end, vocab)) {
            let last = vocab.saturating_sub(1);
            return Err(Error::invalid(format!("documents would end with token {end}; the tokens are 0 to {last}")));
        }
        let kind = TokenType::for_vocabulary(vocab);
        let held_out = self.held_out.map(|_| CorpusWriter::create(held_out_prefix(&prefix), kind)).transpose()?;
        let train = CorpusWriter::create(prefix, kind)?;
        let mut sink = Sink { config: self, encoder, train, held_out, read: 0, given: 0, encoded: Encoded::default() };
        let (mut chunk, mut bytes) = (Vec::new(), 0);
        for document in documents {
            let document = document.map_err(Into::into)?;
            bytes += document.text.len();
            chunk.push(document);
            if chunk.len() == DOCUMENTS || bytes >= BYTES {
                sink.add(core::mem::take(&mut chunk))?;
                bytes = 0;
            }
        }
        sink.add(chunk)?;
        sink.finish()
    }
}

/// Where documents go.
struct Sink<'a> {
    config: &'a EncodeConfig,
    encoder: &'a TextEncoder,
    train: CorpusWriter,
    held_out: Option<CorpusWriter>,
    /// Documents before those that are added.
    read: usize,
    /// Of them those that are not blank.
    given: usize,
    encoded: Encoded,
}

impl Sink<'_> {
    fn add(&mut self, documents: Vec<Document>) -> Result<()> {
        let sentences: Vec<Vec<String>> =
            documents.iter().map(|document| self.config.sentences.of(&document.text)).collect();
        let counts: Vec<usize> = sentences.iter().map(Vec::len).collect();
        let Ok(tokens) = self.encoder.encode(sentences.into_iter().flatten().collect()) else {
            return Err(self.culprit(&documents));
        };
        self.read += documents.len();
        self.encoded.unknown += self.encoder.unknown_in(&tokens);
        let mut tokens = tokens.into_iter();
        for count in counts {
            let mut document: Vec<Vec<i64>> = tokens.by_ref().take(count).collect();
            document.retain(|sequence| !sequence.is_empty());
            self.add_tokens(document, count > 0)?;
        }
        Ok(())
    }

    fn add_tokens(&mut self, mut document: Vec<Vec<i64>>, is_counted: bool) -> Result<()> {
        let number = self.given;
        self.given += usize::from(is_counted);
        let Some(last) = document.last_mut() else {
            self.encoded.empty += 1;
            return Ok(());
        };
        last.extend(self.config.end);
        match &mut self.held_out {
            Some(held_out) if self.config.holds_out(number) => held_out.add(document),
            _ => self.train.add(document),
        }
    }

    /// What is wrong with the first of these documents that has a sentence that cannot be encoded.
    fn culprit(&self, documents: &[Document]) -> Error {
        for (number, document) in documents.iter().enumerate() {
            if let Err(error) = self.encoder.encode(self.config.sentences.of(&document.text)) {
                let place = match &document.place {
                    Some((path, line)) => format!("{} line {line}", path.display()),
                    None => format!("document {}", self.read + number),
                };
                return Error::invalid(format!("{place}: {error}"));
            }
        }
        Error::invalid("the tokenizer failed on several documents at once, and on none of them alone")
    }

    fn finish(self) -> Result<(Encoded, Vec<Unpublished<'static>>)> {
        let given = self.given;
        let too_few = |what: &str| {
            Error::invalid(format!(
                "{given} texts leave none {what}: give more texts, or hold out another share of them"
            ))
        };
        if self.train.written().documents == 0 {
            return Err(too_few("to train on"));
        }
        if self.held_out.as_ref().is_some_and(|held_out| held_out.written().documents == 0) {
            return Err(too_few("that is held out"));
        }
        let (train, mut files) = self.train.end().map(|(train, files)| (train, Vec::from(files)))?;
        let held_out = self.held_out.map(CorpusWriter::end).transpose()?;
        let held_out = held_out.map(|(held_out, of_held_out)| {
            files.extend(of_held_out);
            held_out
        });
        Ok((Encoded { train, held_out, ..self.encoded }, files))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::corpus::IndexedCorpus;
    use super::*;
    use crate::squad::{Vocabulary, WordPiece};
    use crate::text::{DocumentForm, Documents, Tokenizer};

    fn documents(texts: &[&str]) -> Vec<Result<Document>> {
        texts.iter().map(|text| Ok(Document::from(text.to_string()))).collect()
    }

    /// Of each document its sequences, as texts again.
    fn texts(prefix: &Path, tokenizer: &Tokenizer) -> Vec<Vec<String>> {
        let corpus = IndexedCorpus::open(prefix).unwrap();
        let text = |sequence: usize| tokenizer.decode(&corpus.sequence(sequence)).unwrap();
        (0..corpus.documents()).map(|document| corpus.document(document).map(text).collect()).collect()
    }

    #[test]
    fn documents_are_cut_held_out_and_ended() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("corpus");
        let tokenizer = Tokenizer::characters(["Abcdefghijklmnopqrstuvwxyz. "].into_iter()).unwrap();
        let encoder = TextEncoder::from(&tokenizer);
        let given = ["One two. And three", "  ", "Four", "Five. Six.", "\n", "Seven"];
        let config = EncodeConfig::new().with_sentences(Sentences::Unicode).with_held_out(Some(2));
        let encoded = config.with_end(Some(tokenizer.eos())).write(&prefix, &encoder, documents(&given)).unwrap();
        let held_out = encoded.held_out.unwrap();
        assert_eq!((encoded.train.documents, held_out.documents, encoded.empty), (2, 2, 2));
        // Capitals but A are not known.
        let text = |texts: &[&[&str]]| -> Vec<Vec<String>> {
            texts.iter().map(|document| document.iter().map(|text| text.to_string()).collect()).collect()
        };
        assert_eq!(texts(&prefix, &tokenizer), text(&[&["<unk>ne two.", "And three"], &["<unk>ive.", "<unk>ix."]]));
        assert_eq!(texts(&held_out_prefix(&prefix), &tokenizer), text(&[&["<unk>our"], &["<unk>even"]]));
        assert_eq!(encoded.unknown, 5);
        let corpus = IndexedCorpus::open(&prefix).unwrap();
        let ends: Vec<bool> =
            (0..corpus.sequences()).map(|sequence| corpus.sequence(sequence).last() == Some(&1)).collect();
        assert_eq!(ends, [false, true, false, true], "the last sentence of each document");
        let read: Vec<Document> = documents(&given).into_iter().map(Result::unwrap).collect();
        let config = EncodeConfig::new().with_held_out(Some(2));
        assert_eq!(config.to_learn_from(&read), ["One two. And three", "Five. Six."]);
    }

    #[test]
    fn one_pass_in_parts_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("corpus");
        let tokenizer = Tokenizer::characters(["0123456789"].into_iter()).unwrap();
        let numbers = || (0..DOCUMENTS + 3).map(|number| Ok::<_, Error>(Document::from(number.to_string())));
        let encoder = TextEncoder::from(&tokenizer);
        EncodeConfig::new().write(&prefix, &encoder, numbers()).unwrap();
        let expected: Vec<Vec<String>> = numbers().map(|document| vec![document.unwrap().text]).collect();
        assert_eq!(texts(&prefix, &tokenizer), expected);
    }

    #[test]
    fn any_tokenizer_of_the_library_writes() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let pieces = WordPiece::new(Vocabulary::learn(["a tin of tins"], 60).unwrap()).unwrap();
        let text = "A tin, [SEP] of Tins";
        EncodeConfig::new().write(path("pieces"), &TextEncoder::from(&pieces), documents(&[text])).unwrap();
        let corpus = IndexedCorpus::open(path("pieces")).unwrap();
        assert_eq!(corpus.sequence(0), pieces.encode(text).unwrap().ids(), "what looks special is cut, too");
        assert!(!corpus.sequence(0).contains(&pieces.sep()));
        assert_eq!(pieces.goes_on().iter().filter(|goes_on| **goes_on).count(), 10, "{pieces:?}");
        // As a file says that adds tokens around a text, fills up, and cuts.
        let file = r###"{"version": "1.0", "added_tokens": [{"id": 3, "content": "[CLS]", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
            "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
            "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                "pad_type_id": 0, "pad_token": "a"},
            "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": {"type": "BertProcessing", "sep": ["[CLS]", 3], "cls": ["[CLS]", 3]},
            "decoder": null, "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"}}"###;
        fs::write(path("tokenizer.json"), file).unwrap();
        let encoder = TextEncoder::load(path("tokenizer.json")).unwrap();
        assert_eq!((encoder.vocab_size(), encoder.piece("[CLS]"), encoder.piece("c")), (4, Some(3), None));
        let encoded = EncodeConfig::new().write(path("words"), &encoder, documents(&["a b c a", "b"])).unwrap();
        let corpus = IndexedCorpus::open(path("words")).unwrap();
        assert_eq!((corpus.sequence(0), corpus.sequence(1), encoded.unknown), (vec![0, 1, 2, 0], vec![1], 1));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (prefix, file) = (folder.path().join("corpus"), folder.path().join("texts"));
        let tokenizer = Tokenizer::characters(["abc"].into_iter()).unwrap();
        let encoder = TextEncoder::from(&tokenizer);
        let wrong = |config: EncodeConfig, form: DocumentForm, bytes: &[u8]| {
            fs::write(&file, bytes).unwrap();
            let texts = Documents::open(vec![file.clone()], form).unwrap();
            let error = config.write(&prefix, &encoder, texts).unwrap_err().to_string();
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{error}");
            error
        };
        let config = EncodeConfig::new;
        let json = || DocumentForm::Json { field: "text".into() };
        let said = wrong(config(), DocumentForm::Lines, b"a\nb\xff\n");
        assert!(said.contains("texts line 2: not UTF-8 from byte 2"), "{said}");
        let said = wrong(config(), json(), b"{\"text\": \"a\"}\n\n{\"text\"}");
        assert!(said.contains("texts line 3: not JSON: expected"), "{said}");
        let said = wrong(config(), json(), b"{\"texts\": \"a\"}");
        assert!(said.contains("line 1: the object has no field \"text\", but \"texts\"; name the one"), "{said}");
        assert!(
            wrong(config(), json(), b"{\"text\": 3}").contains("line 1: its field \"text\" is no string; name one")
        );
        assert!(wrong(config(), json(), b"{}").contains("line 1: the object has no field at all; give it \"text\""));
        assert!(
            wrong(config(), json(), b"[3]")
                .contains("line 1: it is no object; give one a line, such as {\"text\": \"…\"}")
        );
        let said = wrong(config().with_end(Some(9)), DocumentForm::Lines, b"a");
        assert!(said.contains("would end with token 9; the tokens are 0 to 5"), "{said}");
        assert!(
            wrong(config().with_held_out(Some(1)), DocumentForm::Lines, b"a")
                .contains("one of 1 texts would be held out")
        );
        let said = wrong(config().with_held_out(Some(3)), DocumentForm::Lines, b"a\nb\n");
        assert!(said.contains("2 texts leave none that is held out"), "{said}");
        assert!(wrong(config(), DocumentForm::Lines, b" \n\n").contains("0 texts leave none to train on"));
        assert!(Documents::open(vec![], DocumentForm::Lines).unwrap_err().to_string().contains("no file of texts"));
        // A tokenizer that fails at a letter it does not know.
        let file = r#"{"version": "1.0", "added_tokens": [], "truncation": null, "padding": null, "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}}"#;
        fs::write(folder.path().join("tokenizer.json"), file).unwrap();
        let encoder = TextEncoder::load(folder.path().join("tokenizer.json")).unwrap();
        let place = Some((Path::new("texts").into(), 7));
        let texts = [Ok::<_, Error>(Document::from("a".to_string())), Ok(Document { text: "b".into(), place })];
        let said = EncodeConfig::new().write(&prefix, &encoder, texts).unwrap_err().to_string();
        assert!(said.contains("texts line 7: the tokenizer failed"), "{said}");
        // Of no file: its number among all that are given, blank ones with them.
        let said = EncodeConfig::new().write(&prefix, &encoder, documents(&["a", " ", "a", "b"])).unwrap_err();
        assert!(said.to_string().contains("document 3: the tokenizer failed"), "{said}");
    }

    #[test]
    fn paragraphs_keep_their_lines() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["a", "b"].map(|name| folder.path().join(name));
        fs::write(&files[0], "\none\r\ntwo\n \n\nthree").unwrap();
        fs::write(&files[1], "four\n").unwrap();
        let read = Documents::open(files.to_vec(), DocumentForm::Paragraphs).unwrap();
        let read: Vec<(String, usize)> = read
            .map(|document| {
                let Document { text, place } = document.unwrap();
                (text, place.unwrap().1)
            })
            .collect();
        assert_eq!(read, [("one\ntwo".into(), 2), ("three".into(), 6), ("four".into(), 1)]);
    }
}
