//! Keeps one worker: starts its program, hands its lines on, watches it, and leaves nothing of it behind.
//!
//! A keeper is this program again, started by the launcher or by mpirun. It ends with the launcher, however that ends,
//! and takes all processes below it along.

use std::io::{self, BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use epl::comm::rendezvous::{Client, Secret};
use epl::comm::{Error, Store};

use crate::order::{Ending, ORDER, Order, Report};
use crate::output::{Output, kind};
use crate::program::interpreted;
use crate::signals::Signals;
use crate::system::{Change, adopt_orphans, bound, die_with_parent, next_change, send_group};
use crate::tree::{descendants, end_all};

const LOOK: Duration = Duration::from_millis(20);
/// How often all processes are looked at.
const SURVEY: Duration = Duration::from_millis(500);
/// How long lines may take to arrive once all processes have ended.
const LAST_LINES: Duration = Duration::from_secs(2);
/// How long programs that know of a failure may take to end by themselves.
const AFTER_WORDS: Duration = Duration::from_secs(2);
/// The key of the address where programs meet.
pub const PROGRAMS: &str = "where programs meet";

/// What the launcher says.
enum Said {
    /// Hand this signal on.
    Signal(i32),
    /// End. Also when the launcher is gone.
    End,
}

/// A keeper at work.
struct Keeper {
    order: Order,
    worker: usize,
    signals: Signals,
    said: Receiver<Said>,
    output: Output,
    asked: bool,
}

/// Does what the order says. Failures of the program are told to the launcher; what comes back is what kept the keeper
/// from doing so.
pub fn keep(order: &str) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let order: Order = serde_json::from_str(order).map_err(|error| format!("{ORDER}: {error}"))?;
    let signals = Signals::new().map_err(text)?;
    die_with_parent(libc::SIGTERM).and_then(|()| adopt_orphans()).map_err(text)?;
    let worker = order.worker.map_or_else(worker_of_mpi, Ok)?;
    let socket = UnixStream::connect(&order.socket).map_err(|error| format!("the launcher is gone: {error}"))?;
    let said = listen(socket.try_clone().map_err(text)?);
    let output = Output::new(socket, order.log_dir.as_deref(), worker, order.restart);
    let output = output.map_err(|error| format!("the log of worker {worker} cannot be written: {error}"))?;
    output.tell(kind::WORKER, format!("{worker} {}", std::process::id()).as_bytes());
    let mut keeper = Keeper { order, worker, signals, said, output, asked: false };
    let ending = keeper.ending();
    let Keeper { output, asked, .. } = keeper;
    let report = Report { ending, asked, tail: output.tail() };
    output.tell(kind::REPORT, serde_json::to_string(&report).map_err(|error| error.to_string())?.as_bytes());
    Ok(())
}

/// The worker that MPI says this is.
fn worker_of_mpi() -> Result<usize, String> {
    let worker =
        ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].into_iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
    worker.ok_or_else(|| "mpirun says neither by OMPI_COMM_WORLD_RANK nor by PMI_RANK which worker this is".into())
}

fn listen(socket: UnixStream) -> Receiver<Said> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(socket).lines().map_while(Result::ok) {
            let said =
                line.strip_prefix("signal ").and_then(|signal| signal.parse().ok()).map_or(Said::End, Said::Signal);
            if sender.send(said).is_err() {
                return;
            }
        }
        let _ = sender.send(Said::End);
    });
    receiver
}

fn released(error: &Error) -> Ending {
    match error {
        Error::Worker { worker, cause } => Ending::Released { worker: Some(*worker), cause: cause.clone() },
        other => Ending::Released { worker: None, cause: other.to_string() },
    }
}

impl Keeper {
    /// The life of the worker.
    fn ending(&mut self) -> Ending {
        let client = match self.join() {
            Ok(client) => client,
            Err(ending) => return ending,
        };
        let (child, lines) = match self.start(&client) {
            Ok(started) => started,
            Err(ending) => {
                client.fail(&ending.cause().unwrap_or_default());
                return ending;
            }
        };
        let ending = self.watch(&client, &child);
        // The others hear it now, not when all is cleared up.
        if let Some(cause) = ending.cause() {
            client.fail(&cause);
        }
        end_all(self.order.grace, |_, _| {});
        let begin = Instant::now();
        while lines.iter().any(|pump| !pump.is_finished()) && begin.elapsed() < LAST_LINES {
            thread::sleep(LOOK);
        }
        ending
    }

