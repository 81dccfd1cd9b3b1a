//! The plan of a program, which is run for it: `epl_core`'s `launch/plan_only.rs` is the other end.

use std::ffi::OsString;
use std::io::{Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use epl::config::{Layers, OPTIONS, variable};

#[derive(Args)]
pub(crate) struct Plan {
    /// Options that the program reads from its environment, such as cluster.ranks=8 zero.level=v1; its own command line comes
    /// before them. The plan says which of them the program has not taken.
    #[arg(index = 1, value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// A file that describes a cluster, which need not be there: its devices are the ranks, and the plan says whether it fits them.
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// In the place of a program a model with AdamW: a folder that `transformers` saved, of a decoder or a T5, or a name such as
    /// llama3-8b or hf_t5_base.
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    model: Option<PathBuf>,
    /// With --model, rows of a step, over all replicas.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = least_one)]
    rows: usize,
    /// With --model, tokens of a row; of a T5, of its source and of its target.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = least_one)]
    tokens: usize,
    /// The program and its arguments, such as `target/release/mine --steps 10`, or `cargo run --release`.
    #[arg(index = 2, last = true, required_unless_present = "model", value_name = "PROGRAM")]
    command: Vec<OsString>,
}

fn least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "a whole number of at least 1".to_string())
}

impl Plan {
    /// Runs the program until it has built its engine, and prints the plan. What the program says goes to the standard error.
    pub(crate) fn print(&self) -> Result<(), String> {
        let words = self.made().map_err(|error| error.to_string())?;
        // Who reads may have read enough.
        let _ = stdout().write_all(words.as_bytes());
        Ok(())
    }

    /// What is run: the program, or this one, which builds a known model.
    fn command(&self) -> std::io::Result<Vec<OsString>> {
        let Some(model) = &self.model else { return Ok(self.command.clone()) };
        let own = std::env::current_exe()?.into_os_string();
        let numbers = format!("--rows={} --tokens={}", self.rows, self.tokens);
        let numbers = numbers.split(' ').map(OsString::from);
        Ok([own, "build-model".into()].into_iter().chain(numbers).chain(["--".into(), model.into()]).collect())
    }

    fn made(&self) -> Result<String, Box<dyn std::error::Error>> {
        let command = self.command()?;
        let (program, arguments) = command.split_first().ok_or("give the program whose plan is to be printed")?;
        let file = tempfile::NamedTempFile::new()?;
        let mut command = Command::new(program);
        command.args(arguments).env("EPL_PLAN", file.path()).stdout(stderr());
        // What of them the program does not take stands in its plan.
        command.env("EPL_PLAN_SETTINGS", self.settings.join("\n"));
        if let Some(cluster) = &self.cluster {
            command.env("EPL_PLAN_CLUSTER", absolute(cluster)?);
        }
        // Before the program is started, an option that there is not is told with the nearest one.
        Layers::new().command_line(&self.settings)?;
        for (key, value) in self.settings.iter().filter_map(|setting| setting.split_once('=')) {
            let option = OPTIONS.iter().find(|option| option.key() == key.trim());
            command.envs(option.map(|option| (variable(option), value)));
        }
        let program = program.display();
        let status = command.status().map_err(|error| format!("{program} cannot be started: {error}"))?;
        let words = std::fs::read_to_string(file.path())?;
        if !words.is_empty() {
            return Ok(words);
        }
        let why = match status.success() {
            true => "it ended without one, and `epl::launch` has not run it for its plan: was it built with this version of EPL?".into(),
            false => format!("it ended before it built an engine ({status}); what it said is above"),
        };
        Err(format!("no plan of {program}: {why}").into())
    }
}

/// As the program knows it, wherever it goes.
fn absolute(file: &Path) -> Result<PathBuf, String> {
    file.canonicalize().map_err(|error| format!("--cluster {}: {error}", file.display()))
}
