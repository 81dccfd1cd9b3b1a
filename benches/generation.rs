//! What a model writes, token by token with a cache, against `transformers` with the same weights.
//!
//! ```text
//! pip install torch transformers
//! cargo bench --bench generation -- --python PYTHON [--only llama] [--rows 8] [--prompt 64] [--written 64] [--pairs 20]
//! taskset -c 0 cargo bench --bench generation -- --python PYTHON                                # one thread each
//! ```
//!
//! The weights are random, in a folder that both read; both write greedily behind the same prompts. They are programs of their
//! own, run in turn, on all cores that they may use. Of each model is printed the median over the pairs of the peer's time ÷
//! ours, with quartiles: of the whole, the prompt and what is written; and whether they wrote the same.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use burn::optim::SgdConfig;
use clap::Parser;
use epl::models::decoder::{self, DecoderConfig, DecoderExpertsConfig};
use epl::models::generation::{GenerationConfig, Generative, generate};
use epl::models::huggingface::Folder;
use epl::models::t5::{self, T5Config};
use epl::prelude::*;
use epl_benches::pairs::Lines;
use epl_benches::quartiles::quartiles;
use epl_benches::steps::peak_mib;

const ROWS: [&str; 5] = ["gpt2", "llama", "qwen3", "mixtral", "t5"];
const VOCAB: usize = 32_000;
/// Runs of one process; the first one does not count.
const RUNS: usize = 4;

#[derive(Parser)]
struct Args {
    /// A Python with torch and transformers; without it ours runs alone.
    #[arg(long)]
    python: Option<PathBuf>,
    /// Models by name: gpt2, llama, qwen3, mixtral, t5. Default: all
    #[arg(long)]
    only: Vec<String>,
    /// Prompts side by side.
    #[arg(long, default_value_t = 1)]
    rows: usize,
    /// Tokens of a prompt.
    #[arg(long, default_value_t = 64)]
    prompt: usize,
    /// Tokens that are written behind each.
    #[arg(long, default_value_t = 64)]
    written: usize,
    #[arg(long, default_value_t = 20)]
    pairs: usize,
    /// A folder that there is.
    #[arg(long, hide = true)]
    folder: Option<PathBuf>,
    /// `cargo bench` passes it.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Eight layers of 512.
fn decoder_of(name: &str) -> Option<DecoderConfig> {
    let llama = DecoderConfig::llama_like(VOCAB).with_d_ff(1408).with_kv_heads(Some(4));
    let config = match name {
        "gpt2" => DecoderConfig::new(VOCAB).with_d_ff(2048),
        "llama" => llama,
        "qwen3" => llama.with_qk_norm(true).with_tied_head(true),
        "mixtral" => llama.with_experts(Some(DecoderExpertsConfig::new(8))),
        _ => return None,
    };
    Some(config.with_layers(8).with_d_model(512).with_heads(8).with_positions(1024))
}

/// Writes a model of random weights.
fn export(name: &str, folder: &Path) -> epl::Result<()> {
    let config = Config::new();
    match decoder_of(name) {
        Some(shape) => {
            let parameters = epl::launch(&config, |epl| epl.build(|at| shape.init(at))?.parameters())?;
            Ok(decoder::export(&shape, &parameters[0], folder)?)
        }
        None => {
            let shape = T5Config::new(VOCAB).with_d_ff(2048).with_encoder_layers(8).with_decoder_layers(8);
            let parameters = epl::launch(&config, |epl| epl.build(|at| shape.init(at))?.parameters())?;
            Ok(t5::export(&shape, &parameters[0], folder)?)
        }
    }
}

impl Args {
    fn prompts(&self) -> Vec<Vec<i64>> {
        let token = |at: usize| 3 + (at * 7919 % (VOCAB - 3)) as i64;
        (0..self.rows).map(|row| (row * self.prompt..(row + 1) * self.prompt).map(token).collect()).collect()
    }

