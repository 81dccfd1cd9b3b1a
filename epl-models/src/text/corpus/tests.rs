use std::io::Write;
use std::path::{Path, PathBuf};

use burn::data::dataset::Dataset;
use flate2::{Compression, write::GzEncoder};

use super::*;
use crate::text::{BpeConfig, Error, Pair, Tokenizer};

/// A folder of files that vanishes with the test.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn gzip(&self, name: &str, text: &str) -> PathBuf {
        self.write(name, gzip(text))
    }
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn read(source: &Path, target: &Path) -> Result<ParallelCorpus, Error> {
    ParallelCorpus::read(&[source], &[target])
}

/// The error's sentence, which must name the file.
fn refusal(source: &Path, target: &Path, names: &Path) -> String {
    let message = read(source, target).unwrap_err().to_string();
    assert!(message.contains(&names.display().to_string()), "{message}");
    message
}

fn pair(source: &str, target: &str) -> Pair {
    Pair { source: source.into(), target: target.into() }
}

#[test]
fn plain_and_gzip_files_are_read_in_order() {
    let files = Files::new();
    let sources = [files.write("a.en", "one\ntwo\n"), files.gzip("b.en.gz", "three\r\n\r\nfive")];
    // Gzip by content, two members in a row, and a byte order mark.
    let targets =
        [files.gzip("a.de", "eins\nzwei"), files.write("b.de.gz", [gzip("\u{feff}drei\n\n"), gzip("fünf\n")].concat())];
    let corpus = ParallelCorpus::read(&sources, &targets).unwrap();
    let pairs: Vec<Pair> = corpus.iter().map(|item| item.unwrap()).collect();
    let expected = [("one", "eins"), ("two", "zwei"), ("three", "drei"), ("", ""), ("five", "fünf")];
    assert_eq!(pairs, expected.map(|(source, target)| pair(source, target)));
    assert_eq!(corpus.len(), 5);
    assert_eq!(corpus.texts().count(), 10);
    assert_eq!(corpus.targets().get(4), "fünf");
}

#[test]
fn only_line_feeds_end_lines() {
    let files = Files::new();
    let source = files.write("a", "one\u{2028}still one\u{b}\u{85}\rone\ntwo\n");
    let target = files.write("b", "eins\nzwei\n");
    assert_eq!(read(&source, &target).unwrap().sources().get(0), "one\u{2028}still one\u{b}\u{85}\rone");
}

#[test]
fn a_missing_file_is_refused() {
    let files = Files::new();
    let here = files.write("a.en", "one\n");
    let missing = files.0.path().join("a.de");
    assert!(refusal(&here, &missing, &missing).contains("cannot open"));
}

#[test]
fn a_folder_is_refused() {
    let files = Files::new();
    let here = files.write("a.en", "one\n");
    assert!(refusal(files.0.path(), &here, files.0.path()).contains("cannot read"));
}

#[test]
fn different_numbers_of_files_are_refused() {
    let files = Files::new();
    let file = files.write("a", "one\n");
    let message = ParallelCorpus::read(&[&file, &file], &[&file]).unwrap_err().to_string();
    assert!(message.contains("2 source file(s) but 1 target file(s)"), "{message}");
}

#[test]
fn different_numbers_of_lines_are_refused() {
    let files = Files::new();
    let (good, source) = (files.write("good", "x\n"), files.write("long.en", "one\ntwo\nthree\n"));
    let target = files.gzip("short.de.gz", "eins\nzwei\n");
    let message = ParallelCorpus::read(&[&good, &source], &[&good, &target]).unwrap_err().to_string();
    assert!(message.contains("long.en has 3 lines but") && message.contains("short.de.gz has 2"), "{message}");
}

#[test]
fn lines_that_are_not_utf8_are_refused() {
    let files = Files::new();
    let source = files.write("a.en", "one\ntwo\n");
    let target = files.write("a.de", b"eins\nzw\xf6lf\n");
    assert!(refusal(&source, &target, &target).contains("line 2: not UTF-8 from byte 3"));
}

