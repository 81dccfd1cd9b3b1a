//! Writes a corpus of tokens.

use std::path::{Path, PathBuf};

use epl_core::checkpoint::durable::{Partial, Unpublished, publish_all};
use epl_core::{Error, Result};

use super::corpus::{MAGIC, VERSION, file};
use super::token_type::TokenType;

/// How much was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Documents.
    pub documents: usize,
    /// Their sequences.
    pub sequences: usize,
    /// Tokens of all.
    pub tokens: usize,
}

/// Writes a corpus document by document, as `PREFIX.bin` and `PREFIX.idx`, which Megatron reads. They get their names once both
/// are whole, in the place of files that are there; dropped before, nothing is left.
///
/// What was written is on the disk: memory is needed for lengths and borders, up to 12 bytes a sequence and 8 a document.
#[derive(Debug)]
pub struct CorpusWriter {
    tokens: Partial<'static>,
    of_index: PathBuf,
    index: Tables,
    buffer: Vec<u8>,
}

impl CorpusWriter {
    /// Begins a corpus of such tokens.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when its file cannot be made.
    pub fn create(prefix: impl AsRef<Path>, kind: TokenType) -> Result<Self> {
        let [of_tokens, of_index] = files(prefix);
        Ok(Self { tokens: Partial::create(&of_tokens)?, of_index, index: Tables::new(kind), buffer: Vec::new() })
    }

    /// Appends a document, some sequences of tokens. One without a token is left out.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a token that the type cannot hold; [`Error::File`] when it cannot be written.
    pub fn add(&mut self, document: Vec<Vec<i64>>) -> Result<()> {
        for sequence in self.index.of_document(document)? {
            self.buffer.clear();
            sequence.iter().for_each(|token| self.index.kind.put(*token, &mut self.buffer));
            self.tokens.write(&self.buffer)?;
        }
        Ok(())
    }

    /// How much was written so far.
    pub fn written(&self) -> Written {
        self.index.written()
    }

    /// Ends the corpus, and gives the files their names.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] where there is no token at all; [`Error::File`] when they cannot be written.
    pub fn finish(self) -> Result<Written> {
        let (written, files) = self.end()?;
        publish_all(files)?;
        Ok(written)
    }

    /// Ends the corpus: its two files are whole, and have not got their names.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    pub fn end(self) -> Result<(Written, [Unpublished<'static>; 2])> {
        let written = self.index.written();
        if written.tokens == 0 {
            let name = self.of_index.with_extension("bin");
            return Err(Error::invalid(format!("{} would have no token: give documents", name.display())));
        }
        let tokens = self.tokens.sync()?;
        let index = Unpublished::write(&self.of_index, |put| self.index.write(put))?;
        Ok((written, [tokens, index]))
    }
}

/// The two files of a corpus: `PREFIX.bin` and `PREFIX.idx`.
pub fn files(prefix: impl AsRef<Path>) -> [PathBuf; 2] {
    [".bin", ".idx"].map(|end| file(prefix.as_ref(), end))
}

/// Writes documents as [`CorpusWriter`] does.
///
/// # Errors
///
/// As its functions; what a document is.
pub fn write(
    prefix: impl AsRef<Path>,
    kind: TokenType,
    documents: impl IntoIterator<Item = Result<Vec<Vec<i64>>>>,
) -> Result<Written> {
    let mut writer = CorpusWriter::create(prefix, kind)?;
    documents.into_iter().try_for_each(|document| writer.add(document?))?;
    writer.finish()
}

/// What the index says.
#[derive(Debug)]
struct Tables {
    kind: TokenType,
    /// Documents that were given, those without a token with them.
    given: usize,
    lengths: Vec<i32>,
    borders: Vec<u64>,
}

impl Tables {
    fn new(kind: TokenType) -> Self {
        Self { kind, given: 0, lengths: Vec::new(), borders: vec![0] }
    }

    /// Notes a document: its sequences that have tokens.
    fn of_document(&mut self, document: Vec<Vec<i64>>) -> Result<Vec<Vec<i64>>> {
        let number = self.given;
        self.given += 1;
        let sequences: Vec<Vec<i64>> = document.into_iter().filter(|sequence| !sequence.is_empty()).collect();
        for sequence in &sequences {
            let largest = self.kind.largest();
            if let Some(token) = sequence.iter().find(|token| !(0..=largest).contains(token)) {
                let kind = self.kind;
                let reason = format!("document {number} has token {token}; {kind:?} holds 0 to {largest}");
                return Err(Error::invalid(format!("{reason}: choose a larger type, or another tokenizer")));
            }
            let length = sequence.len();
            let too_long = || Error::invalid(format!("document {number} has a sequence of {length} tokens; cut it"));
            self.lengths.push(i32::try_from(length).map_err(|_| too_long())?);
        }
        if !sequences.is_empty() {
            self.borders.push(self.lengths.len() as u64);
        }
        Ok(sequences)
    }

    fn written(&self) -> Written {
        let tokens: u64 = self.lengths.iter().map(|length| u64::from(length.unsigned_abs())).sum();
        Written { documents: self.borders.len() - 1, sequences: self.lengths.len(), tokens: tokens as usize }
    }