    /// The median of the runs in milliseconds, and what was written.
    fn timed<M: Generative>(&self, engine: &Engine<M>) -> epl::Result<(f64, Vec<Vec<i64>>)> {
        let (settings, prompts) = (GenerationConfig::new(self.written), self.prompts());
        let (mut took, mut written) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let start = Instant::now();
            written = generate(engine, &prompts, &settings)?;
            took.push(start.elapsed().as_secs_f64() * 1e3);
        }
        Ok((quartiles(took.split_off(1))[1], written))
    }

    /// One run of ours.
    fn ours(&self, folder: &Path) -> epl::Result<String> {
        let folder = Folder::open(folder)?;
        let is_t5 = folder.model_type()? == "t5";
        let run = |epl: Epl| {
            let settings = EngineSettings::from_config(epl.config());
            if is_t5 {
                let config = T5Config::from_huggingface(&folder)?;
                let built = epl.build(|at| config.init(at))?;
                let built = built.try_map(|model, plan| Ok(t5::load(model, plan.records(), &folder)?))?;
                return self.timed(&Engine::new(built, &SgdConfig::new(), settings)?);
            }
            let config = DecoderConfig::from_huggingface(&folder)?;
            let built = epl.build(|at| config.init(at))?;
            let built = built.try_map(|model, plan| Ok(decoder::load(model, plan.records(), &folder)?))?;
            self.timed(&Engine::new(built, &SgdConfig::new(), settings)?)
        };
        let (ms, written) = epl::launch(&Config::new(), run)?.swap_remove(0);
        let row = |tokens: &Vec<i64>| tokens.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        let tokens: usize = written.iter().map(Vec::len).sum();
        let written = written.iter().map(row).collect::<Vec<_>>().join(";");
        let per_second = tokens as f64 / ms * 1e3;
        Ok(format!("epl ms={ms:.1} tokens/s={per_second:.0} peak_mib={:.0} written={written}", peak_mib()))
    }

    fn numbers(&self) -> Vec<String> {
        let numbers = [("--rows", self.rows), ("--prompt", self.prompt), ("--written", self.written)];
        numbers.iter().flat_map(|(key, value)| [key.to_string(), value.to_string()]).collect()
    }

    fn against(&self, name: &str, folder: &Path, python: &Path) -> Result<(), String> {
        let ours = || {
            let mut command = Command::new(std::env::current_exe().unwrap_or_default());
            command.arg("--folder").arg(folder).args(self.numbers());
            command
        };
        let peer = || {
            let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/peers/generate_torch.py");
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let mut command = Command::new(python);
            command.arg(program).arg(folder).args(self.numbers()).args(["--threads", &threads.to_string()]);
            command
        };
        let lines = Lines::in_turn(self.pairs, ours, peer)?;
        let [low, ratio, high] = lines.ratio("ms");
        println!(
            "name={name} rows={} ours_ms={:.1} peer_ms={:.1} ratio={ratio:.3} quartiles={low:.3}-{high:.3} ours_mib={:.0} \
             peer_mib={:.0} pairs={} same_tokens={}",
            self.rows,
            lines.median(0, "ms"),
            lines.median(1, "ms"),
            lines.median(0, "peak_mib"),
            lines.median(1, "peak_mib"),
            self.pairs,
            lines.agree("written"),
        );
        Ok(())
    }

    fn run(&self) -> Result<(), String> {
        if let Some(name) = self.only.iter().find(|name| !ROWS.contains(&name.as_str())) {
            return Err(format!("there is no row {name:?}; there are {ROWS:?}"));
        }
        if [self.rows, self.prompt, self.written, self.pairs].contains(&0) {
            return Err("give no --rows, --prompt, --written or --pairs of 0".into());
        }
        if let Some(folder) = &self.folder {
            println!("{}", self.ours(folder).map_err(|error| error.to_string())?);
            return Ok(());
        }
        for name in ROWS.into_iter().filter(|name| self.only.is_empty() || self.only.iter().any(|only| only == name)) {
            let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
            export(name, folder.path()).map_err(|error| error.to_string())?;
            match &self.python {
                Some(python) => self.against(name, folder.path(), python)?,
                None => println!("name={name} {}", self.ours(folder.path()).map_err(|error| error.to_string())?),
            }
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    match Args::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
