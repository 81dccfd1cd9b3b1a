//! One start of all workers of this machine, to its end.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use epl::comm::Store;
use epl::comm::rendezvous::{Event, Failure, Fault, Secret, Server, Settings};

use crate::arguments::{Arguments, Share, Start};
use crate::keeper::PROGRAMS;
use crate::order::{ORDER, Order};
use crate::signals::Signals;
use crate::socket::{Merged, Socket, Told};
use crate::start::{Choice, mpirun};
use crate::system::{Change, bound};
use crate::tree::{descendants, end_all};
use crate::verdict::{Evidence, Verdict};

const LOOK: Duration = Duration::from_millis(20);
/// Keepers may take this longer than the grace of their workers, after which nobody is asked any more.
const KEEPERS: Duration = Duration::from_secs(3);
/// A program that says that it fails may take so long to end by itself.
const AFTER_WORDS: Duration = Duration::from_secs(2);
/// So many refused connections are told, and the others counted.
const REFUSALS: usize = 5;

/// What is the same for all starts of a run.
pub struct Run {
    pub arguments: Arguments,
    pub share: Share,
    pub choice: Choice,
    pub devices: Vec<String>,
    pub program: PathBuf,
    /// What all workers of the run know.
    pub secret: String,
    pub merged: Merged,
}

/// The servers of a run, on the machine that holds them.
struct Servers {
    keepers: Server,
    programs: Option<Server>,
    said: Arc<Mutex<Option<(Failure, Instant)>>>,
    refused: Arc<AtomicUsize>,
}

impl Run {
    /// Starts the workers, and comes back when none is left.
    pub fn attempt(&self, restart: u32, signals: &Signals) -> Result<Verdict, String> {
        let servers = (self.share.machine == 0).then(|| self.serve(restart)).transpose()?;
        let socket = Socket::open(&self.merged).map_err(|error| error.to_string())?;
        let rendezvous = match &servers {
            Some(servers) => servers.keepers.address().to_string(),
            None => self.arguments.machine_list[0].clone(),
        };
        let order = self.order(restart, rendezvous, socket.path());
        let children = self.start(&order).inspect_err(|_| end_all(Duration::ZERO, |_, _| {}))?;
        let mut watch = Watch {
            run: self,
            servers,
            signals,
            socket,
            living: children,
            keepers: BTreeMap::new(),
            evidence: Evidence { expected: self.here(), ..Evidence::default() },
            deadline: None,
            received: 0,
        };
        watch.until_the_end();
        Ok(watch.evidence.verdict())
    }

    /// How many workers this machine has, as they are started.
    fn here(&self) -> usize {
        if self.choice.start == Start::Threads { 1 } else { self.share.workers }
    }

