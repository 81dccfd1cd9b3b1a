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
mod run;
mod task;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use epl::trainer::Stop;

use args::Args;
use task::Task;

fn main() -> ExitCode {
    let args = Args::parse();
    match train(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn train(args: &Args) -> Result<(), Box<dyn Error>> {
    let config = args.config()?;
    let out = args.out()?;
    let task = Task::prepare(args, &config, &out)?;
    let model = args.model(&task)?;
    let settings = run::Settings {
        out,
        plan_only: args.plan,
        resume: args.resume,
        replace: args.replace(),
        check_replicas: args.check_replicas,
        stop: Stop::on_signals()?,
    };
    let results = epl::launch(&config, |epl| run::rank(&epl, &task, &model, &settings))?;
    // The last line of the run: what the evaluation at the end found.
    if let Some(result) = results.into_iter().flatten().next() {
        println!("{result}");
    }
    Ok(())
}
