//! Steps of models, against PyTorch's eager ones or by themselves, on any device.
//!
//! ```text
//! pip install torch transformers
//! cargo bench --bench against_torch -- --python PYTHON [--only bert] [--set hidden_size=512] [--pairs 20] [--compile]
//! cargo bench --bench against_torch -- --dtype bf16 --against-f32 [--pairs 30]                       # ours in f32 is the peer
//! cargo bench --bench against_torch -- --only moe_t5 --steps 20 [--dtype bf16] [--peak 989]          # ours alone
//! BURN_DEVICE=cuda …                                                                    # on a GPU: `tools/gpu.sh`
//! ```
//!
//! Both are programs of their own, run in turn, each on all cores that it may use (`taskset -c 0,1 cargo bench …` gives fewer),
//! with as many rows, without dropout; the peers are those of
//! `tools/peers`. Of each name is printed the median over the pairs of the peer's time ÷ ours, with quartiles; what share of our
//! step the products would take at the speed of a large product on the same threads; and the most memory that each held.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;
use epl_benches::pairs::Lines;
use epl_benches::speed::product_speed;
use epl_benches::steps::{Sizes, Step};

/// A row: its name, the model and its ranks.
const ROWS: [(&str, &str, usize); 10] = [
    ("moe_t5", "moe_t5", 1),
    ("moe_t5_2", "moe_t5", 2),
    ("t5", "t5", 1),
    ("bert", "bert", 1),
    ("bert_2", "bert", 2),
    ("resnet50", "resnet50", 1),
    ("gpt2", "gpt2", 1),
    ("llama", "llama", 1),
    ("mixtral", "mixtral", 1),
    ("vit", "vit", 1),
];

