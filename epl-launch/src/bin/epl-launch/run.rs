//! A run: what is the same for all of its attempts, and how its processes are started.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use epl_launch::Result;
use epl_launch::rendezvous::Secret;

use crate::arguments::{Arguments, Share, Start};
use crate::devices;
use crate::socket::Merged;
use crate::spec::{KEEPER, Spec, WORKER};
use crate::start::{Choice, mpirun};
use crate::system::{Signal, bound};

/// What is the same for all attempts of a run.
pub(crate) struct Run {
    pub arguments: Arguments,
    pub share: Share,
    pub choice: Choice,
    pub devices: Vec<String>,
    pub program: PathBuf,
    /// What all workers of the run know.
    pub secret: String,
    /// What no other run has; that of the first machine counts.
    pub id: String,
    pub merged: Merged,
}

impl Run {
    /// How many workers this machine has, as they are started.
    pub fn here(&self) -> usize {
        if self.choice.start == Start::Threads { 1 } else { self.share.workers }
    }

    /// What programs know that meet.
    pub fn secret_of_programs(&self) -> Result<Secret> {
        Secret::from_bytes(self.secret.as_bytes())
    }

    /// What agents know: another secret than that of the programs, which come to another server.
    pub fn secret_of_agents(&self) -> Result<Secret> {
        Secret::from_bytes(format!("keepers {}", self.secret).as_bytes())
    }

    /// What the user has said that must be the same on all machines: the numbers of ranks and restarts, and the rest.
    pub fn terms(&self) -> [String; 2] {
        let Arguments { num_workers, max_restarts, grace, .. } = &self.arguments;
        [
            format!("--gpu_per_worker {} --max_restarts {max_restarts}", self.choice.ranks),
            format!("--num_workers {num_workers} --grace {}", grace.as_secs_f64()),
        ]
    }

    /// Whether programs meet each other by way of the agents.
    pub fn programs_meet(&self) -> bool {
        self.choice.transport == "nccl"
    }

    pub fn spec(&self, restart: u32) -> Spec {
        let arguments = &self.arguments;
        Spec {
            workers: self.choice.workers,
            local_ranks: self.choice.ranks,
            first: if self.choice.start == Start::Threads { 0 } else { self.share.first },
            transport: self.choice.transport.into(),
            restart,
            program_secret: self.programs_meet().then(|| self.secret.clone()),
            log_dir: arguments.log_dir.clone().map(PathBuf::into_os_string),
            watched: None,
            patience: arguments.patience,
            grace: arguments.grace,
            devices: self.devices.clone(),
            by_bus: devices::by_bus(arguments),
            program: self.program.clone().into(),
            arguments: arguments.command[1..].to_vec(),
        }
    }

    /// Starts the keepers, or mpirun, which starts them.
    pub fn start(&self, first: usize, socket: &Path) -> Result<Vec<(u32, String)>, String> {
        let own = std::env::current_exe().map_err(|error| format!("where this program is: {error}"))?;
        if self.choice.start == Start::Mpi {
            let mut command = mpirun(self.choice.workers, &own, socket);
            let mut child = spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()), socket, "mpirun")?;
            let streams: [Option<Box<dyn Read + Send>>; 2] =
                [child.stdout.take().map(|s| Box::new(s) as _), child.stderr.take().map(|s| Box::new(s) as _)];
            for stream in streams.into_iter().flatten() {
                let merged = self.merged.clone();
                thread::spawn(move || {
                    let lines = BufReader::new(stream).lines().map_while(Result::ok);
                    lines.for_each(|line| merged.line(true, "[mpirun] ", line.as_bytes()));
                });
            }
            return Ok(vec![(child.id(), "mpirun".into())]);
        }
        let one = |worker: usize| {
            let name = format!("the keeper of worker {worker}");
            let child = spawn(Command::new(&own).env(WORKER, worker.to_string()), socket, &name)?;
            Ok((child.id(), name))
        };
        (first..first + self.here()).map(one).collect()
    }
}

fn spawn(command: &mut Command, socket: &Path, name: &str) -> Result<Child, String> {
    command.env(KEEPER, AsRef::<OsStr>::as_ref(socket)).stdin(Stdio::null());
    bound(command, Signal::TERM).spawn().map_err(|error| format!("{name} cannot be started: {error}"))
}

/// The address of a machine.
pub(crate) fn resolve(address: &str) -> Result<SocketAddr, String> {
    let mut found = address.to_socket_addrs().map_err(|error| format!("--machine_list: `{address}`: {error}"))?;
    found.next().ok_or_else(|| format!("--machine_list: `{address}` has no address"))
}
