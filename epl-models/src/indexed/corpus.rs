//! A corpus of tokens, mapped into memory.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use epl_core::{Error, Result, trainer};
use memmap2::Mmap;

use super::token_type::TokenType;

/// What each index begins with.
pub(super) const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
/// The version of the files that is read and written.
pub(super) const VERSION: u64 = 1;
/// Bytes before the lengths: magic, version, type, counts of sequences and of documents' borders.
const HEADER: usize = 9 + 8 + 1 + 8 + 8;

/// A corpus of tokens in Megatron's files, `PREFIX.idx` and `PREFIX.bin`, which are mapped: only what is read takes memory,
/// once for all processes of a machine.
///
/// A document is some sequences, such as a text and its sentences. The files must not change while they are read.
#[derive(Debug)]
pub struct IndexedCorpus {
    index: Mmap,
    tokens: Mmap,
    kind: TokenType,
    sequences: usize,
    documents: usize,
    path: PathBuf,
}

/// The file of a corpus that ends so.
pub(super) fn file(prefix: &Path, end: &str) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn map(path: &Path) -> Result<Mmap> {
    let file = File::open(path).map_err(|error| Error::file(path, error))?;
    // SAFETY: the map is only read. Should another process cut the file, reading beyond its end ends the process, as with every
    // mapped file; the documentation of the corpus says that it must not change.
    unsafe { Mmap::map(&file) }.map_err(|error| Error::file(path, error))
}

impl IndexedCorpus {
    /// Opens `PREFIX.idx` and `PREFIX.bin`.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when a file is missing, is none of Megatron's, has tokens that are no whole numbers, or does not fit the
    /// other one.
    pub fn open(prefix: impl AsRef<Path>) -> Result<Self> {
        let [path, of_tokens] = [".idx", ".bin"].map(|end| file(prefix.as_ref(), end));
        let index = map(&path)?;
        let wrong = |reason: String| Err(Error::file(&path, reason));
        if index.len() < HEADER || !index.starts_with(MAGIC) {
            return wrong("it is no index of Megatron's: it should begin with MMIDIDX".into());
        }
        let (version, code) = (number(&index, 9), index[17]);
        if version != VERSION {
            return wrong(format!("it is of version {version}; read is version {VERSION}"));
        }
        let Some(kind) = TokenType::of_code(code) else {
            return wrong(format!("its tokens are of type {code}; read are whole numbers: 1 to 5, and 8"));
        };
        let [sequences, borders] = [18, 26].map(|at| usize::try_from(number(&index, at)).unwrap_or(usize::MAX));
        let of_sequences = sequences.checked_mul(4 + 8).and_then(|bytes| bytes.checked_add(HEADER));
        let needed = of_sequences.and_then(|bytes| borders.checked_mul(8)?.checked_add(bytes));
        // Behind it may stand a byte for each sequence, of what kind it is.
        if borders == 0 || needed.is_none_or(|needed| needed > index.len()) {
            let found = index.len();
            return wrong(format!("it has {found} bytes, too few for {sequences} sequences and {borders} borders"));
        }
        let corpus = Self { index, tokens: map(&of_tokens)?, kind, sequences, documents: borders - 1, path: of_tokens };
        corpus.checked()
    }