#[derive(Parser)]
struct Args {
    /// A Python with torch and transformers; without it ours runs alone.
    #[arg(long)]
    python: Option<PathBuf>,
    /// Rows by name: moe_t5, moe_t5_2 (two ranks), t5, bert, bert_2, resnet50, gpt2, llama, mixtral, vit. Default: all
    #[arg(long)]
    only: Vec<String>,
    #[command(flatten)]
    sizes: Sizes,
    #[arg(long, default_value_t = 20)]
    pairs: usize,
    /// Steps of a run; the first two do not count.
    #[arg(long, default_value_t = 7)]
    steps: usize,
    /// PyTorch under `torch.compile`.
    #[arg(long, requires = "python")]
    compile: bool,
    /// Ours in f32 takes PyTorch's place.
    #[arg(long, conflicts_with = "python")]
    against_f32: bool,
    /// What the devices of all ranks can compute, in TFLOP/s.
    #[arg(long)]
    peak: Option<f64>,
    /// `cargo bench` passes it.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Args {
    fn rows(&self) -> Result<Vec<(&'static str, Step)>, String> {
        if let Some(name) = self.only.iter().find(|name| !ROWS.iter().any(|(known, ..)| known == name)) {
            return Err(format!("there is no row {name:?}; there are {:?}", ROWS.map(|(name, ..)| name)));
        }
        if self.python.is_some() && (self.sizes.dtype == "f16" || std::env::var("BURN_DEVICE").is_ok()) {
            return Err("PyTorch is compared on the CPU, in f32 or bf16: leave BURN_DEVICE out".into());
        }
        if self.pairs == 0 || self.against_f32 && self.sizes.dtype == "f32" {
            return Err("give --pairs 1 at least, and with --against-f32 a --dtype of 16 bits".into());
        }
        let chosen = ROWS.iter().filter(|(name, ..)| self.only.is_empty() || self.only.iter().any(|only| only == name));
        let step =
            |(name, model, ranks): &(&'static str, &str, usize)| (*name, self.sizes.step(model, *ranks, self.steps));
        let rows: Vec<_> = chosen.map(step).collect();
        rows.iter().try_for_each(|(_, step)| step.check()).map_err(|error| error.to_string())?;
        Ok(rows)
    }

    /// One run of ours.
    fn ours(&self, step: &Step) -> Result<String, String> {
        let took = step.run().map_err(|error| error.to_string())?;
        let Step { model, ranks, dtype, .. } = step;
        let mut line = format!(
            "epl model={model} ranks={ranks} dtype={dtype} params={} ms={:.1} peak_mib={:.0} items/s={:.0} loss={:.3}",
            took.parameters,
            took.seconds * 1e3,
            took.peak_mib,
            took.items as f64 / took.seconds,
            took.loss
        );
        if let Some(operations) = took.operations {
            let speed = operations / took.seconds;
            line += &format!(" tflop/s={:.3}", speed / 1e12);
            if let Some(peak) = self.peak {
                line += &format!(" mfu={:.1}%", 100.0 * speed / peak / 1e12);
            }
            if std::env::var("BURN_DEVICE").is_err() {
                line += &format!(" products_share={:.2}", speed / 1e9 / product_speed());
            }
        }
        Ok(line)
    }

    /// Ours as a process of its own.
    fn worker(&self, name: &str, step: &Step) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap_or_default());
        command.args(["--only", name, "--dtype", &step.dtype]);
        for (key, value) in [("--steps", step.steps), ("--batch", step.batch), ("--seq", step.seq)] {
            command.args([key, &value.to_string()]);
        }
        for (key, value) in &step.set {
            command.args(["--set", &format!("{key}={value}")]);
        }
        command
    }

    fn peer(&self, python: &Path, step: &Step) -> Command {
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/peers");
        let is_moe = step.model == "moe_t5";
        let threads = (std::thread::available_parallelism().map_or(1, usize::from) / step.ranks).max(1);
        let mut command = Command::new(python);
        command.arg(peers.join(if is_moe { "moe_t5_torch.py" } else { "step_torch.py" }));
        if !is_moe {
            command.arg(&step.model);
        }
        let numbers = [
            ("--ranks", step.ranks),
            ("--threads", threads),
            ("--steps", step.steps),
            ("--batch", step.batch),
            ("--seq", step.seq),
        ];
        for (key, value) in numbers {
            command.args([key, &value.to_string()]);
        }
        for (key, value) in &step.set {
            match is_moe {
                true => command.args([format!("--{}", key.replace('_', "-")), value.to_string()]),
                false => command.args(["--set", &format!("{key}={value}")]),
            };
        }
        if matches!(step.model.as_str(), "resnet50" | "vit") {
            command.args(["--set", &format!("image_size={}", step.seq)]);
        }
        match (step.dtype.as_str(), is_moe) {
            ("f32", _) => {}
            (dtype, true) => drop(command.args(["--dtype", dtype])),
            (_, false) => drop(command.arg("--bf16")),
        }
        if self.compile {
            command.arg("--compile");
        }
        command
    }

    /// Alternates both.
    fn against(&self, name: &str, step: &Step, peer: impl Fn() -> Command) -> Result<(), String> {
        let lines = Lines::in_turn(self.pairs, || self.worker(name, step), peer)?;
        let [low, ratio, high] = lines.ratio("ms");
        println!(
            "name={name} ours_ms={:.1} peer_ms={:.1} ratio={ratio:.3} quartiles={low:.3}-{high:.3} products_share={:.2} \
             ours_mib={:.0} peer_mib={:.0} pairs={} params={:.0}/{:.0}",
            lines.median(0, "ms"),
            lines.median(1, "ms"),
            lines.median(0, "products_share"),
            lines.median(0, "peak_mib"),
            lines.median(1, "peak_mib"),
            self.pairs,
            lines.median(0, "params"),
            lines.median(1, "params"),
        );
        Ok(())
    }
}

fn run(args: &Args) -> Result<(), String> {
    for (name, step) in args.rows()? {
        let in_f32 = Step { dtype: "f32".into(), ..step.clone() };
        match &args.python {
            Some(python) => args.against(name, &step, || args.peer(python, &step))?,
            None if args.against_f32 => args.against(name, &step, || args.worker(name, &in_f32))?,
            None => println!("{}", args.ours(&step)?),
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