    fn write(&self, put: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        put(MAGIC)?;
        put(&VERSION.to_le_bytes())?;
        put(&[self.kind.code()])?;
        put(&(self.lengths.len() as u64).to_le_bytes())?;
        put(&(self.borders.len() as u64).to_le_bytes())?;
        self.lengths.iter().try_for_each(|length| put(&length.to_le_bytes()))?;
        let mut start = 0_u64;
        for length in &self.lengths {
            put(&start.to_le_bytes())?;
            start += u64::from(length.unsigned_abs()) * self.kind.bytes() as u64;
        }
        self.borders.iter().try_for_each(|border| put(&border.to_le_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::corpus::IndexedCorpus;
    use super::*;

    fn two() -> Vec<Result<Vec<Vec<i64>>>> {
        vec![Ok(vec![vec![5, 6, 7], vec![8]]), Ok(vec![vec![], vec![]]), Ok(vec![vec![], vec![300, 1]])]
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("a.corpus");
        for kind in [TokenType::U16, TokenType::I16, TokenType::I32, TokenType::I64] {
            let written = write(&prefix, kind, two()).unwrap();
            assert_eq!(
                written,
                Written { documents: 2, sequences: 3, tokens: 6 },
                "a document without a token is left out"
            );
            let corpus = IndexedCorpus::open(&prefix).unwrap();
            assert_eq!((corpus.documents(), corpus.sequences(), corpus.tokens()), (2, 3, 6));
            assert_eq!([0, 1].map(|document| corpus.document(document)), [0..2, 2..3]);
            assert_eq!([0, 1, 2].map(|sequence| corpus.sequence(sequence)), [vec![5, 6, 7], vec![8], vec![300, 1]]);
            assert_eq!((corpus.stream(2..5), corpus.token_type()), (vec![7, 8, 300], kind));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
    }

    /// Every byte, as `megatron/core/datasets/indexed_dataset.py` has them.
    #[test]
    fn the_bytes_are_megatrons() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("corpus");
        write(&prefix, TokenType::U16, two()).unwrap();
        assert_eq!(fs::read(file(&prefix, ".bin")).unwrap(), [5, 0, 6, 0, 7, 0, 8, 0, 44, 1, 1, 0]);
        let mut expected = b"MMIDIDX\0\0".to_vec();
        let long = |values: &[u64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        expected.extend(long(&[1]));
        expected.push(8);
        expected.extend(long(&[3, 3]));
        expected.extend([3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        expected.extend(long(&[0, 6, 8]));
        expected.extend(long(&[0, 2, 3]));
        assert_eq!(fs::read(file(&prefix, ".idx")).unwrap(), expected);
    }

    #[test]
    fn tokens_that_do_not_fit_leave_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("corpus");
        let refused =
            |kind, documents: Vec<Result<Vec<Vec<i64>>>>| write(&prefix, kind, documents).unwrap_err().to_string();
        assert!(refused(TokenType::U8, two()).contains("document 2 has token 300; U8 holds 0 to 255: choose a larger"));
        assert!(refused(TokenType::I32, vec![Ok(vec![vec![-1]])]).contains("document 0 has token -1"));
        assert!(refused(TokenType::I32, vec![Ok(vec![])]).contains("would have no token"));
        let failed = refused(TokenType::I32, vec![Err(Error::invalid("the tokenizer failed"))]);
        assert!(failed.contains("the tokenizer failed"), "{failed}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn files_that_are_not_a_corpus_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("corpus");
        write(&prefix, TokenType::U16, two()).unwrap();
        let (index, tokens) = (file(&prefix, ".idx"), file(&prefix, ".bin"));
        let whole = fs::read(&index).unwrap();
        let with = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            bytes
        };
        for (bytes, expected) in [
            (b"GGUF".to_vec(), "should begin with MMIDIDX"),
            (with(9, 2), "it is of version 2; read is version 1"),
            (with(17, 7), "its tokens are of type 7"),
            (with(18, 200), "too few for 200 sequences and 3 borders"),
            (whole[..whole.len() - 1].to_vec(), "too few for 3 sequences"),
            (with(34, 90), "sequence 0 of its index is bytes 0 to 180, behind byte 0 of 12"),
            (with(34 + 12, 2), "sequence 0 of its index is bytes 2 to 8, behind byte 0"),
            (with(34 + 8, 1), "the sequences of its index end at byte 10 of 12"),
            (with(34 + 36, 1), "document 0 begins at sequence 1, of 3"),
            (with(34 + 36 + 16, 2), "its documents end at sequence 2, of 3"),
            (with(25, 0x15), "too few for"),
            (with(34 + 36 + 8, 9), "document 1 begins at sequence 9, of 3"),
        ] {
            fs::write(&index, bytes).unwrap();
            let error = IndexedCorpus::open(&prefix).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        fs::write(&index, &whole).unwrap();
        fs::write(&tokens, [0; 13]).unwrap();
        assert!(IndexedCorpus::open(&prefix).unwrap_err().to_string().contains("13 bytes, which are no tokens of U16"));
        fs::remove_file(&tokens).unwrap();
        assert!(IndexedCorpus::open(&prefix).unwrap_err().to_string().contains("corpus.bin"));
    }
}
