//! Trains a ResNet across ranks to classify images.
//!
//! ```text
//! cargo run --release --example resnet                                   # coloured shapes, 20 classes, two ranks
//! cargo run --release --example resnet -- --model resnet18 --images flowers/train --valid flowers/valid \
//!     --augment rand --out out/flowers                                   # a folder of images, a folder a class
//! cargo run --release --example resnet -- --cifar10 cifar-10-batches-bin
//! ```
//!
//! - `args`: the command line, and the configuration it makes.
//! - `images`: what is learned: the images and their classes.
//! - `run`: what every rank does.

mod args;
#[path = "../images/mod.rs"]
mod images;
mod run;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use epl::trainer::StopHandle;

use args::Args;

fn main() -> ExitCode {
    train(&Args::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(error.downcast_ref().map_or(1, epl::Error::exit_code))
    })
}

fn train(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let config = args.config()?;
    let task = args.data.task(&config)?;
    let model = args.model(task.classes)?;
    let stop = StopHandle::on_signals()?;
    let ends = epl::launch(&config, |epl| run::rank(&epl, &task, &model, args, &stop))?;
    // The same on all ranks.
    let code = ends.first().map_or(ExitCode::SUCCESS, |(_, code)| *code);
    // The last line of the run: what the evaluation at the end found.
    if let Some(line) = ends.into_iter().find_map(|(line, _)| line) {
        println!("{line}");
    }
    Ok(code)
}
