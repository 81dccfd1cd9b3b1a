//! Keeps one worker: starts its program, hands its lines on, watches it, and leaves nothing of it behind.
//!
//! A keeper is this program again, started by the launcher or by mpirun. It ends with the launcher, however that ends,
//! and takes all processes below it along.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use epl_launch::rendezvous::{Client, Secret};
use epl_launch::{Error, Store};

use crate::blame::{AFTER_WORDS, TERMS, blamed, released, unlike};
use crate::devices::of_worker;
use crate::output::{Output, kind};
use crate::program::interpreted;
use crate::signals::Signals;
use crate::spec::{Ending, KEEPER, Report, Spec, WORKER, time_of_keepers};
use crate::system::{Change, Signal, adopt_orphans, bound, die_with_parent, next_change, send_group};
use crate::tree::{Process, descendants, end_all};

const LOOK: Duration = Duration::from_millis(20);
/// How often all processes are looked at.
const SURVEY: Duration = Duration::from_millis(500);
/// How long lines may take to arrive once all processes have ended.
const LAST_LINES: Duration = Duration::from_secs(2);
/// The key of the address where programs meet.
pub(crate) const PROGRAMS: &str = "where programs meet";
/// The key of what no other run has.
pub(crate) const ID: &str = "the run";

/// What the launcher says.
enum Said {
    /// Hand this signal on.
    Signal(i32),
    /// End. Also when the launcher is gone.
    End,
}

/// A keeper at work.
struct Keeper {
    spec: Spec,
    worker: usize,
    /// Whether mpirun has started it, and ends it.
    is_by_mpi: bool,
    signals: Signals,
    said: Receiver<Said>,
    output: Output,
    asked: bool,
}

/// For ever, as far as a rendezvous can tell.
const EVER: Duration = Duration::from_secs(1 << 32);

/// Does what the spec at this socket says. Failures of the program are told to the launcher; what comes back is what
/// kept the keeper from doing so.
pub(crate) fn keep(socket: &OsStr) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let signals = Signals::new().map_err(text)?;
    die_with_parent(Signal::TERM).and_then(|()| adopt_orphans()).map_err(text)?;
    let (worker, is_by_mpi) = match std::env::var(WORKER) {
        Ok(worker) => (worker.parse().map_err(|_| format!("{WORKER} = `{worker}`: not a number"))?, false),
        Err(_) => (worker_of_mpi()?, true),
    };
    let socket = UnixStream::connect(socket).map_err(|error| format!("the launcher is gone: {error}"))?;
    let (mut reader, mut spec) = (BufReader::new(socket.try_clone().map_err(text)?), Vec::new());
    reader.read_until(b'\n', &mut spec).map_err(|error| format!("the launcher gives no spec: {error}"))?;
    let spec: Spec = serde_json::from_slice(&spec).map_err(|error| format!("{KEEPER}: {error}"))?;
    let said = listen(reader);
    let output = Output::new(socket, spec.log_dir.as_deref().map(Path::new), worker, spec.restart);
    let output = output.map_err(|error| format!("the log of worker {worker} cannot be written: {error}"))?;
    output.tell(kind::WORKER, format!("{worker} {}", std::process::id()).as_bytes());
    let mut keeper = Keeper { spec, worker, is_by_mpi, signals, said, output, asked: false };
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