    fn secrets(&self) -> Result<[Secret; 2], String> {
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

    fn serve(&self, restart: u32) -> Result<Servers, String> {
        let [secret, of_programs] = self.secrets()?;
        let (merged, refused) = (self.merged.clone(), Arc::new(AtomicUsize::new(0)));
        let counted = refused.clone();
        let mut settings = Settings::new(self.choice.workers, secret);
        settings.restart = restart;
        settings.join_within = Some(self.arguments.join_timeout);
        settings.silence = self.arguments.patience;
        if let Some(first) = self.arguments.machine_list.first() {
            settings.address = resolve(first)?;
        }
        let told = move |event: &Event| {
            if let Event::Refused(peer, why) = event
                && counted.fetch_add(1, Ordering::SeqCst) < REFUSALS
            {
                merged.say(&format!("refused {peer}: {why}"));
            }
        };
        let keepers = Server::start_with(settings.clone(), told).map_err(|error| error.to_string())?;
        let said = Arc::new(Mutex::new(None));
        let programs = self.programs_meet().then(|| {
            let port = match (self.share.machines, settings.address.port().checked_add(1)) {
                (1, _) => 0,
                (_, Some(next)) => next,
                (_, None) => return Err(format!("--machine_list: there is no port after {}", settings.address)),
            };
            settings.address.set_port(port);
            settings.secret = of_programs;
            settings.join_within = None;
            let heard = said.clone();
            let told = move |event: &Event| {
                if let Event::Failed(failure) = event {
                    *heard.lock().unwrap_or_else(PoisonError::into_inner) = Some((failure.clone(), Instant::now()));
                }
            };
            let server = Server::start_with(settings, told).map_err(|error| error.to_string())?;
            let address = server.address().to_string();
            keepers.set(PROGRAMS, address.as_bytes()).map_err(|error| error.to_string())?;
            Ok(server)
        });
        Ok(Servers { keepers, programs: programs.transpose()?, said, refused })
    }

    fn order(&self, restart: u32, rendezvous: String, socket: PathBuf) -> Order {
        let arguments = &self.arguments;
        Order {
            workers: self.choice.workers,
            local_ranks: self.choice.ranks,
            worker: None,
            first: if self.choice.start == Start::Threads { 0 } else { self.share.first },
            transport: self.choice.transport.into(),
            restart,
            rendezvous,
            secret: self.secret_of_keepers(),
            program_secret: self.programs_meet().then(|| self.secret.clone()),
            socket,
            log_dir: arguments.log_dir.clone(),
            join_timeout: arguments.join_timeout,
            patience: arguments.patience,
            grace: arguments.grace,
            devices: self.devices.clone(),
            program: self.program.clone().into(),
            arguments: arguments.command[1..].to_vec(),
        }
    }

    /// Starts the keepers, or mpirun, which starts them.
    fn start(&self, order: &Order) -> Result<Vec<(u32, String)>, String> {
        let own = std::env::current_exe().map_err(|error| format!("where this program is: {error}"))?;
        if self.choice.start == Start::Mpi {
            let mut command = mpirun(self.choice.workers, &own);
            let mut child = spawn(&mut command, order, "mpirun")?;
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
            let order = Order { worker: Some(worker), ..order.clone() };
            let name = format!("the keeper of worker {worker}");
            let child = spawn(&mut Command::new(&own), &order, &name)?;
            Ok((child.id(), name))
        };
        (order.first..order.first + self.here()).map(one).collect()
    }
}

fn spawn(command: &mut Command, order: &Order, name: &str) -> Result<Child, String> {
    let text = serde_json::to_string(order).map_err(|error| error.to_string())?;
    command.env(ORDER, text).stdin(Stdio::null());
    if name == "mpirun" {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    bound(command, libc::SIGTERM).spawn().map_err(|error| format!("{name} cannot be started: {error}"))
}

fn resolve(address: &str) -> Result<SocketAddr, String> {
    let mut found = address.to_socket_addrs().map_err(|error| format!("--machine_list: `{address}`: {error}"))?;
    found.next().ok_or_else(|| format!("--machine_list: `{address}` has no address"))
}

/// A run under way.
struct Watch<'a> {
    run: &'a Run,
    servers: Option<Servers>,
    signals: &'a Signals,
    socket: Socket,
    /// Children that have not ended.
    living: Vec<(u32, String)>,
    keepers: BTreeMap<usize, Option<UnixStream>>,
    evidence: Evidence,
    /// When nobody is asked any more.
    deadline: Option<Instant>,
    /// Signals of the user.
    received: usize,
}

impl Watch<'_> {
    fn until_the_end(&mut self) {
        while !self.living.is_empty() {
            self.listen(LOOK);
            self.reap();
            self.hear_user();
            self.look_at_servers();
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.kill();
            }
        }
        // What keepers told last is on its way.
        let begin = Instant::now();
        while self.keepers.values().any(Option::is_some) && begin.elapsed() < KEEPERS {
            self.listen(LOOK);
        }
        self.look_at_servers();
        self.kill();
        if let Some(servers) = &self.servers {
            self.evidence.failure = self.evidence.failure.take().or_else(|| servers.keepers.failure());
            let refused =
                servers.refused.load(Ordering::SeqCst) + servers.programs.as_ref().map_or(0, |s| s.refused() as usize);
            if refused > 0 {
                self.run.merged.say(&format!("{refused} connections of strangers were refused"));
            }
        }
    }

    /// Takes in what keepers tell, for as long.
    fn listen(&mut self, time: Duration) {
        let begin = Instant::now();
        loop {
            let told = match self.socket.told().recv_timeout(time.saturating_sub(begin.elapsed())) {
                Ok(told) => told,
                Err(RecvTimeoutError::Timeout) => return,
                Err(RecvTimeoutError::Disconnected) => return thread::sleep(time),
            };
            match told {
                Told::Here(worker, stream) => drop(self.keepers.insert(worker, Some(stream))),
                Told::Program(worker, process) => drop(self.evidence.programs.insert(worker, process)),
                Told::Ended(worker, report) => {
                    if report.ending.code() != 0 {
                        self.is_ending();
                    }
                    let number = self.evidence.reports.len();
                    self.evidence.reports.insert(worker, (number, report));
                }
                Told::Gone(worker) => drop(self.keepers.insert(worker, None)),
            }
        }
    }

    /// From now on all are to end.
    fn is_ending(&mut self) {
        let limit = self.run.arguments.grace + KEEPERS;
        self.deadline.get_or_insert_with(|| Instant::now() + limit);
    }

    fn reap(&mut self) {
        while let Some((child, change)) = crate::system::next_change() {
            self.ended(child, change);
        }
    }

    fn ended(&mut self, child: u32, change: Change) {
        let Some(index) = self.living.iter().position(|(id, _)| *id == child) else { return };
        let (code, how) = match change {
            Change::Stopped => return,
            Change::Exited(code) => (code, format!("exited with code {code}")),
            Change::Killed(signal) => (128 + signal, format!("was killed by signal {signal}")),
        };
        let (_, name) = self.living.swap_remove(index);
        if code != 0 {
            self.evidence.own.get_or_insert((code, format!("{name} {how}")));
            self.is_ending();
        }
    }

    /// Hands signals on; who sends three does not want to wait.
    fn hear_user(&mut self) {
        let Some(signal) = self.signals.take() else { return };
        self.received += 1;
        self.evidence.interrupted = Some(signal);
        if self.evidence.programs.is_empty() || self.received > 2 {
            self.evidence.own.get_or_insert((128 + signal, format!("interrupted by signal {signal}")));
            return self.kill();
        }
        for stream in self.keepers.values_mut().flatten() {
            let _ = writeln!(stream, "signal {signal}");
        }
    }

    /// Whether a worker has failed, as others or its own program say.
    fn look_at_servers(&mut self) {
        let Some(servers) = &self.servers else { return };
        let said = servers.said.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((failure, when)) = said {
            // A program that has lost its connection has ended, or is about to: its keeper knows more.
            let is_due = matches!(failure.fault, Fault::Silent(_)) || when.elapsed() >= AFTER_WORDS;
            if is_due && servers.keepers.failure().is_none() {
                let cause = failure.fault.to_string();
                servers.keepers.fail(failure.worker, cause.strip_prefix("failed: ").unwrap_or(&cause));
            }
            if !matches!(failure.fault, Fault::Lost) {
                self.evidence.said = Some(failure);
            }
        }
        if let Some(failure) = servers.keepers.failure() {
            self.evidence.failure.get_or_insert(failure);
            self.is_ending();
        }
    }

    /// Ends all that is left, at once.
    fn kill(&mut self) {
        if self.living.is_empty() && descendants().is_empty() {
            return;
        }
        let mut seen = Vec::new();
        end_all(Duration::ZERO, |child, change| seen.push((child, change)));
        for (child, change) in seen {
            self.ended(child, change);
        }
        self.living.clear();
    }
}
