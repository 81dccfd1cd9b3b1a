//! Trains a ResNet across ranks to classify images.
//!
//! ```text
//! cargo run --release --example resnet                                   # coloured shapes, 20 classes, two ranks
//! cargo run --release --example resnet -- --model resnet18 --images flowers/train --valid flowers/valid \
//!     --variants 10 --out out/flowers                                    # a folder of images, a folder a class
//! ```
//!
//! - `args`: the command line, and the configuration it makes.
//! - `task`: what is learned: the images and their classes.
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
    match train(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn train(args: &Args) -> Result<(), Box<dyn Error>> {
    let config = args.config()?;
    let task = Task::prepare(args, &config)?;
    let model = args.model(task.classes.len())?;
    let stop = Stop::on_signals()?;
    let results = epl::launch(&config, |epl| run::rank(&epl, &task, &model, args, &stop))?;
    // The last line of the run: what the evaluation at the end found.
    if let Some(result) = results.into_iter().flatten().next() {
        println!("{result}");
    }
    Ok(())
}
