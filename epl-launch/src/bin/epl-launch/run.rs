//! A run: what is the same for all of its starts, its servers, and how its processes are started.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use epl_launch::Store;
use epl_launch::rendezvous::{Event, Failure, Secret, Server, Settings};

use crate::arguments::{Arguments, Share, Start};
use crate::blame::FIRST;
use crate::devices;
use crate::keeper::{ID, PROGRAMS};
use crate::socket::Merged;
use crate::spec::{KEEPER, Spec, WORKER, time_of_keepers};
use crate::start::{Choice, mpirun};
use crate::system::{Signal, bound};

/// So many refused connections are told, and the others counted.
const REFUSALS: usize = 5;

/// What is the same for all starts of a run.
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

/// The servers of a run, on the machine that holds them.
pub(crate) struct Servers {
    pub keepers: Arc<Server>,
    pub programs: Option<Server>,
    pub said: Arc<Mutex<Option<(Failure, Instant)>>>,
    pub refused: Arc<AtomicUsize>,
    /// The keepers that have joined, and whether they have left in order.
    have_left: Arc<Mutex<BTreeMap<usize, bool>>>,
}

impl Servers {
    /// How many keepers have left in order.
    pub fn left(&self) -> usize {
        let have_left = self.have_left.lock().unwrap_or_else(PoisonError::into_inner);
        have_left.values().filter(|has_left| **has_left).count()
    }

    /// Whether the run fails once nothing is heard from this keeper.
    pub fn listen_to(&self, keeper: usize) -> bool {
        let have_left = self.have_left.lock().unwrap_or_else(PoisonError::into_inner);
        have_left.get(&keeper) == Some(&false) && self.keepers.failure().is_none()
    }
}

impl Run {
    /// How many workers this machine has, as they are started.
    pub fn here(&self) -> usize {
        if self.choice.start == Start::Threads { 1 } else { self.share.workers }
    }

    /// How many keepers there are, of all machines.
    pub fn all(&self) -> usize {
        self.choice.workers
    }

    /// Of keepers, and of programs.
    pub fn secrets(&self) -> Result<[Secret; 2], String> {
        let one = |text: &str| Secret::from_bytes(text.as_bytes()).map_err(|error| error.to_string());
        Ok([one(&self.secret_of_keepers())?, one(&self.secret)?])
    }

    /// Another one than that of the programs, which come to another server.
    fn secret_of_keepers(&self) -> String {
        format!("keepers {}", self.secret)
    }

    /// Whether programs meet each other by way of the launcher.
    fn programs_meet(&self) -> bool {
        self.choice.transport == "nccl"
    }

    pub fn serve(&self, restart: u32) -> Result<Servers, String> {
        let [secret, of_programs] = self.secrets()?;
        let (merged, refused) = (self.merged.clone(), Arc::new(AtomicUsize::new(0)));
        let (counted, failed) = (refused.clone(), AtomicBool::new(false));
        let have_left = Arc::new(Mutex::new(BTreeMap::new()));
        let seen = have_left.clone();
        let see = move |keeper, has_left| {
            seen.lock().unwrap_or_else(PoisonError::into_inner).insert(keeper, has_left);
        };
        let mut settings = Settings::new(self.choice.workers, secret);
        settings.restart = time_of_keepers(restart);
        settings.join_within = Some(self.arguments.join_timeout);
        settings.silence = self.arguments.patience;
        if let Some(first) = self.arguments.machine_list.first() {
            settings.address = resolve(first)?;
        }
        let told = move |event: &Event| match event {
            // Who comes once it has failed is another machine, which is ahead of this one.
            Event::Refused(peer, why)
                if !failed.load(Ordering::SeqCst) && counted.fetch_add(1, Ordering::SeqCst) < REFUSALS =>
            {
                merged.say(&format!("refused {peer}: {why}"));
            }
            Event::Failed(_) => failed.store(true, Ordering::SeqCst),
            Event::Joined(keeper) => see(*keeper, false),
            Event::Left(keeper) => see(*keeper, true),
            _ => {}
        };
        let keepers = Arc::new(Server::start_with(settings.clone(), told).map_err(|error| error.to_string())?);
        keepers.set(ID, self.id.as_bytes()).map_err(|error| error.to_string())?;
        let said = Arc::new(Mutex::new(None));
        let programs = self.programs_meet().then(|| {
            // The arguments have a port that has a next one.
            let port = if self.share.machines == 1 { 0 } else { settings.address.port() + 1 };
            settings.address.set_port(port);
            settings.restart = restart;
            settings.secret = of_programs;
            settings.join_within = None;
            let (heard, to_keepers) = (said.clone(), keepers.clone());
            let told = move |event: &Event| {
                if let Event::Failed(failure) = event {
                    // Where the run has failed already, nobody needs it.
                    let _ = to_keepers.set(FIRST, failure.worker.to_string().as_bytes());
                    *heard.lock().unwrap_or_else(PoisonError::into_inner) = Some((failure.clone(), Instant::now()));
                }
            };
            let server = Server::start_with(settings, told).map_err(|error| error.to_string())?;
            let address = match self.arguments.machine_list.first().and_then(|first| first.rsplit_once(':')) {
                // As other machines know it, which this one may know by another address.
                Some((host, _)) if self.share.machines > 1 => format!("{host}:{port}"),
                _ => server.address().to_string(),
            };
            keepers.set(PROGRAMS, address.as_bytes()).map_err(|error| error.to_string())?;
            Ok::<_, String>(server)
        });
        Ok(Servers { keepers, programs: programs.transpose()?, said, refused, have_left })
    }

    pub fn spec(&self, restart: u32, rendezvous: String) -> Spec {
        let arguments = &self.arguments;
        Spec {
            workers: self.choice.workers,
            local_ranks: self.choice.ranks,
            first: if self.choice.start == Start::Threads { 0 } else { self.share.first },
            transport: self.choice.transport.into(),
            restart,
            rendezvous,
            secret: self.secret_of_keepers(),
            program_secret: self.programs_meet().then(|| self.secret.clone()),
            log_dir: arguments.log_dir.clone().map(PathBuf::into_os_string),
            terms: format!("--gpu_per_worker {} --max_restarts {}", self.choice.ranks, arguments.max_restarts),
            join_timeout: arguments.join_timeout,
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
            let mut command = mpirun(self.choice.workers, &own);
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