fn listen(socket: BufReader<UnixStream>) -> Receiver<Said> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in socket.lines().map_while(Result::ok) {
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

impl Keeper {
    /// The life of the worker.
    fn ending(&mut self) -> Ending {
        let client = match self.join() {
            Ok(client) => Arc::new(client),
            Err(ending) => return ending,
        };
        let (child, lines) = match self.start(&client) {
            Ok(started) => started,
            Err(ending) => {
                self.tell_others(&client, &ending);
                return ending;
            }
        };
        let ending = self.watch(&client, &child);
        let ending = blamed(&client, self.worker, self.spec.program_secret.is_some(), ending);
        // The others hear it now, not when all is cleared up.
        self.tell_others(&client, &ending);
        end_all(self.spec.grace, |_, _| {});
        let begin = Instant::now();
        while lines.iter().any(|pump| !pump.is_finished()) && begin.elapsed() < LAST_LINES {
            thread::sleep(LOOK);
        }
        if ending.code() == 0 { self.wait_for_all(&client).err().unwrap_or(ending) } else { ending }
    }

    /// Why the worker fails is told to all others, also to those of other machines.
    fn tell_others(&self, client: &Client, ending: &Ending) {
        let asked = match ending {
            // Whom mpirun asks to end has done nothing.
            Ending::Released { worker: None, cause } if self.asked && !self.is_by_mpi => Some(cause.clone()),
            _ => None,
        };
        if let Some(cause) = ending.cause().or(asked) {
            client.fail(&cause);
        }
    }

    /// Waits for the others, and sees that they were started alike.
    fn join(&mut self) -> Result<Client, Ending> {
        let (worker, spec) = (self.worker, self.spec.clone());
        self.hearing("before all had come", false, move || {
            let secret = Secret::from_bytes(spec.secret.as_bytes())?;
            let Spec { workers, restart, join_timeout, terms, .. } = spec;
            let time = time_of_keepers(restart);
            let client = Client::join_again(&spec.rendezvous, worker, workers, time, &secret, join_timeout)?;
            Ok(match client.set(TERMS, terms.as_bytes()) {
                Ok(()) => Ok(client),
                Err(error) => Err(unlike(&client, &terms, &error)),
            })
        })?
    }

    /// A worker that is done stays until all are, so that all machines know the same end.
    fn wait_for_all(&mut self, client: &Arc<Client>) -> Result<(), Ending> {
        let waiting = client.clone();
        self.hearing("before the others had", true, move || waiting.barrier("all programs have ended", EVER))
    }

    /// Does something that takes its time, and meanwhile hears who wants the keeper to end. A signal for the program is
    /// such a wish, unless it has ended.
    fn hearing<T: Send + 'static>(
        &mut self,
        when: &str,
        has_ended: bool,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Ending> {
        let working = thread::spawn(work);
        while !working.is_finished() {
            let said = self.wish();
            self.asked |= said.is_some();
            if said.is_some_and(|said| !has_ended || matches!(said, Said::End)) {
                return Err(Ending::Released { worker: None, cause: format!("it was asked to end {when}") });
            }
            thread::sleep(LOOK);
        }
        let done =
            working.join().unwrap_or_else(|_| Err(Error::Joining { message: format!("panicked: {when} ended") }));
        done.map_err(|error| released(&error))
    }

    /// Starts the program.
    fn start(&mut self, client: &Arc<Client>) -> Result<(Child, [JoinHandle<()>; 2]), Ending> {
        let (meeting, limit, meet) = (client.clone(), self.spec.join_timeout, self.spec.program_secret.is_some());
        let (id, address) = self.hearing("before programs could meet", false, move || {
            let text = |key| meeting.get(key, limit).map(|value| String::from_utf8_lossy(&value).into_owned());
            Ok((text(ID)?, meet.then(|| text(PROGRAMS)).transpose()?))
        })?;
        let mut command = self.command(&id, address.as_deref());
        let mut child = bound(&mut command, Signal::KILL).spawn().map_err(|error| {
            let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
            Ending::NotStarted(format!("{}: {error}", self.spec.program.display()), code)
        })?;
        self.output.tell(kind::PROGRAM, child.id().to_string().as_bytes());
        let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
            unreachable!("both streams are piped")
        };
        Ok((child, [self.output.pump(kind::OUT, out), self.output.pump(kind::ERR, err)]))
    }

    /// The program's command, whose environment says who it is.
    fn command(&self, id: &str, address: Option<&str>) -> Command {
        let Spec { program, arguments, local_ranks, first, .. } = &self.spec;
        let mut command = match interpreted(program.as_ref()) {
            Some(interpreter) => {
                let mut command = Command::new(interpreter);
                command.arg(program);
                command
            }
            None => Command::new(program),
        };
        command.args(arguments);
        for name in [KEEPER, WORKER, "EPL_LAUNCH_RENDEZVOUS", "EPL_LAUNCH_SECRET"] {
            command.env_remove(name);
        }
        let local = self.worker - first;
        let numbers = [
            ("WORKERS", self.spec.workers),
            ("WORKER", self.worker),
            ("LOCAL_WORKER", local),
            ("LOCAL_RANKS", *local_ranks),
            ("RESTART", self.spec.restart as usize),
        ];
        command.envs(numbers.map(|(name, number)| (format!("EPL_LAUNCH_{name}"), number.to_string())));
        command.env("EPL_LAUNCH_ID", id).env("EPL_LAUNCH_TRANSPORT", &self.spec.transport);
        if let (Some(secret), Some(address)) = (&self.spec.program_secret, address) {
            command.env("EPL_LAUNCH_RENDEZVOUS", address);
            command.env("EPL_LAUNCH_SECRET", secret);
        }
        let own = of_worker(&self.spec.devices, local, *local_ranks);
        if !own.is_empty() {
            command.env("CUDA_VISIBLE_DEVICES", own.join(","));
            if self.spec.by_bus {
                command.env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
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
                let patience = match self.spec.program_secret {
                    // It has the user's signal, and may be saving: another one would end it at once.
                    _ if self.asked => self.spec.grace,
                    // Programs that meet have heard it, too, and one of them may be who said it: it ends by itself.
                    Some(_) => AFTER_WORDS,
                    None => Duration::ZERO,
                };
                if told.get_or_insert_with(Instant::now).elapsed() >= patience {
                    return released(&error);
                }
            }
            if surveyed.elapsed() >= SURVEY {
                surveyed = Instant::now();
                if let Some(ending) = self.survey(child.id(), &mut stopped) {
                    return ending;
                }
            }
            client.pause(LOOK);
        }
    }

    /// What the launcher says, or mpirun, which ends its processes by a signal. One that others send, to all processes
    /// of a session or a job, has reached the launcher, too, which hands it on; its death is heard from its socket.
    fn wish(&self) -> Option<Said> {
        let signal = self.signals.take().filter(|_| self.is_by_mpi);
        self.said.try_recv().ok().or(signal.map(|_| Said::End))
    }

    /// Does what it is asked.
    fn hear(&mut self, child: &Child) -> Option<Ending> {
        let said = self.wish()?;
        self.asked = true;
        match said {
            Said::Signal(signal) => {
                send_group(child.id(), signal);
                None
            }
            Said::End => Some(Ending::Released { worker: None, cause: "it was asked to end".into() }),
        }
    }

    /// Whether a process of the program's own group has been stopped for too long. One of another group may be, as by a
    /// shell's job control or a profiler.
    fn survey(&self, program: u32, stopped: &mut Option<(u32, Instant)>) -> Option<Ending> {
        let is_stopped = |process: &Process| process.group == program && process.is_stopped();
        let Some(process) = descendants().into_iter().find(is_stopped) else {
            *stopped = None;
            return None;
        };
        let since = match *stopped {
            Some((id, since)) if id == process.id => since,
            _ => stopped.insert((process.id, Instant::now())).1,
        };
        let milliseconds = since.elapsed().as_millis() as u64;
        (since.elapsed() >= self.spec.patience).then_some(Ending::Stopped {
            process: process.id,
            name: process.name,
            milliseconds,
        })
    }
}
