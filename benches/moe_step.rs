//! The step of a mixture-of-experts T5 by itself, in the words and sizes of `tools/peers/moe_t5_torch.py`, on any device.
//!
//! ```text
//! cargo bench --bench moe_step -- [--ranks 1] [--steps 10] [--dtype bf16] [--d-model 256] [--batch 16] …
//! BURN_DEVICE=cuda …                                                            # on a GPU: `tools/gpu.sh`
//! ```
//!
//! Prints the median of the steps after the first two, tokens of source and target a second, and the floating-point
//! operations of the model's products a second (a backward counts as two forwards), with their share of `--peak`.

use std::time::Instant;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::AdamWConfig;
use clap::Parser;
use epl::config::Config;
use epl::models::t5::{T5Batch, T5Batcher, T5Config, T5MoeConfig};
use epl::models::text::TokenPair;
use epl::{Engine, EngineSettings, Epl, Result};
use epl_benches::quartiles::quartiles;

#[derive(Parser)]
struct Args {
    /// Ranks, which divide the rows. Each has all experts, as the ranks of the PyTorch program have.
    #[arg(long, default_value_t = 1)]
    ranks: usize,
    #[arg(long, default_value_t = 10)]
    steps: usize,
    #[arg(long, default_value_t = 8000)]
    vocab: usize,
    #[arg(long, default_value_t = 256)]
    d_model: usize,
    #[arg(long, default_value_t = 32)]
    d_kv: usize,
    #[arg(long, default_value_t = 8)]
    heads: usize,
    #[arg(long, default_value_t = 1024)]
    d_ff: usize,
    /// Of the encoder, and of the decoder.
    #[arg(long, default_value_t = 4)]
    layers: usize,
    #[arg(long, default_value_t = 8)]
    experts: usize,
    /// Rows of a step, of all ranks.
    #[arg(long, default_value_t = 16)]
    batch: usize,
    /// Tokens of a row, of the source and of the target.
    #[arg(long, default_value_t = 64)]
    seq: usize,
    /// `f32`, or `f16` or `bf16` in mixed precision.
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// What the devices of all ranks can compute, in TFLOP/s.
    #[arg(long)]
    peak: Option<f64>,
    /// `cargo bench` passes it.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Args {
    fn config(&self) -> Result<Config> {
        let config = Config::new().with("dist.data_parallel_size", self.ranks)?;
        match self.dtype.as_str() {
            "f32" => Ok(config),
            half => Ok(config.with("amp.level", "O1")?.with("amp.dtype", half)?),
        }
    }

    fn model(&self) -> T5Config {
        let moe = T5MoeConfig::new(self.experts).with_encoder_sparse_step(2).with_decoder_sparse_step(2);
        T5Config::new(self.vocab)
            .with_d_model(self.d_model)
            .with_d_kv(self.d_kv)
            .with_heads(self.heads)
            .with_d_ff(self.d_ff)
            .with_encoder_layers(self.layers)
            .with_decoder_layers(self.layers)
            .with_dropout(0.0)
            .with_moe(Some(moe))
    }

    /// The rows of this rank.
    fn rows(&self, epl: &Epl) -> (T5Batch, Vec<u64>) {
        let token = |at: usize| 2 + (at * 7919 % (self.vocab - 2)) as i64;
        let sentence = |from: usize| (from..from + self.seq - 1).map(token).chain([1]).collect::<Vec<_>>();
        let rows = epl::comm::shard_range(self.batch, epl.context().data().size(), epl.context().data().rank());
        let pair = |row: usize| TokenPair { source: sentence(row * 64), target: sentence(row * 64 + 31) };
        let batch = T5Batcher::new(&self.model()).batch(rows.clone().map(pair).collect(), epl.place().device());
        (batch, rows.map(|row| row as u64).collect())
    }

    /// Floating-point operations of a step's products, without the capacity that experts leave empty.
    fn operations(&self) -> f64 {
        let [d, inner, ff, experts] = [self.d_model, self.heads * self.d_kv, self.d_ff, self.experts].map(|n| n as f64);
        let (seq, vocab) = (self.seq as f64, self.vocab as f64);
        let attention = 2.0 * 4.0 * d * inner + 2.0 * 2.0 * seq * inner;
        let sparse = (self.layers / 2) as f64;
        // Two experts a token, and the router.
        let feed_forward = (self.layers as f64 - sparse) * 4.0 * d * ff + sparse * (8.0 * d * ff + 2.0 * d * experts);
        let of_a_token = 3.0 * self.layers as f64 * attention + 2.0 * feed_forward + 2.0 * d * vocab;
        3.0 * of_a_token * (self.batch * self.seq) as f64
    }
}

/// Seconds of each step, and the last loss.
fn steps(args: &Args, epl: &Epl) -> Result<(Vec<f64>, f64, usize)> {
    let settings = EngineSettings { clip_norm: Some(1.0), ..EngineSettings::from_config(epl.config()) };
    let built = epl.build(|at| args.model().init(at))?;
    let parameters = built.plan().records().iter().map(|record| record.global_shape.iter().product::<usize>()).sum();
    let mut engine = Engine::new(built, &AdamWConfig::new(), settings)?;
    let (batch, samples) = args.rows(epl);
    let mut seconds = Vec::new();
    let mut loss = f64::NAN;
    for _ in 0..args.steps {
        let start = Instant::now();
        let report = engine.step(vec![epl::MicroBatch::new(batch.clone(), samples.clone())], 1e-4)?;
        // The norm was read, so all of the step but its update is over; the next one begins with that.
        seconds.push(start.elapsed().as_secs_f64());
        loss = report.loss;
    }
    Ok((seconds, loss, parameters))
}

fn main() -> Result<()> {
    let args = Args::parse();
    let mut ranks = epl::launch(&args.config()?, |epl| steps(&args, &epl))?;
    let (seconds, loss, parameters) = ranks.swap_remove(0);
    let median = quartiles(seconds[2.min(seconds.len() - 1)..].to_vec())[1];
    let tflops = args.operations() / median / 1e12;
    let share = args.peak.map_or(String::new(), |peak| format!(" mfu={:.1}%", 100.0 * tflops / peak));
    let tokens = 2.0 * (args.batch * args.seq) as f64 / median;
    let (ranks, dtype) = (args.ranks, &args.dtype);
    println!(
        "epl ranks={ranks} dtype={dtype} params={parameters} ms={:.1} tokens/s={tokens:.0} tflop/s={tflops:.3}{share} loss={loss:.3}",
        median * 1e3
    );
    Ok(())
}
