//! Starts the workers of a run, watches over them, and ends them together.
//!
//! ```text
//! epl-launch --num_workers 2 --gpu_per_worker 4 -- target/release/train --config run.toml
//! epl-launch --num_workers 4 --gpu_per_worker 8 --machine_list a:7000,b:7000 --machine_rank 0 -- train    on a
//! epl-launch --num_workers 4 --gpu_per_worker 8 --machine_list a:7000,b:7000 --machine_rank 1 -- train    on b
//! epl-launch --num_workers 2 --max_restarts 3 --log_dir logs -- train.sh
//!
//!   agent ── keeper ── program     one keeper a worker: it starts the program in a process group of its own, hands its
//!     │  └── keeper ── program     lines on, watches it, and ends all processes below it
//!     └ session of the agents      one agent a machine, over all restarts: the first failure ends all
//! ```
//!
//! A program that SIGINT or SIGTERM has ended, which it may tell by exiting with 128 and the signal, is not started again.
//!
//! The exit code is that of the first worker that failed, or 128 and the signal that killed it; 1 where a worker is
//! stopped, silent or does not come, and 2 for a command line that cannot be.
//!
//! - `arguments`, `program`, `devices`, `start`: what is asked for, and how it is done here.
//! - `system`, `tree`, `signals`: processes.
//! - `spec`, `output`, `keeper`: one worker.
//! - `socket`, `outcome`, `run`, `root_cause`, `agents`, `attempt`: the agent of a machine.
//! - `screen`, `all_machines`: what ranks do.

mod arguments;
mod program;
mod system;
mod tree;
mod signals;
mod devices;
mod start;
mod spec;
mod output;
mod keeper;
mod socket;
mod outcome;
mod run;
mod root_cause;
mod agents;
mod all_machines;
mod screen;
mod attempt;

use std::env::VarError;
use std::ffi::OsStr;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use epl_launch::rendezvous::Secret;

use agents::Agents;
use arguments::{Arguments, Share};
use run::Run;
use signals::Signals;
use socket::Merged;

/// A command line that cannot be.
const USAGE: u8 = 2;
/// The variable with what all machines know.
const SECRET: &str = "EPL_LAUNCH_SECRET";

fn main() -> ExitCode {
    if let Some(socket) = std::env::var_os(spec::KEEPER) {
        return match keeper::keep(&socket) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("epl-launch: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let arguments = Arguments::parse();
    match prepare(arguments) {
        Ok(run) => {
            let run = Arc::new(run);
            let code = launch(run.clone()).unwrap_or_else(|error| {
                run.merged.say(&error);
                1
            });
            ExitCode::from(u8::try_from(code).unwrap_or(1))
        }
        Err(error) => {
            eprintln!("epl-launch: {error}");
            ExitCode::from(USAGE)
        }
    }
}

/// Finds out all that can be known before anything is started.
fn prepare(arguments: Arguments) -> Result<Run, String> {
    let share = arguments.share()?;
    let program = program::find(arguments.command.first().map_or(OsStr::new(""), |name| name).as_ref())?;
    let devices = devices::choose(&arguments, share.workers * arguments.gpu_per_worker)?;
    let choice = start::choose(&arguments, share, devices.len(), &program)?;
    let secret = secret(share)?;
    if let Some(folder) = &arguments.log_dir {
        std::fs::create_dir_all(folder).map_err(|error| format!("--log_dir {}: {error}", folder.display()))?;
    }
    let merged = arguments.log_dir.as_ref().map(|folder| match share.machines {
        1 => folder.join("merged.log"),
        _ => folder.join(format!("merged-{}.log", share.machine)),
    });
    let merged = Merged::new(merged.as_deref()).map_err(|error| format!("--log_dir: {error}"))?;
    let id = Secret::random_text().map_err(|error| error.to_string())?;
    Ok(Run { arguments, share, choice, devices, program, secret, id, merged })
}

/// What all workers know: of one machine something new, of several what the user gave all of them.
fn secret(share: Share) -> Result<String, String> {
    match std::env::var(SECRET) {
        Ok(secret) => {
            Secret::from_bytes(secret.as_bytes()).map_err(|error| format!("{SECRET}: {error}"))?;
            Ok(secret)
        }
        Err(VarError::NotUnicode(_)) => Err(format!("{SECRET} is no text in UTF-8")),
        Err(VarError::NotPresent) if share.machines > 1 => Err(format!(
            "{} machines, and {SECRET} is not set; set it to the same text, of at least 16 bytes, on all of them",
            share.machines
        )),
        Err(VarError::NotPresent) => Secret::random_text().map_err(|error| error.to_string()),
    }
}

/// Runs, and runs again as often as is allowed. The exit code comes back; or what kept the agent from being one.
fn launch(run: Arc<Run>) -> Result<i32, String> {
    let (merged, most) = (&run.merged, run.arguments.max_restarts);
    let signals = system::adopt_orphans().and_then(|()| Signals::new());
    let signals = signals.map_err(|error| format!("processes cannot be watched: {error}"))?;
    merged.say(&run.choice.told);
    if !run.devices.is_empty() {
        let ranks = run.share.workers * run.arguments.gpu_per_worker;
        let shared = if run.devices.len() < ranks { format!(", shared by {ranks} ranks") } else { String::new() };
        merged.say(&format!("GPUs {}{shared}", run.devices.join(",")));
    }
    let agents = Agents::begin(run.clone())?;
    let mut restart = 0;
    let code = loop {
        let outcome = agents.attempt(restart, &signals);
        outcome.tell(merged);
        let may_restart = outcome.code != 0 && restart < most && !outcome.is_final;
        if !may_restart || !agents.agree(restart, &outcome, &signals) {
            agents.leave(restart, &outcome, &signals);
            break outcome.code;
        }
        restart += 1;
        merged.say(&format!("restart {restart} of {most}"));
    };
    Ok(code)
}