#[test]
fn an_empty_corpus_is_refused() {
    let files = Files::new();
    let (source, target) = (files.write("a.en", ""), files.gzip("a.de.gz", ""));
    assert!(refusal(&source, &target, &target).contains("the corpus is empty: no line in"));
    let none: [&Path; 0] = [];
    let message = ParallelCorpus::read(&none, &none).unwrap_err().to_string();
    assert!(message.contains("no file at all"), "{message}");
}

#[test]
fn damaged_gzip_files_are_refused() {
    let files = Files::new();
    let text: String = (0..20_000).map(|line| format!("line {line} of {}\n", line * 7919 % 1000)).collect();
    let source = files.write("a.en", &text);
    let whole = gzip(&text);
    let truncated = files.write("truncated.gz", &whole[..whole.len() / 2]);
    let message = refusal(&source, &truncated, &truncated);
    assert!(message.contains("is not a whole gzip file (after line ") && !message.contains("line 0"), "{message}");
    let mut bytes = whole.clone();
    let checksum = bytes.len() - 8;
    bytes[checksum] ^= 1;
    let damaged = files.write("damaged.gz", bytes);
    assert!(refusal(&source, &damaged, &damaged).contains("gzip -t"));
    let plain = files.write("plain.gz", &text);
    assert!(refusal(&source, &plain, &plain).contains("(after line 0): invalid gzip header"));
    let empty = files.write("empty.gz", "");
    assert!(refusal(&source, &empty, &empty).contains("is not a whole gzip file"));
}

fn corpus() -> ParallelCorpus {
    ParallelCorpus::from_pairs([pair("ab", "abc"), pair("", "b"), pair("a", " "), pair("abcabc", "a"), pair("c", "ca")])
}

#[test]
fn pairs_become_tokens_with_lengths() {
    let corpus = corpus();
    let tokenizer = Tokenizer::characters(corpus.texts()).unwrap();
    let tokens = TokenPairs::all(&corpus, &tokenizer).unwrap();
    assert_eq!(tokens.len(), 5);
    // Space 3, a 4, b 5, c 6.
    assert_eq!(tokens.get(0).unwrap(), TokenPair { source: vec![4, 5, 1], target: vec![4, 5, 6, 1] });
    assert_eq!(tokens.get(1).unwrap().source, [1]);
    assert_eq!(tokens.lengths(3), Lengths { source: 7, target: 2 });
    assert_eq!(tokens.lengths(3).longest(), 7);
}

#[test]
fn long_and_empty_pairs_are_left_out_and_counted() {
    let corpus = corpus();
    let tokenizer = Tokenizer::characters(corpus.texts()).unwrap();
    let (tokens, dropped) = TokenPairs::up_to(4, &corpus, &tokenizer).unwrap();
    assert_eq!(dropped, Dropped { pairs: 5, empty: 2, too_long: 1, longest: 4 });
    assert_eq!(dropped.to_string(), "dropped 3 of 5 pairs: 2 with an empty side, 1 longer than 4 tokens");
    assert_eq!(tokens.len(), 2);
    assert_eq!(tokens.get(1).unwrap().target, [6, 4, 1]);
}

#[test]
fn a_limit_that_leaves_nothing_is_refused() {
    let corpus = corpus();
    let tokenizer = Tokenizer::characters(corpus.texts()).unwrap();
    let message = TokenPairs::up_to(2, &corpus, &tokenizer).unwrap_err().to_string();
    assert!(
        message.contains("none of 5 pairs is left: 2 with an empty side, 3 longer than the limit of 2"),
        "{message}"
    );
    assert!(message.contains("the shortest pair needs 3"), "{message}");
}

#[test]
fn more_pairs_than_one_chunk_keep_their_order() {
    let pairs = (0..10_000).map(|n| pair(&n.to_string(), &(2 * n).to_string()));
    let corpus = ParallelCorpus::from_pairs(pairs);
    let tokenizer = BpeConfig::new(300).train(corpus.texts()).unwrap();
    let tokens = TokenPairs::all(&corpus, &tokenizer).unwrap();
    for index in [0, 4_095, 4_096, 8_191, 9_999] {
        let item = tokens.get(index).unwrap();
        assert_eq!(tokenizer.decode(&item.source).unwrap(), index.to_string());
        assert_eq!(tokenizer.decode(&item.target).unwrap(), (2 * index).to_string());
    }
}
