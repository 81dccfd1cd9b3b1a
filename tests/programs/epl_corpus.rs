//! `epl-corpus` as a user runs it: what it writes is what was read, and what is wrong is one error that leaves nothing.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use epl::models::indexed::{IndexedCorpus, held_out_prefix};
use epl::models::squad::WordPiece;
use epl::models::text::Tokenizer;

fn run(folder: &Path, arguments: &str) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_epl-corpus"));
    let Output { status, stdout, stderr } =
        command.args(arguments.split_whitespace()).current_dir(folder).output().expect("it can be started");
    (status.code(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

#[test]
fn texts_become_the_corpora_of_a_decoder() {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    let path = |name: &str| folder.path().join(name);
    let texts: Vec<String> =
        (0..40).map(|number| format!("text {number} of a dog that runs to {}", number * 7)).collect();
    fs::write(path("texts"), format!("{}\n\n", texts.join("\n"))).expect("a file");
    let arguments = "texts --learn bpe --vocab 300 --end </s> --held-out 10 --out data/texts";
    let (code, said) = run(folder.path(), arguments);
    assert_eq!(code, Some(0), "{said}");
    for part in [
        "data/texts-tokenizer.json: ",
        "data/texts.bin, data/texts.idx: 36 documents, 36 sequences, ",
        "data/texts-held-out.bin",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let tokenizer = Tokenizer::load(path("data/texts-tokenizer.json")).expect("it was learned");
    let read = |prefix: &Path| -> Vec<String> {
        let corpus = IndexedCorpus::open(prefix).expect("it was written");
        let text = |sequence| {
            let tokens = corpus.sequence(sequence);
            assert_eq!(tokens.last(), Some(&tokenizer.eos()));
            tokenizer.decode(&tokens).expect("tokens are text")
        };
        (0..corpus.sequences()).map(text).collect()
    };
    let (held_out, train): (Vec<_>, Vec<_>) = texts.iter().cloned().enumerate().partition(|(at, _)| at % 10 == 9);
    let of = |numbered: Vec<(usize, String)>| numbered.into_iter().map(|(_, text)| text).collect::<Vec<_>>();
    let prefix = path("data/texts");
    assert_eq!((read(&prefix), read(&held_out_prefix(&prefix))), (of(train), of(held_out)));
    // Nothing is replaced without being told; what is given again is the same.
    let before = fs::read(path("data/texts.bin")).expect("it is there");
    let (code, said) = run(folder.path(), arguments);
    assert!(code == Some(1) && said.contains("data/texts.bin is there; give --replace"), "{said}");
    let (code, said) = run(folder.path(), &format!("{arguments} --replace"));
    assert!(code == Some(0) && fs::read(path("data/texts.bin")).ok() == Some(before), "{said}");
    // The tokenizer, from its file, writes the same tokens.
    let again = "texts --tokenizer data/texts-tokenizer.json --end </s> --held-out 10 --out again";
    let (code, said) = run(folder.path(), again);
    let same =
        |end: &str| fs::read(path(&format!("again{end}"))).ok() == fs::read(path(&format!("data/texts{end}"))).ok();
    assert!(code == Some(0) && [".bin", ".idx", "-held-out.bin", "-held-out.idx"].into_iter().all(same), "{said}");
    // An earlier corpus goes as a whole: held-out texts that stayed would be among those to train on.
    let fewer = "texts --tokenizer data/texts-tokenizer.json --out data/texts";
    fs::copy(path("data/texts-tokenizer.json"), path("data/texts-vocab.txt")).expect("a file");
    for end in ["bin", "idx"] {
        fs::remove_file(path(&format!("data/texts.{end}"))).expect("it is there");
    }
    let (code, said) = run(folder.path(), fewer);
    assert!(code == Some(1) && said.contains("data/texts-held-out.bin is there; give --replace"), "{said}");
    let (code, said) = run(folder.path(), &format!("{fewer} --replace"));
    let mut names: Vec<_> =
        fs::read_dir(path("data")).expect("a folder").map(|file| file.expect("a file").file_name()).collect();
    names.sort();
    assert!(code == Some(0) && names == ["texts-tokenizer.json", "texts.bin", "texts.idx"], "{names:?} {said}");
}

#[test]
#[cfg(unix)]
fn a_pipe_is_read_from_its_first_byte() {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    let mut command = Command::new(env!("CARGO_BIN_EXE_epl-corpus"));
    let command = command.args("/dev/stdin --learn bpe --vocab 300 --out piped".split(' ')).current_dir(folder.path());
    let mut program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be started");
    let text: String = (0..9000).map(|number| format!("text {number}\n")).collect();
    assert!(text.len() > 1 << 16, "more than is read at a time");
    program.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it is read");
    let said = program.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("9000 documents"), "{said}");
}

#[test]
fn a_name_that_cannot_be_given_leaves_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    fs::write(folder.path().join("texts"), "one\ntwo\nthree\nfour\n").expect("a file");
    let arguments = "texts --learn bpe --vocab 300 --held-out 2 --out out --replace";
    for name in ["out-tokenizer.json", "out-held-out.idx", "out.idx"] {
        fs::create_dir(folder.path().join(name)).expect("a folder");
        let (code, said) = run(folder.path(), arguments);
        assert!(code == Some(1) && said.contains(&format!("{name}: this is a folder")), "{said}");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2, "{name}");
        fs::remove_dir(folder.path().join(name)).expect("it is empty");
    }
}

