//! One start of all workers of this machine, to its end: takes in what is told, hands signals on, and ends all when one fails.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use epl_launch::rendezvous::Fault;

use crate::outcome::{Evidence, Outcome};
use crate::run::{Run, Servers};
use crate::signals::Signals;
use crate::socket::{Socket, Told};
use crate::system::{Change, Signal, next_change, send};
use crate::tree::{Process, descendants, end_all};

const LOOK: Duration = Duration::from_millis(20);
/// Keepers may take this longer than the grace of their workers, after which nobody is asked any more.
const KEEPERS: Duration = Duration::from_secs(5);
/// A program that says that it fails may take so long to end by itself.
const AFTER_WORDS: Duration = Duration::from_secs(2);

impl Run {
    /// Starts the workers, and comes back when none is left.
    pub fn attempt(&self, restart: u32, signals: &Signals) -> Result<Outcome, String> {
        let servers = (self.share.machine == 0).then(|| self.serve(restart)).transpose()?;
        let rendezvous = match &servers {
            Some(servers) => servers.keepers.address().to_string(),
            None => self.arguments.machine_list[0].clone(),
        };
        let spec = self.spec(restart, rendezvous);
        let socket = Socket::open(&self.merged, &spec).map_err(|error| error.to_string())?;
        let children = self.start(spec.first, &socket.path()).inspect_err(|_| end_all(Duration::ZERO, |_, _| {}))?;
        let mut watch = Watch {
            run: self,
            servers,
            signals,
            socket,
            living: children,
            keepers: BTreeMap::new(),
            processes: BTreeMap::new(),
            stopped: BTreeMap::new(),
            evidence: Evidence { expected: self.here(), ..Evidence::default() },
            deadline: None,
            received: 0,
            has_killed: false,
        };
        watch.until_the_end();
        Ok(watch.evidence.outcome())
    }
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
    /// Their processes.
    processes: BTreeMap<usize, u32>,
    /// Children that have been stopped, and since when.
    stopped: BTreeMap<u32, Instant>,
    evidence: Evidence,
    /// When nobody is asked any more.
    deadline: Option<Instant>,
    /// Signals of the user.
    received: usize,
    /// Whether all have been killed: what comes of that is no failure of theirs.
    has_killed: bool,
}

impl Watch<'_> {
    fn until_the_end(&mut self) {
        while !self.living.is_empty() {
            self.listen(LOOK);
            self.reap();
            self.give_up_stopped();
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
        self.let_others_leave();
        if let Some(servers) = &self.servers {
            if !self.has_killed {
                self.evidence.failure = self.evidence.failure.take().or_else(|| servers.keepers.failure());
            }
            let refused =
                servers.refused.load(Ordering::SeqCst) + servers.programs.as_ref().map_or(0, |s| s.refused() as usize);
            if refused > 0 {
                self.run.merged.say(&format!("{refused} connections of strangers were refused"));
            }
        }
    }

    /// Workers of other machines hear that all have ended, and leave, before their server goes.
    fn let_others_leave(&self) {
        let Some(servers) = &self.servers else { return };
        let begin = Instant::now();
        while servers.left() < self.run.all() && servers.keepers.failure().is_none() && begin.elapsed() < AFTER_WORDS {
            thread::sleep(LOOK);
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
                Told::Here(worker, process, stream) => {
                    self.processes.insert(worker, process);
                    self.keepers.insert(worker, Some(stream));
                }
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
        while let Some((child, change)) = next_change() {
            self.ended(child, change);
        }
    }

    fn ended(&mut self, child: u32, change: Change) {
        let Some(index) = self.living.iter().position(|(id, _)| *id == child) else { return };
        let (code, how) = match change {
            Change::Stopped => {
                self.stopped.entry(child).or_insert_with(Instant::now);
                return;
            }
            Change::Exited(code) => (code, format!("exited with code {code}")),
            Change::Killed(signal) => (128 + signal, format!("was killed by signal {signal}")),
        };
        let (_, name) = self.living.swap_remove(index);
        if code != 0 {
            self.evidence.own.get_or_insert((code, format!("{name} {how}")));
            self.is_ending();
        }
    }

    /// Kills what has been stopped for too long: it would neither end nor end its workers. Not a keeper that the rendezvous of
    /// this machine listens to: it is missed there, and who is killed before would be taken for lost.
    fn give_up_stopped(&mut self) {
        if self.stopped.is_empty() {
            return;
        }
        let still: Vec<u32> = descendants().into_iter().filter(Process::is_stopped).map(|process| process.id).collect();
        self.stopped.retain(|child, _| still.contains(child));
        let patience = self.run.arguments.patience;
        let is_listened_to = |child: u32| {
            let keeper = self.processes.iter().find_map(|(keeper, process)| (*process == child).then_some(*keeper));
            keeper.is_some_and(|keeper| self.servers.as_ref().is_some_and(|servers| servers.listen_to(keeper)))
        };
        let is_overdue = |child: u32, since: Instant| since.elapsed() >= patience && !is_listened_to(child);
        let overdue = self.stopped.iter().find(|(child, since)| is_overdue(**child, **since)).map(|(child, _)| *child);
        let Some(child) = overdue else { return };
        self.stopped.remove(&child);
        let name = self.living.iter().find(|(id, _)| *id == child).map_or("a process", |(_, name)| name);
        let cause = format!("{name} (process {child}) has been stopped for {:.1} s", patience.as_secs_f64());
        self.evidence.own.get_or_insert((1, cause));
        send(child, Signal::KILL);
        self.is_ending();
    }

    /// Hands signals on; who sends three does not want to wait.
    fn hear_user(&mut self) {
        let Some(signal) = self.signals.take() else { return };
        self.received += 1;
        self.evidence.interrupted = Some(signal);
        if self.evidence.programs.is_empty() || self.received > 2 {
            self.evidence.given_up = Some(signal);
            return self.kill();
        }
        for stream in self.keepers.values_mut().flatten() {
            let _ = writeln!(stream, "signal {signal}");
        }
    }

    /// Whether a worker has failed, as others or its own program say.
    fn look_at_servers(&mut self) {
        let Some(servers) = self.servers.as_ref().filter(|_| !self.has_killed) else { return };
        let said = servers.said.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((failure, when)) = said {
            // A program that has lost its connection has ended, or is about to: its keeper knows more.
            let is_due = matches!(failure.fault, Fault::Silent(_)) || when.elapsed() >= AFTER_WORDS;
            if is_due && servers.keepers.failure().is_none() {
                let cause = match &failure.fault {
                    Fault::Failed(cause) => cause.clone(),
                    other => format!("its program {other}"),
                };
                servers.keepers.fail(failure.worker, &cause);
            }
            if !matches!(failure.fault, Fault::Lost) {
                self.evidence.said = Some(failure);
            }
        }
        if let Some(failure) = servers.keepers.failure() {
            // A keeper that is silent does not end by itself.
            let silent = matches!(failure.fault, Fault::Silent(_)).then(|| self.processes.remove(&failure.worker));
            if let Some(process) = silent.flatten() {
                send(process, Signal::KILL);
            }
            self.evidence.failure.get_or_insert(failure);
            self.is_ending();
        }
    }

    /// Ends all that is left, at once.
    fn kill(&mut self) {
        if self.living.is_empty() && descendants().is_empty() {
            return;
        }
        self.look_at_servers();
        self.has_killed = true;
        let mut seen = Vec::new();
        end_all(Duration::ZERO, |child, change| seen.push((child, change)));
        for (child, change) in seen {
            self.ended(child, change);
        }
        self.living.clear();
    }
}
