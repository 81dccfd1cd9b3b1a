//! The layout that a cluster would train a model with fastest, for clusters that are not there.
//!
//! ```text
//! cargo run --release --example plan -- --model gpt-175b                      # on its own cluster: 128 hosts of eight A100
//! cargo run --release --example plan -- --model zero-7.5b --set dist.tensor_parallel_size=1
//! cargo run --release --example plan -- --model gpt-175b --cluster my.toml --rows 512 --set dist.tensor_parallel_size=4
//! ```
//!
//! A step is simulated, operation by operation, from what layers compute, hold and send; products are as fast as the cluster's
//! description says.
//!
//! - `transformer`: such layers, as numbers.
//! - `papers`: models of papers, with what these chose.

mod papers;
mod transformer;

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use epl::config::Layers;
use epl::cost::Machine;
use epl::search::search_on_paper;

use papers::PaperModel;
use transformer::Transformer;

/// Search a layout for a model on a cluster that is described.
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    /// The model
    #[arg(long, value_enum)]
    model: PaperModel,
    /// A file that describes the cluster, in place of the model's own
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Layers, in place of the model's own
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Sequences of a step
    #[arg(long, value_name = "N")]
    rows: Option<usize>,
    /// An option of the configuration that is given, such as dist.tensor_parallel_size=8
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

fn main() -> epl::Result<()> {
    let args = Args::parse();
    let machine = match &args.cluster {
        Some(file) => Machine::load(file)?,
        None => Machine::from_toml(args.model.cluster())?,
    };
    let config = Layers::new().flags([("auto.auto_parallel", Some(true))])?.command_line(&args.settings)?.resolve()?;
    let model = args.model.transformer();
    let model = Transformer { layers: args.layers.unwrap_or(model.layers), ..model };
    let task = model.task(args.rows.unwrap_or(args.model.rows()));
    println!(
        "{}: {:.1} billion parameters, {} sequences a step",
        args.model.name(),
        model.parameters() / 1e9,
        task.rows
    );
    let begin = Instant::now();
    let found = search_on_paper(&config, &machine, &task, |tensor, expert| model.segments(tensor, expert))?;
    let seconds = begin.elapsed().as_secs_f64();
    println!("{found}");
    let ranks = machine.cluster()?.world_size() as f64;
    let useful = model.flops(task.rows) / found.best().seconds() / ranks / 1e12;
    println!("{useful:.0} teraFLOP/s of the model's own products a device; found in {seconds:.1} s");
    println!("{}", args.model.told());
    Ok(())
}
