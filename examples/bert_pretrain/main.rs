//! Pretrains a BERT: whole words are hidden, and two texts stand in their order or have changed places.
//!
//! ```text
//! cargo run --release --example bert_pretrain                                            # texts by rule, two replicas
//! cargo run --release --example bert_pretrain -- --set dist.tensor_parallel_size=2
//! cargo run --release --example bert_pretrain -- --text books.txt.gz --pieces 8000 --model base --length 128 --short 0.1 --out out/books
//! ```
//!
//! - `args`: the command line, and the configuration it makes.
//! - `rule`: texts by rule.
//! - `knower`: what a reader reaches who knows the rule.
//! - `data`: the vocabulary, and rows of the corpora in files.
//! - `run`: what every rank does.

mod args;
#[path = "../corpora/mod.rs"]
mod corpora;
mod data;
mod knower;
mod rule;
mod run;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use epl::trainer::StopHandle;

use args::Args;
use corpora::out::Folder;
use data::Data;

fn main() -> ExitCode {
    train(&Args::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(error.downcast_ref().map_or(1, epl::Error::exit_code))
    })
}

fn train(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let config = args.config()?;
    let folder = Folder::of(&config, args.is_by_rule(), args.plan)?;
    args.check()?;
    let data = Data::prepare(args, config.train.seed, &folder.path)?;
    let model = args.model(data.pieces.vocab_size(), data.pieces.pad())?;
    let settings = run::Settings { folder, plan: args.plan };
    let stop = StopHandle::on_signals()?;
    let ends = epl::launch(&config, |epl| run::rank(&epl, &data, &model, &settings, &stop))?;
    // The same on all ranks.
    let code = ends.first().map_or(ExitCode::SUCCESS, |(_, code)| *code);
    if let Some(line) = ends.into_iter().find_map(|(line, _)| line) {
        println!("{line}");
    }
    Ok(code)
}
