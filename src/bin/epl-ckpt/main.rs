//! Looks into checkpoints: what they hold, whether they are whole, where two differ.
//!
//! ```text
//! epl-ckpt list out/numbers                                   the checkpoints of a run
//! epl-ckpt list out/numbers/checkpoints/step-800 --tensors    what one holds
//! epl-ckpt verify out/numbers                                 reads every byte of all
//! epl-ckpt diff out/a/checkpoints/step-800 out/b/checkpoints/step-800
//! epl-ckpt export out/numbers/checkpoints/step-800 model.safetensors        one file, our names: a Burn record
//! epl-ckpt export out/numbers/checkpoints/step-800 numbers-t5 --as t5       a folder that `transformers` loads
//! ```
//!
//! Ends with 0 where all is well, with 1 where `list` of a run or `verify` finds a damaged checkpoint or two differ, with 2
//! where it could not look.

mod export;
mod list;
mod places;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use epl::checkpoint::{Checkpoint, compare};

#[derive(Parser)]
#[command(name = "epl-ckpt", version, about = "Looks into the checkpoints of EPL")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Tells what a checkpoint holds, or which ones a run has.
    List {
        /// The folder of a run, of its checkpoints, or of one checkpoint.
        path: PathBuf,
        /// Of one checkpoint, each tensor with its slices.
        #[arg(long)]
        tensors: bool,
    },
    /// Reads every byte of a checkpoint, or of all of a run, and compares the checksums.
    Verify {
        /// The folder of a run, of its checkpoints, or of one checkpoint.
        path: PathBuf,
    },
    /// Tells where two checkpoints differ, whatever layouts wrote them.
    Diff {
        /// The folder of a checkpoint.
        first: PathBuf,
        /// The folder of another one.
        second: PathBuf,
        /// Differences beyond so many are counted, not shown.
        #[arg(long, default_value_t = 40)]
        shown: usize,
    },
    /// Writes the parameters of a checkpoint for others, whatever layout wrote it.
    Export {
        /// The folder of a checkpoint.
        checkpoint: PathBuf,
        /// `NAME.safetensors` or `NAME.bpk`: one file with our names, which plain Burn loads. With `--as`: a new folder.
        to: PathBuf,
        /// The model, for a folder that `transformers` loads.
        #[arg(long = "as", value_name = "MODEL")]
        model: Option<export::Model>,
        /// The configuration of the model as JSON, where the run did not keep it.
        #[arg(long, value_name = "FILE", requires = "model")]
        config: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let mut out = io::stdout().lock();
    match run(Arguments::parse().command, &mut out) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        // Who reads has read enough.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// Why it could not look.
#[derive(Debug)]
enum Failure {
    Checkpoint(epl::Error),
    Export(epl::models::huggingface::Error),
    Output(io::Error),
}

impl From<epl::models::huggingface::Error> for Failure {
    fn from(error: epl::models::huggingface::Error) -> Self {
        Self::Export(error)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Checkpoint(error) => error.fmt(f),
            Self::Export(error) => error.fmt(f),
            Self::Output(error) => write!(f, "cannot write: {error}"),
        }
    }
}

impl From<epl::Error> for Failure {
    fn from(error: epl::Error) -> Self {
        Self::Checkpoint(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Whether all is well.
fn run(command: Command, out: &mut impl Write) -> Result<bool, Failure> {
    match command {
        Command::List { path, tensors } => list(&path, tensors, out),
        Command::Verify { path } => verify(&path, out),
        Command::Diff { first, second, shown } => diff(&first, &second, shown, out),
        Command::Export { checkpoint, to, model, config } => {
            export::export(&checkpoint, &to, model, config.as_deref())?;
            writeln!(out, "written: {}", to.display())?;
            Ok(true)
        }
    }
}

fn list(path: &Path, tensors: bool, out: &mut impl Write) -> Result<bool, Failure> {
    if let Some(named) = Checkpoint::find(path) {
        list::one(&Checkpoint::open(named)?, tensors, out)?;
        return Ok(true);
    }
    list_all(&places::find(path)?, tensors, out)
}

fn list_all(found: &[PathBuf], tensors: bool, out: &mut impl Write) -> Result<bool, Failure> {
    let mut is_well = true;
    for folder in found {
        match Checkpoint::open(folder) {
            Ok(checkpoint) if found.len() == 1 => list::one(&checkpoint, tensors, out)?,
            Ok(checkpoint) => list::line(&checkpoint, out)?,
            Err(_) if is_gone(folder) => {}
            Err(error) => {
                is_well = false;
                writeln!(out, "{}", list::damaged(folder, &error))?;
            }
        }
    }
    Ok(is_well)
}

/// Whether a checkpoint that could not be read is none any more: a run that trains has removed it meanwhile, its name first.
fn is_gone(folder: &Path) -> bool {
    !folder.exists()
}

fn verify(path: &Path, out: &mut impl Write) -> Result<bool, Failure> {
    verify_all(&places::find(path)?, out)
}

fn verify_all(found: &[PathBuf], out: &mut impl Write) -> Result<bool, Failure> {
    let mut is_well = true;
    for folder in found {
        match Checkpoint::open(folder).and_then(|checkpoint| checkpoint.verify().map(|()| checkpoint)) {
            Ok(checkpoint) => writeln!(out, "whole: {}", list::in_words(&checkpoint))?,
            Err(_) if is_gone(folder) => {}
            Err(error) => {
                is_well = false;
                writeln!(out, "{}", list::damaged(folder, &error))?;
            }
        }
    }
    Ok(is_well)
}

fn diff(first: &Path, second: &Path, shown: usize, out: &mut impl Write) -> Result<bool, Failure> {
    let (first, second) = (Checkpoint::open(first)?, Checkpoint::open(second)?);
    let found = compare(&first, &second)?;
    for difference in found.iter().take(shown) {
        writeln!(out, "{difference}")?;
    }
    match found.len() {
        0 => writeln!(out, "no difference: {}", list::in_words(&first))?,
        count if count > shown => writeln!(out, "… and {} more", count - shown)?,
        _ => {}
    }
    Ok(found.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_when_it_is_read_is_not_damaged() {
        let run = tempfile::tempdir().expect("a folder for a moment");
        let (gone, damaged) = (run.path().join("step-1"), run.path().join("step-2"));
        std::fs::create_dir(&damaged).expect("a folder can be made");
        let both = [gone.clone(), damaged];
        let (verify, list) = (
            |found: &[PathBuf], out: &mut Vec<u8>| verify_all(found, out),
            |found: &[PathBuf], out: &mut Vec<u8>| list_all(found, false, out),
        );
        for all in [&verify as &dyn Fn(&[PathBuf], &mut Vec<u8>) -> Result<bool, Failure>, &list] {
            let mut out = Vec::new();
            assert!(all(std::slice::from_ref(&gone), &mut out).expect("it can write") && out.is_empty());
            assert!(!all(&both, &mut out).expect("it can write"));
            let text = String::from_utf8(out).expect("a text");
            assert!(text.contains("step-2") && !text.contains("step-1"), "{text}");
        }
    }
}
