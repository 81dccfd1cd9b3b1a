//! Keeps one worker: starts its program, hands its lines on, watches it, and leaves nothing of it behind.
//!
//! A keeper is this program again, started by the agent of its machine or by mpirun, and it talks to that agent only. It
//! ends with the agent, however that ends, and takes all processes below it along.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::devices::of_worker;
use crate::output::{Output, kind};
use crate::program::interpreted;
use crate::signals::Signals;
use crate::spec::{AFTER_WORDS, Ending, KEEPER, Report, Spec, WORKER, Word};
use crate::system::{Change, Signal, Stream, adopt_orphans, bound, die_with_parent, next_change, send_group};
use crate::tree::{Process, descendants, end_all};

const LOOK: Duration = Duration::from_millis(20);
/// How often all processes are looked at.
const SURVEY: Duration = Duration::from_millis(500);
/// How long lines may take to arrive once all processes have ended.
const LAST_LINES: Duration = Duration::from_secs(2);

/// A keeper at work.
struct Keeper {
    spec: Spec,
    worker: usize,
    /// Whether mpirun has started it, and ends it.
    is_by_mpi: bool,
    signals: Signals,
    words: Receiver<Word>,
    output: Output,
    asked: bool,
}

/// Does what the spec at this socket says. Failures of the program are told to the agent; what comes back is what kept the
/// keeper from doing so.
pub(crate) fn keep(socket: &OsStr) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let signals = Signals::new().map_err(text)?;
    die_with_parent(Signal::TERM).and_then(|()| adopt_orphans()).map_err(text)?;
    let (worker, is_by_mpi) = match std::env::var(WORKER) {
        Ok(worker) => (worker.parse().map_err(|_| format!("{WORKER} = `{worker}`: not a number"))?, false),
        Err(_) => (worker_of_mpi()?, true),
    };
    let socket = Stream::connect(socket).map_err(|error| format!("the launcher is gone: {error}"))?;
    let (mut reader, mut spec) = (BufReader::new(socket.try_clone().map_err(text)?), Vec::new());
    reader.read_until(b'\n', &mut spec).map_err(|error| format!("the launcher gives no spec: {error}"))?;
    let spec: Spec = serde_json::from_slice(&spec).map_err(|error| format!("{KEEPER}: {error}"))?;
    let words = listen(reader);
    let output = Output::new(socket, spec.log_dir.as_deref().map(Path::new), worker, spec.restart);
    let output = output.map_err(|error| format!("the log of worker {worker} cannot be written: {error}"))?;
    output.tell(kind::WORKER, format!("{worker} {}", std::process::id()).as_bytes());
    Keeper { spec, worker, is_by_mpi, signals, words, output, asked: false }.live();
    Ok(())
}

/// The worker that MPI says this is.
fn worker_of_mpi() -> Result<usize, String> {
    let worker =
        ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].into_iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
    worker.ok_or_else(|| "mpirun says neither by OMPI_COMM_WORLD_RANK nor by PMI_RANK which worker this is".into())
}

fn listen(socket: BufReader<Stream>) -> Receiver<Word> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let lines = socket.lines().map_while(Result::ok);
        let words = lines.map(|line| serde_json::from_str(&line).unwrap_or(Word::End)).chain([Word::End]);
        let _ = words.map(|word| sender.send(word)).find(Result::is_err);
    });
    receiver
}

impl Keeper {
    /// The life of the worker.
    fn live(&mut self) {
        let (child, lines) = match self.start() {
            Ok(started) => started,
            Err(ending) => return self.report(ending),
        };
        let ending = self.watch(&child);
        // All agents hear it now, not when all is cleared up.
        self.report(ending);
        end_all(self.spec.grace, |_, _| {});
        let begin = Instant::now();
        while lines.iter().any(|pump| !pump.is_finished()) && begin.elapsed() < LAST_LINES {
            thread::sleep(LOOK);
        }
    }

    fn report(&self, ending: Ending) {
        let report = Report { ending, asked: self.asked };
        // It is made of numbers and text.
        let report = serde_json::to_vec(&report).unwrap_or_default();
        self.output.tell(kind::REPORT, &report);
    }

    /// What the agent says within a moment, or mpirun, which ends its processes by a signal. One that others send, to all
    /// processes of a session or a job, has reached the agent, too, which hands it on; its death is heard from its socket.
    fn hear(&self) -> Option<Word> {
        let is_ended = self.signals.take().is_some() && self.is_by_mpi;
        if is_ended { Some(Word::End) } else { self.words.recv_timeout(LOOK).ok() }
    }

    /// Starts the program, once it is to be.
    fn start(&mut self) -> Result<(Child, [JoinHandle<()>; 2]), Ending> {
        let (id, address) = loop {
            match self.hear() {
                Some(Word::Start { id, address }) => break (id, address),
                // A signal is for a program that need not be started any more.
                Some(_) => return Err(Ending::Released),
                None => {}
            }
        };
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
        for name in [KEEPER, WORKER, "EPL_LAUNCH_RENDEZVOUS", "EPL_LAUNCH_SECRET", "EPL_LAUNCH_WATCH"] {
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
        command.envs(self.spec.watched.iter().map(|folder| ("EPL_LAUNCH_WATCH", folder)));
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
    fn watch(&mut self, child: &Child) -> Ending {
        let (mut surveyed, mut stopped, mut released) = (Instant::now(), None, None::<Instant>);
        loop {
            // First: a program that has ended has ended by itself, whatever comes of it.
            while let Some((process, change)) = next_change() {
                match change {
                    Change::Exited(code) if process == child.id() => return Ending::Exited(code),
                    Change::Killed(signal) if process == child.id() => return Ending::Killed(signal),
                    _ => {}
                }
            }
            match self.hear() {
                Some(Word::Signal(signal)) => {
                    self.asked = true;
                    send_group(child.id(), signal);
                }
                Some(Word::Release) => released = released.or(Some(Instant::now())),
                Some(Word::End) => return Ending::Released,
                Some(Word::Start { .. }) | None => {}
            }
            let patience = match self.spec.program_secret {
                // It has the user's signal, and may be saving: another one would end it at once.
                _ if self.asked => self.spec.grace,
                // Programs that meet have heard it, too, and one of them may be who said it: it ends by itself.
                Some(_) => AFTER_WORDS,
                None => Duration::ZERO,
            };
            if released.is_some_and(|released| released.elapsed() >= patience) {
                return Ending::Released;
            }
            if surveyed.elapsed() >= SURVEY {
                surveyed = Instant::now();
                if let Some(ending) = self.survey(child.id(), &mut stopped) {
                    return ending;
                }
            }
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
