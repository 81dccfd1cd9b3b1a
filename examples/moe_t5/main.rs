//! Trains a T5 with mixture-of-experts layers across ranks.
//!
//! ```text
//! cargo run --release --example moe_t5                                     # English to German number words
//! cargo run --release --example moe_t5 -- --source train.en --target train.de \
//!     --valid-source val.en --valid-target val.de --out out/translation    # a parallel corpus
//! ```
//!
//! - `args`: the command line, and the configuration it makes.
//! - `task`: what is learned: a tokenizer, datasets, and how an evaluation is scored.
//! - `run`: what every rank does.

mod args;
#[path = "../corpora/out.rs"]
mod out;
mod run;
mod task;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use epl::trainer::StopHandle;

use args::Args;
use out::Folder;
use task::Task;

fn main() -> ExitCode {
    train(&Args::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(error.downcast_ref().map_or(1, epl::Error::exit_code))
    })
}

fn train(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let config = args.config()?;
    let folder = Folder::of(&config, !args.has_corpus(), args.plan)?;
    let task = Task::prepare(args, &config, &folder.path)?;
    let model = args.model(&task)?;
    let settings = run::Settings {
        folder,
        plan_only: args.plan,
        check_replicas: args.check_replicas,
        stop: StopHandle::on_signals()?,
    };
    let ends = epl::launch(&config, |epl| run::rank(&epl, &task, &model, &settings))?;
    // The same on all ranks.
    let code = ends.first().map_or(ExitCode::SUCCESS, |(_, code)| *code);
    // The last line of the run: what the evaluation at the end found.
    if let Some(line) = ends.into_iter().find_map(|(line, _)| line) {
        println!("{line}");
    }
    Ok(code)
}
