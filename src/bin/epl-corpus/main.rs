//! Writes corpora of tokens from texts: the `.bin` and `.idx` of Megatron, which `epl::models::indexed` trains on.
//!
//! ```text
//! epl-corpus texts.txt.gz --learn bpe --vocab 8000 --end '</s>' --held-out 100 --out data/texts       for a decoder
//! epl-corpus wiki.jsonl --form json --tokenizer gpt2/tokenizer.json --end '<|endoftext|>' --out data/wiki
//! epl-corpus books.txt --form paragraphs --sentences unicode --tokenizer vocab.txt --out data/books   for BERT
//! ```
//!
//! Files are read once, a few megabytes at a time, and may be pipes. What it writes stands in its last lines. An earlier corpus of that
//! name is replaced with `--replace` only, and then whole: held-out texts and a tokenizer that are not written anew are removed.
//! Ends with 0 when all is written, with 1 and one error otherwise: files get their names when all are whole.
//!
//! - `tokens`: the tokenizer, from a file or learned.

mod tokens;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use epl::checkpoint::durable::publish_all;
use epl::models::indexed::{EncodeConfig, Written, held_out_prefix, write};
use epl::models::text::{Document, DocumentForm, Documents, Sentences};
use epl::{Error, Result};

use tokens::{TokenArgs, Tokens};

/// Write a corpus of tokens from texts
#[derive(Parser, Debug)]
#[command(name = "epl-corpus", version)]
struct Args {
    /// Files of texts, plain or .gz
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// What the corpus is called: PREFIX.bin and PREFIX.idx are written
    #[arg(long, value_name = "PREFIX")]
    out: PathBuf,
    /// How documents stand in the files
    #[arg(long, value_enum, default_value_t = Form::Lines)]
    form: Form,
    /// Of --form json: the field with the text
    #[arg(long, value_name = "NAME", default_value = "text")]
    field: String,
    #[command(flatten)]
    tokens: TokenArgs,
    /// How documents are cut into sentences
    #[arg(long, value_enum, default_value_t = Cut::Whole)]
    sentences: Cut,
    /// The token that each document ends with, by its name, such as `</s>` or `<|endoftext|>`
    #[arg(long, value_name = "TOKEN")]
    end: Option<String>,
    /// Of so many documents one goes to another corpus, PREFIX-held-out.bin and .idx
    #[arg(long, value_name = "N")]
    held_out: Option<usize>,
    /// Replace an earlier corpus of that name, with its held-out texts and its tokenizer
    #[arg(long)]
    replace: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// One a line
    Lines,
    /// Lines up to an empty one
    Paragraphs,
    /// A JSON object a line, such as {"text": "…"}
    Json,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Cut {
    /// A document is one sequence
    Whole,
    /// Each line is a sentence
    Lines,
    /// By Unicode's rule, and not behind abbreviations
    Unicode,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let form = match args.form {
        Form::Lines => DocumentForm::Lines,
        Form::Paragraphs => DocumentForm::Paragraphs,
        Form::Json => DocumentForm::Json { field: args.field.clone() },
    };
    if args.field != "text" && args.form != Form::Json {
        return Err(Error::invalid("--field names the text of JSON objects: it needs --form json"));
    }
    if matches!((args.sentences, args.form), (Cut::Lines, Form::Lines)) {
        return Err(Error::invalid(
            "--sentences lines cuts documents of several lines, and with --form lines each has one: choose --form paragraphs",
        ));
    }
    let before: Vec<PathBuf> = of_corpus(args).into_iter().filter(|path| path.exists()).collect();
    if let Some(there) = before.first().filter(|_| !args.replace) {
        let name = there.display();
        return Err(Error::invalid(format!("{name} is there; give --replace, or another --out")));
    }
    if let Some(parent) = args.out.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(|error| Error::file(parent, error))?;
    }
    let cut = match args.sentences {
        Cut::Whole => Sentences::Whole,
        Cut::Lines => Sentences::Lines,
        Cut::Unicode => Sentences::Unicode,
    };
    let config = EncodeConfig::new().with_sentences(cut).with_held_out(args.held_out);
    config.validate()?;
    let mut documents = Documents::open(args.files.clone(), form)?;
    let (tokens, first) = Tokens::open(&args.tokens, &config, &mut documents)?;
    let config = config.with_end(args.end.as_deref().map(|end| tokens.piece(end)).transpose()?);
    let read = first.into_iter().map(Ok).chain(documents.map(|document| Ok::<Document, Error>(document?)));
    let (encoded, corpora) = config.write_unpublished(&args.out, &tokens.encoder, read)?;
    let learned = tokens.write(&args.out)?;
    let written = written(args, learned.as_ref().map(|(path, _)| path));
    let (learned, tokenizer) = learned.unzip();
    // Before the others: old held-out texts would be judged on while a new corpus has them to train on.
    for old in before.iter().filter(|path| !written.contains(path)) {
        std::fs::remove_file(old).map_err(|error| Error::file(old, error))?;
    }
    publish_all(tokenizer.into_iter().chain(corpora))?;
    if let Some(path) = learned {
        println!("{}: {} pieces, learned", path.display(), tokens.encoder.vocab_size());
    }
    tell(&args.out, &encoded.train);
    encoded.held_out.iter().for_each(|held_out| tell(&held_out_prefix(&args.out), held_out));
    let (all, unknown) = (encoded.train.tokens + encoded.held_out.map_or(0, |written| written.tokens), encoded.unknown);
    if unknown > 0 {
        println!("{unknown} of {all} tokens stand for what the tokenizer does not know");
    }
    if encoded.empty > 0 {
        println!("{} documents have no token, and were left out", encoded.empty);
    }
    Ok(())
}

/// All files that a corpus of this name may have.
fn of_corpus(args: &Args) -> Vec<PathBuf> {
    let files = write::files(&args.out).into_iter().chain(write::files(held_out_prefix(&args.out)));
    files.chain(args.tokens.files(&args.out)).collect()
}

/// Those of them that are written.
fn written(args: &Args, tokenizer: Option<&PathBuf>) -> Vec<PathBuf> {
    let held_out = args.held_out.map(|_| write::files(held_out_prefix(&args.out)));
    let files = write::files(&args.out).into_iter().chain(held_out.into_iter().flatten());
    files.chain(tokenizer.cloned()).collect()
}

fn tell(prefix: &std::path::Path, written: &Written) {
    let Written { documents, sequences, tokens } = written;
    let [bin, idx] = write::files(prefix).map(|path| path.display().to_string());
    println!("{bin}, {idx}: {documents} documents, {sequences} sequences, {tokens} tokens");
}
