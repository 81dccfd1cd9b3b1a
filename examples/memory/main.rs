//! How many bytes a rank needs, byte by byte, without allocating the model.
//!
//! ```text
//! cargo run --release --example memory -- --model hf_t5_base --data 8 --zero v2 --rows 8 --budget 4
//! cargo run --release --example memory -- --paper zero-7.5b
//! cargo run --release --example memory -- --paper moe-10t
//! ```
//!
//! - `paper`: ZeRO's example, and a model of ten trillion parameters on 512 devices.

mod paper;

use std::process::ExitCode;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use clap::{Parser, ValueEnum};
use epl::comm::CountingAllocator;
use epl::memory::Table;
use epl::models::t5::{T5Batch, T5Batcher, T5Config};
use epl::models::text::TokenPair;
use epl::prelude::*;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Estimate the memory of a rank.
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    /// An example on paper
    #[arg(long, value_enum)]
    paper: Option<Paper>,
    /// The model, by name
    #[arg(long, value_name = "NAME", default_value = "hf_t5_base")]
    model: String,
    /// Replicas of the model
    #[arg(long, value_name = "D", default_value_t = 1)]
    data: usize,
    /// Ranks that share each split layer
    #[arg(long, value_name = "T", default_value_t = 1)]
    tensor: usize,
    /// Pipeline stages
    #[arg(long, value_name = "P", default_value_t = 1)]
    stages: usize,
    /// Data ranks that share the experts
    #[arg(long, value_name = "E", default_value_t = 1)]
    expert: usize,
    /// What is sharded: v0, v1, v2, v3
    #[arg(long, value_name = "LEVEL", default_value = "")]
    zero: String,
    /// Where state lies: host memory (v0), files (v1)
    #[arg(long, value_name = "LEVEL", default_value = "", value_parser = ["", "v0", "v1"])]
    offload: String,
    /// An option of the configuration, such as gradient_checkpoint.type=auto
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Rows of a micro-batch
    #[arg(long, value_name = "N", default_value_t = 8)]
    rows: usize,
    /// Tokens of a row, of the source and of the target
    #[arg(long, value_name = "N", default_value_t = 128)]
    tokens: usize,
    /// The rank that is asked for
    #[arg(long, value_name = "R", default_value_t = 0)]
    rank: usize,
    /// GB (10⁹ bytes) of a device: whether it fits, and if not, with which setting it would
    #[arg(long, value_name = "GB")]
    budget: Option<f64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Paper {
    /// 7.5 billion parameters on 64 devices, of ZeRO's paper
    #[value(name = "zero-7.5b")]
    Zero,
    /// A mixture of experts of 10 trillion parameters on 512 devices of 32 GB
    #[value(name = "moe-10t")]
    Moe,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let printed = match args.paper {
        Some(Paper::Zero) => {
            paper::zero();
            Ok(())
        }
        Some(Paper::Moe) => paper::moe(),
        None => table(&args),
    };
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Rows of so many tokens.
fn batch(config: &T5Config, rows: usize, tokens: usize, device: &Device) -> T5Batch {
    let token = |at: usize| 2 + (at * 7919 % (config.vocab - 2)) as i64;
    let sentence = |from: usize| (from..from + tokens).map(token).collect::<Vec<_>>();
    let pair = |row: usize| TokenPair { source: sentence(row * 64), target: sentence(row * 64 + 31) };
    T5Batcher::new(config).batch((0..rows).map(pair).collect(), device)
}

/// The table of one rank of a T5.
fn table(args: &Args) -> Result<()> {
    let model = T5Config::preset(&args.model).map_err(|error| Error::invalid(error.to_string()))?;
    let mut config = Config::new()
        .with("dist.data_parallel_size", args.data)?
        .with("dist.tensor_parallel_size", args.tensor)?
        .with("dist.pipeline_parallel_size", args.stages)?
        .with("dist.expert_parallel_size", args.expert)?
        .with("zero.level", &*args.zero)?
        .with("offload.level", &*args.offload)?;
    for setting in &args.settings {
        let (key, value) =
            setting.split_once('=').ok_or_else(|| Error::invalid(format!("{setting:?} is no KEY=VALUE")))?;
        config = match value.parse::<i64>() {
            Ok(number) => config.with(key, number)?,
            Err(_) => config.with(key, value)?,
        };
    }
    let ((), _) = epl::launch_dry(&config, args.rank, |epl| {
        let planned = epl.plan(|at| model.init(at))?;
        let activations = planned.activations([1, 2], |rows, device| batch(&model, rows, args.tokens, device))?;
        let memory = planned.memory(&AdamWConfig::new())?;
        let memory = memory.with_activations(activations.as_ref(), args.rows);
        let (plan, estimate) = (planned.plan(), memory.estimate()?);
        println!("{}: {} parameters, {} on rank {}", args.model, plan.num_params(), plan.num_params_held(), args.rank);
        println!("{}", plan.mesh.to_string().lines().next().unwrap_or_default());
        println!("AdamW, {} micro-batches of {} rows of {} tokens\n", plan.micro_batches, args.rows, args.tokens);
        print!("{}", Table { estimate: &estimate, ranks: 1 });
        match args.budget {
            Some(budget) => memory.check((budget * 1e9) as u64).map(|_| println!("\nit fits into {budget} GB")),
            None => Ok(()),
        }
    })?;
    Ok(())
}
