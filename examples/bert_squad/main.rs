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
mod run;
mod task;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use epl::comm::CountingAllocator;
use epl::trainer::Stop;

use args::Args;
use task::Task;

/// So that a profile tells what segments store, and `gradient_checkpoint.budget` can be kept.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

fn main() -> ExitCode {
    match train(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn train(args: &Args) -> Result<(), Box<dyn Error>> {
    let task = Task::prepare(args)?;
    let config = args.config(task.train.rows.len())?;
    let start = args.start(&task.tokenizer)?;
    let stop = Stop::on_signals()?;
    let results = epl::launch(&config, |epl| run::rank(&epl, &task, &start, args, &stop))?;
    // The last line of the run: what the predictions are worth.
    if let Some(result) = results.into_iter().flatten().next() {
        println!("{result}");
    }
    Ok(())
}
