//! Trains a decoder on text that is packed into blocks.
//!
//! ```text
//! cargo run --release --example pretrain                                             # 20 MB by rule
//! cargo run --release --example pretrain -- --model mixtral --set dist.expert_parallel_size=2
//! cargo run --release --example pretrain -- --text corpus.txt.gz --vocab 8000 --layers 6 --d-model 256 --length 256
//! ```
//!
//! - `args`: the command line, and the configuration it makes.
//! - `rule`: a text by rule, of which it is known how well it can be foretold.
//! - `data`: the tokenizer, and the corpora in files.
//! - `run`: what every rank does.

mod args;
#[path = "../corpora/mod.rs"]
mod corpora;
mod data;
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
    let data = Data::prepare(args, config.train.seed, &folder.path)?;
    let eos = data.tokenizer.eos();
    // A text begins behind the end of another; what encodes a prompt ends it, and here it goes on.
    let begun = |tokens: Vec<i64>| [eos].into_iter().chain(tokens.into_iter().filter(|token| *token != eos)).collect();
    let texts = if args.prompt.is_empty() { vec![String::new()] } else { args.prompt.clone() };
    let prompts: Vec<Vec<i64>> = data.tokenizer.encode_batch(texts)?.into_iter().map(begun).collect();
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) + run::WRITTEN;
    let model = args.model(&data.tokenizer, longest);
    model.validate()?;
    let settings = run::Settings { folder, plan_only: args.plan, prompts, stop: StopHandle::on_signals()? };
    let ends = epl::launch(&config, |epl| run::rank(&epl, &data, &model, &settings))?;
    // The same on all ranks.
    let code = ends.first().map_or(ExitCode::SUCCESS, |(_, code)| *code);
    if let Some(line) = ends.into_iter().find_map(|(line, _)| line) {
        println!("{line}");
    }
    Ok(code)
}