    /// Waits for the others.
    fn join(&mut self) -> Result<Client, Ending> {
        let (worker, order) = (self.worker, self.order.clone());
        let joining = thread::spawn(move || {
            let secret = Secret::from_bytes(order.secret.as_bytes())?;
            let Order { workers, restart, join_timeout, .. } = order;
            Client::join_again(&order.rendezvous, worker, workers, restart, &secret, join_timeout)
        });
        while !joining.is_finished() {
            if self.signals.take().is_some() || self.said.try_recv().is_ok() {
                self.asked = true;
                return Err(Ending::Released { worker: None, cause: "it was asked to end before all had come".into() });
            }
            thread::sleep(LOOK);
        }
        let joined = joining.join().unwrap_or_else(|_| Err(Error::Panic { message: "while it joined".into() }));
        joined.map_err(|error| released(&error))
    }

    /// Starts the program.
    fn start(&self, client: &Client) -> Result<(Child, [JoinHandle<()>; 2]), Ending> {
        let Order { program, arguments, local_ranks, first, .. } = &self.order;
        let mut command = match interpreted(program.as_ref()) {
            Some(interpreter) => {
                let mut command = Command::new(interpreter);
                command.arg(program);
                command
            }
            None => Command::new(program),
        };
        command.args(arguments).env_remove(ORDER).env_remove("EPL_LAUNCH_RENDEZVOUS").env_remove("EPL_LAUNCH_SECRET");
        let local = self.worker - first;
        let numbers = [
            ("WORKERS", self.order.workers),
            ("WORKER", self.worker),
            ("LOCAL_WORKER", local),
            ("LOCAL_RANKS", *local_ranks),
            ("RESTART", self.order.restart as usize),
        ];
        command.envs(numbers.map(|(name, number)| (format!("EPL_LAUNCH_{name}"), number.to_string())));
        command.env("EPL_LAUNCH_TRANSPORT", &self.order.transport);
        if let Some(secret) = &self.order.program_secret {
            let address = client.get(PROGRAMS, self.order.join_timeout).map_err(|error| released(&error))?;
            command.env("EPL_LAUNCH_RENDEZVOUS", String::from_utf8_lossy(&address).as_ref());
            command.env("EPL_LAUNCH_SECRET", secret);
        }
        if let Some(own) = self.order.devices.chunks(*local_ranks).nth(local) {
            command.env("CUDA_VISIBLE_DEVICES", own.join(","));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = bound(&mut command, libc::SIGKILL).spawn().map_err(|error| {
            let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
            Ending::NotStarted(format!("{}: {error}", program.display()), code)
        })?;
        self.output.tell(kind::PROGRAM, child.id().to_string().as_bytes());
        let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
            unreachable!("both streams are piped")
        };
        Ok((child, [self.output.pump(kind::OUT, out), self.output.pump(kind::ERR, err)]))
    }

    /// Waits for the end of the program, or for a reason to end it.
    fn watch(&mut self, client: &Client, child: &Child) -> Ending {
        let (mut surveyed, mut stopped, mut told) = (Instant::now(), None, None);
        loop {
            // First: a program that has ended has ended by itself, whatever comes of it.
            while let Some((process, change)) = next_change() {
                match change {
                    Change::Exited(code) if process == child.id() => return Ending::Exited(code),
                    Change::Killed(signal) if process == child.id() => return Ending::Killed(signal),
                    _ => {}
                }
            }
            if let Some(ending) = self.hear(child) {
                return ending;
            }
            if let Some(error) = client.failure() {
                // Programs that meet have heard it, too, and one of them may be who said it: it ends by itself.
                let waits = self.order.program_secret.is_some();
                if !waits || told.get_or_insert_with(Instant::now).elapsed() >= AFTER_WORDS {
                    return released(&error);
                }
            }
            if surveyed.elapsed() >= SURVEY {
                surveyed = Instant::now();
                if let Some(ending) = self.survey(&mut stopped) {
                    return ending;
                }
            }
            client.pause(LOOK);
        }
    }

    /// What the launcher and the system say.
    fn hear(&mut self, child: &Child) -> Option<Ending> {
        let by_launcher = self.said.try_recv().ok();
        let said = by_launcher.or_else(|| {
            // Sent to the keeper itself: mpirun ends its processes, or the launcher has died. Nobody else means it.
            self.signals.take().map(|_| Said::End)
        })?;
        self.asked = true;
        match said {
            Said::Signal(signal) => {
                send_group(child.id(), signal);
                None
            }
            Said::End => Some(Ending::Released { worker: None, cause: "it was asked to end".into() }),
        }
    }

    /// Whether a process has been stopped for too long.
    fn survey(&self, stopped: &mut Option<(u32, Instant)>) -> Option<Ending> {
        let Some(process) = descendants().into_iter().find(|process| process.is_stopped()) else {
            *stopped = None;
            return None;
        };
        let since = match *stopped {
            Some((id, since)) if id == process.id => since,
            _ => stopped.insert((process.id, Instant::now())).1,
        };
        let milliseconds = since.elapsed().as_millis() as u64;
        (since.elapsed() >= self.order.patience).then_some(Ending::Stopped {
            process: process.id,
            name: process.name,
            milliseconds,
        })
    }
}