#[test]
fn sentences_of_paragraphs_and_of_json_are_the_same() {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    let path = |name: &str| folder.path().join(name);
    fs::write(path("paragraphs"), "A dog runs. It is\nMr. Fox's.\n\n\nCats sleep! All day.\n").expect("a file");
    let json = "{\"body\": \"A dog runs. It is Mr. Fox's.\", \"id\": 1}\n{\"body\": \"Cats sleep! All day.\"}\n{\"body\": \"\"}\n";
    fs::write(path("json"), json).expect("a file");
    let first = "paragraphs --form paragraphs --sentences unicode --learn wordpiece --vocab 60 --out first";
    let (code, said) = run(folder.path(), first);
    assert!(code == Some(0) && said.contains("2 documents, 4 sequences, "), "{said}");
    let second = "json --form json --field body --sentences unicode --tokenizer first-vocab.txt --out second";
    let (code, said) = run(folder.path(), second);
    assert!(code == Some(0) && said.contains("1 documents have no token, and were left out"), "{said}");
    for end in [".bin", ".idx"] {
        assert_eq!(fs::read(path(&format!("first{end}"))).ok(), fs::read(path(&format!("second{end}"))).ok());
    }
    let (pieces, corpus) = (WordPiece::load(path("first-vocab.txt")), IndexedCorpus::open(path("first")));
    let (pieces, corpus) = (pieces.expect("it was learned"), corpus.expect("it was written"));
    let expected = ["A dog runs.", "It is Mr. Fox's.", "Cats sleep!", "All day."];
    for (sequence, text) in expected.into_iter().enumerate() {
        assert_eq!(corpus.sequence(sequence), pieces.encode(text).expect("a text").ids());
    }
}

#[test]
fn what_is_wrong_is_one_error_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder for a moment");
    let path = |name: &str| folder.path().join(name);
    fs::write(path("texts"), "one\ntwo\n").expect("a file");
    fs::write(path("json"), "{\"text\": \"one\"}\n{\"txt\": \"two\"}\n").expect("a file");
    fs::write(path("tokenizer.json"), "{").expect("a file");
    let learn = "--learn bpe --vocab 300 --out out";
    for (arguments, code, words) in [
        (format!("nowhere {learn}"), 1, "cannot open nowhere"),
        (format!("json --form json {learn}"), 1, "json line 2: the object has no field \"text\", but \"txt\""),
        (format!("texts {learn} --end <eos>"), 1, "--end <eos>: none of the 259 tokens is called so"),
        (format!("texts {learn} --field body"), 1, "--field names the text of JSON objects: it needs --form json"),
        (format!("texts {learn} --sentences lines"), 1, "choose --form paragraphs"),
        (format!("texts {learn} --held-out 1"), 1, "one of 1 texts would be held out: give at least 2"),
        ("texts --learn bpe --vocab 30 --out out".into(), 1, "a vocabulary of 30 is too small"),
        ("texts --tokenizer tokenizer.json --out out".into(), 1, "tokenizer.json is not a usable tokenizer file"),
        ("texts --learn bpe --out out".into(), 2, "--vocab <N>"),
        ("texts --tokenizer t --learn-from 9 --out out".into(), 2, "cannot be used with"),
        (format!("texts {learn} --learn-from 0"), 2, "--learn-from"),
        ("texts --out out".into(), 2, "--tokenizer <FILE>"),
        ("--learn bpe --vocab 300 --out out".into(), 2, "<FILE>"),
    ] {
        let (found, said) = run(folder.path(), &arguments);
        assert!(found == Some(code) && said.contains(words), "{arguments}: {found:?} {said}");
        assert_eq!(said.lines().filter(|line| line.starts_with("error")).count(), 1, "{said}");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 3, "{arguments}: {said}");
    }
}
