//! Trains a BERT over pipeline stages to answer questions about texts.
//!
//! ```text
//! cargo run --release --example bert_squad                                  # learns the answers to 70 questions by heart
//! cargo run --release --example bert_squad -- --data train-v1.1.json --valid dev-v1.1.json \
//!     --weights bert-base-uncased --vocab bert-base-uncased/vocab.txt --out out/squad
//! ```
//!
//! - `args`: the command line, and the configuration it makes.
//! - `task`: what is learned: questions as rows of tokens, and how predictions are scored.
//! - `run`: what every rank does.

mod args;
#[path = "../corpora/out.rs"]
mod out;
mod run;
mod task;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use epl::comm::CountingAllocator;
use epl::trainer::StopHandle;

use args::Args;
use out::Folder;
use task::Task;

/// So that a profile tells what segments store, and `gradient_checkpoint.budget` can be kept.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

fn main() -> ExitCode {
    train(&Args::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(error.downcast_ref().map_or(1, epl::Error::exit_code))
    })
}

fn train(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let task = Task::prepare(args)?;
    let config = args.config(task.train.rows.len())?;
    let start = args.start(&task.tokenizer)?;
    let folder = Folder::of(&config, args.data.is_none(), args.plan)?;
    let settings = run::Settings { folder, plan: args.plan, stop: StopHandle::on_signals()? };
    let ends = epl::launch(&config, |epl| run::rank(&epl, &task, &start, &settings))?;
    // The same on all ranks.
    let code = ends.first().map_or(ExitCode::SUCCESS, |(_, code)| *code);
    // The last line of the run: what the predictions are worth.
    if let Some(line) = ends.into_iter().find_map(|(line, _)| line) {
        println!("{line}");
    }
    Ok(code)
}
