//! One name for the programs of EPL.
//!
//! ```text
//! epl new mine                            a project with the smallest program, its options and a test
//! epl launch --num_workers 2 -- mine      epl-launch
//! epl plan zero.level=v1 -- mine           what a program would need, without a step
//! epl plan --model llama3-8b cluster.ranks=8
//! epl calibrate cluster.ranks=2           this cluster, measured and described, for plans of larger ones
//! epl ckpt list out/numbers               epl-ckpt
//! epl corpus texts --out data/t …         epl-corpus
//! epl trace out/trace*.json --out all.json   one trace of those of several processes
//! epl plot out/a out/b --out both.svg     the losses of several runs in one picture
//! epl completions bash                    for a shell
//! ```
//!
//! `epl NAME …` runs `epl-NAME`, which lies beside this program or on the path, as cargo and git do.

mod calibrate;
mod completions;
mod model;
mod new;
mod plan;

use std::ffi::OsString;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};
use clap_complete::Shell;

#[derive(Parser)]
#[command(name = "epl", version, about = "Trains Burn models across many devices")]
#[command(after_help = "`epl launch`, `epl ckpt` and `epl corpus` run epl-launch, epl-ckpt and epl-corpus.")]
struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Makes a project with the smallest program, its options and a test.
    New {
        /// The folder, whose last part is the project's name.
        path: PathBuf,
        /// The folder of EPL's sources. Default: where this program was built from
        #[arg(long, value_name = "DIR")]
        epl: Option<PathBuf>,
    },
    /// Prints the plan of a program: its layout, what each rank needs, and where a cluster is described, a step's time.
    ///
    /// The program is run until it has built its engine: nothing is drawn, and no step is made.
    Plan(plan::Plan),
    /// Measures the devices and links that are here, and describes them in a file for `epl plan --cluster`, where counts may be larger.
    Calibrate(calibrate::Calibrate),
    /// Builds the engine of a known model: what `epl plan --model` runs.
    #[command(hide = true)]
    BuildModel(model::KnownModel),
    /// Joins the traces (profile.trace) of a run's processes, whose clocks it brings together.
    Trace {
        /// The file of each process, such as out/trace.json out/trace.worker1.json
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Where the trace of all goes, for Perfetto
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Draws what runs have logged of a number, such as the loss, as lines of one picture.
    Plot {
        /// The folder of each run, in which metrics.jsonl is
        #[arg(required = true, value_name = "RUN")]
        runs: Vec<PathBuf>,
        /// Where the picture goes, an SVG file
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// What metrics.jsonl calls the number, such as valid_loss, grad_norm or terms/NAME
        #[arg(long, value_name = "KEY", default_value = "loss")]
        key: String,
    },
    /// Prints a script that has a shell complete commands and options.
    ///
    /// Of bash it belongs into ~/.local/share/bash-completion/completions/epl.
    Completions {
        /// The shell.
        shell: Shell,
        /// Of another program, the options of the library, such as zero.level=, that it takes on its command line.
        #[arg(long = "for", value_name = "PROGRAM")]
        program: Option<String>,
    },
    #[command(external_subcommand)]
    Program(Vec<OsString>),
}

/// The programs that have short names here.
const PROGRAMS: [(&str, &str); 3] = [
    ("launch", "Starts the workers of a run, watches over them, and ends them together"),
    ("ckpt", "Looks into checkpoints"),
    ("corpus", "Makes a corpus of tokens"),
];

/// Joins traces, and says how well their clocks are known.
fn join(files: &[PathBuf], out: &Path) -> Result<(), String> {
    let uncertain = epl::probe::join_traces(files, out).map_err(|error| error.to_string())?;
    for (file, by) in files.iter().zip(uncertain).skip(1) {
        println!("{}: its clock is known to {by:.0} µs", file.display());
    }
    println!("{} holds all; open it at https://ui.perfetto.dev", out.display());
    Ok(())
}

/// Draws runs, and says so.
fn plot(runs: &[PathBuf], key: &str, out: &Path) -> Result<(), String> {
    epl::trainer::plot_runs(runs, key, out).map_err(|error| error.to_string())?;
    println!("{} shows {key} of {} runs", out.display(), runs.len());
    Ok(())
}

/// Prints the script of a shell.
fn complete(shell: Shell, program: Option<&str>) -> Result<(), String> {
    let script = match program {
        None => completions::of_epl(shell),
        Some(program) => completions::of_program(shell, program)?,
    };
    // Who reads may have read enough.
    let _ = stdout().write_all(script.as_bytes());
    Ok(())
}

/// Ends as `epl-NAME` does.
fn run(words: &[OsString]) -> Result<ExitCode, String> {
    let (name, arguments) = words.split_first().ok_or("give the name of a program")?;
    let program = format!("epl-{}{}", name.display(), std::env::consts::EXE_SUFFIX);
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(&program)));
    let found = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(&program));
    let status = Command::new(found).args(arguments).status().map_err(|error| {
        format!(
            "cannot run {program}: {error}; there are `epl new`, plan, calibrate, plot, trace and completions, and launch, ckpt and \
             corpus, whose programs `cargo install` puts beside this one: --path . for epl-ckpt and epl-corpus, --path \
             epl-launch for epl-launch"
        )
    })?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Action::New { path, epl } => new::project(&path, epl).map(|()| ExitCode::SUCCESS),
        Action::Plan(plan) => plan.print().map(|()| ExitCode::SUCCESS),
        Action::Calibrate(here) => here.measure().map(|()| ExitCode::SUCCESS).map_err(|error| error.to_string()),
        Action::BuildModel(known) => known.build().map(|()| ExitCode::SUCCESS).map_err(|error| error.to_string()),
        Action::Completions { shell, program } => complete(shell, program.as_deref()).map(|()| ExitCode::SUCCESS),
        Action::Trace { files, out } => join(&files, &out).map(|()| ExitCode::SUCCESS),
        Action::Plot { runs, out, key } => plot(&runs, &key, &out).map(|()| ExitCode::SUCCESS),
        Action::Program(words) => run(&words),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(2)
    })
}