    /// The corpus, if its sequences are all of its file, one behind the other, and its documents are all of its sequences.
    fn checked(self) -> Result<Self> {
        let (bytes, wrong) = (self.tokens.len(), |reason: String| Err(Error::file(&self.path, reason)));
        if !bytes.is_multiple_of(self.kind.bytes()) || bytes == 0 {
            let kind = self.kind;
            return wrong(format!("it has {bytes} bytes, which are no tokens of {kind:?}"));
        }
        let mut end = 0;
        for sequence in 0..self.sequences {
            let range = self.bytes_of(sequence);
            if range.start != end || range.end > bytes {
                let Range { start, end: last } = range;
                return wrong(format!(
                    "sequence {sequence} of its index is bytes {start} to {last}, behind byte {end} of {bytes}; read are \
                     sequences that follow each other: write both files anew"
                ));
            }
            end = range.end;
        }
        if end != bytes {
            return wrong(format!("the sequences of its index end at byte {end} of {bytes}: write both files anew"));
        }
        let mut last = 0;
        for document in 0..=self.documents {
            let border = self.border(document);
            if border < last || border > self.sequences || (document == 0 && border != 0) {
                return wrong(format!("document {document} begins at sequence {border}, of {}", self.sequences));
            }
            last = border;
        }
        if last != self.sequences {
            return wrong(format!(
                "its documents end at sequence {last}, of {}: write both files anew",
                self.sequences
            ));
        }
        Ok(self)
    }

    /// How many documents there are.
    pub fn documents(&self) -> usize {
        self.documents
    }

    /// How many sequences there are.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// How many tokens there are.
    pub fn tokens(&self) -> usize {
        self.tokens.len() / self.kind.bytes()
    }

    /// How a token is stored.
    pub fn token_type(&self) -> TokenType {
        self.kind
    }

    /// The numbers of a document's sequences.
    ///
    /// # Panics
    ///
    /// When there is no such document.
    pub fn document(&self, document: usize) -> Range<usize> {
        assert!(document < self.documents, "document {document} of {}", self.documents);
        self.border(document)..self.border(document + 1)
    }

    /// How many tokens a sequence has.
    ///
    /// # Panics
    ///
    /// When there is no such sequence; likewise [`sequence`](Self::sequence).
    pub fn length(&self, sequence: usize) -> usize {
        assert!(sequence < self.sequences, "sequence {sequence} of {}", self.sequences);
        let at = HEADER + 4 * sequence;
        let bytes = self.index[at..at + 4].try_into().expect("four bytes");
        usize::try_from(i32::from_le_bytes(bytes)).unwrap_or(usize::MAX)
    }

    /// The tokens of a sequence.
    pub fn sequence(&self, sequence: usize) -> Vec<i64> {
        self.decoded(self.bytes_of(sequence))
    }

    /// Tokens by their number in the whole corpus, across the borders of sequences and documents.
    ///
    /// # Panics
    ///
    /// When there are not so many.
    pub fn stream(&self, tokens: Range<usize>) -> Vec<i64> {
        let size = self.kind.bytes();
        self.decoded(tokens.start * size..tokens.end * size)
    }

    /// What tells the corpus from others: a hash of its index, and of some of its tokens, from the first to the last.
    pub fn fingerprint(&self) -> String {
        const PARTS: usize = 64;
        const PART: usize = 1 << 14;
        let last = self.tokens.len().saturating_sub(PART);
        let part = |number: usize| {
            let start = last / (PARTS - 1) * number;
            &self.tokens[start..self.tokens.len().min(start + PART)]
        };
        trainer::fingerprint([&self.index[..]].into_iter().chain((0..PARTS).map(part)).chain([&self.tokens[last..]]))
    }

    fn decoded(&self, bytes: Range<usize>) -> Vec<i64> {
        self.tokens[bytes].chunks_exact(self.kind.bytes()).map(|token| self.kind.get(token)).collect()
    }

    /// Where a sequence lies; what is not in the file is told by `checked`.
    fn bytes_of(&self, sequence: usize) -> Range<usize> {
        let start = number(&self.index, HEADER + 4 * self.sequences + 8 * sequence);
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        start..start.saturating_add(self.length(sequence).saturating_mul(self.kind.bytes()))
    }

    /// The first sequence of a document, or how many there are.
    fn border(&self, document: usize) -> usize {
        let border = number(&self.index, HEADER + 12 * self.sequences + 8 * document);
        usize::try_from(border).unwrap_or(usize::MAX)
    }
}

fn number(index: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(index[at..at + 8].try_into().expect("eight bytes"))
}
