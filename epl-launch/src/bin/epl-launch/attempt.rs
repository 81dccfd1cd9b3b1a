//! One start of all workers of this machine, to its end: takes in what is told, hands signals on, and ends all when one fails.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use epl_launch::rendezvous::Fault;

use crate::agents::Agents;
use crate::all_machines::AllMachines;
use crate::outcome::{Evidence, Outcome};
use crate::root_cause::{IS_KNOWN, News};
use crate::screen::Screen;
use crate::signals::Signals;
use crate::socket::{Socket, Told};
use crate::spec::{RootCause, Word};
use crate::system::{Change, Signal, Stream, next_change, send};
use crate::tree::{Process, descendants, end_all};

const LOOK: Duration = Duration::from_millis(20);
/// How often it is looked whether a keeper, or mpirun, is stopped.
const SURVEY: Duration = Duration::from_millis(500);
/// Keepers may take this longer than the grace of their workers, after which nobody is asked any more.
const KEEPERS: Duration = Duration::from_secs(5);

/// How the agent reaches a keeper.
struct Contact {
    process: u32,
    /// None once it is gone.
    stream: Option<Stream>,
}

/// An attempt under way.
struct Attempt<'a> {
    agents: &'a Arc<Agents>,
    restart: u32,
    signals: &'a Signals,
    socket: Socket,
    news: Arc<News>,
    /// What programs are started with, once that is known.
    start: Option<Word>,
    /// Children that have not ended.
    living: Vec<(u32, String)>,
    /// Of each worker, once it is there.
    keepers: BTreeMap<usize, Contact>,
    /// Workers whose end is told, or about to be.
    blamed: BTreeSet<usize>,
    /// Whether it is being found out why the attempt has failed: it has, though all may have ended well.
    is_failing: bool,
    /// Keepers and children that are stopped, and since when; and when that was looked at.
    stopped: BTreeMap<u32, Instant>,
    surveyed: Instant,
    evidence: Evidence,
    /// When nobody is asked any more.
    deadline: Option<Instant>,
    /// Signals of the user.
    received: usize,
}

impl Contact {
    /// One that is gone is told nothing, and missed otherwise.
    fn tell(&mut self, word: &Word) {
        let word = serde_json::to_string(word).unwrap_or_default();
        let _ = self.stream.as_mut().map(|stream| writeln!(stream, "{word}"));
    }
}

impl Agents {
    /// Starts the workers of this machine, and comes back when none is left, and it is known how the attempt has ended.
    pub fn attempt(self: &Arc<Self>, restart: u32, signals: &Signals) -> Outcome {
        self.run_attempt(restart, signals).unwrap_or_else(|cause| {
            if self.joined().is_none() && self.run.share.machines > 1 {
                self.run.merged.say(&format!("waits for the other machines, to tell them: {cause}"));
            }
            // No other start comes further.
            let cause = RootCause { is_final: true, ..RootCause::of_agent(cause, 1) };
            let cause = match self.join_to_tell(signals) {
                Some(client) => cause.settle(client, restart),
                None => cause,
            };
            Evidence { root_cause: Some(cause), ..Evidence::default() }.outcome()
        })
    }

    fn run_attempt(self: &Arc<Self>, restart: u32, signals: &Signals) -> Result<Outcome, String> {
        let run = &self.run;
        let mut spec = run.spec(restart);
        // Until all have ended.
        let machines = || AllMachines::new(self.clone(), restart);
        let screen = run.arguments.watch.then(|| Screen::start(machines(), spec.local_ranks, &run.merged));
        let screen = screen.transpose().map_err(|error| format!("--watch: {error}"))?;
        spec.watched = screen.as_ref().map(|screen| screen.folder().as_os_str().to_os_string());
        let socket = Socket::open(&run.merged, &spec).map_err(|error| error.to_string())?;
        let _programs = self.serve_programs(restart, socket.sender()).map_err(|error| error.to_string())?;
        let living = run.start(spec.first, &socket.path()).inspect_err(|_| end_all(Duration::ZERO, |_, _| {}))?;
        self.spawn(socket.sender(), move |agents, client| agents.beginning(client, restart));
        let news = Arc::<News>::default();
        let hearing = news.clone();
        self.spawn(socket.sender(), move |_, client| hearing.failure(client, restart));
        let mut attempt = Attempt {
            agents: self,
            restart,
            signals,
            socket,
            news,
            start: None,
            living,
            keepers: BTreeMap::new(),
            blamed: BTreeSet::new(),
            is_failing: false,
            stopped: BTreeMap::new(),
            surveyed: Instant::now(),
            evidence: Evidence { expected: run.here(), ..Evidence::default() },
            deadline: None,
            received: 0,
        };
        attempt.until_all_have_ended();
        attempt.until_the_others_have();
        Ok(attempt.evidence.outcome())
    }
}

impl Attempt<'_> {
    /// Watches over the processes of this machine.
    fn until_all_have_ended(&mut self) {
        while !self.living.is_empty() {
            self.listen();
            while let Some((child, change)) = next_change() {
                self.ended(child, change);
            }
            self.give_up_stopped();
            self.hear_user();
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.kill();
            }
        }
        // What keepers told last is on its way.
        let begin = Instant::now();
        while self.keepers.values().any(|keeper| keeper.stream.is_some()) && begin.elapsed() < KEEPERS {
            self.listen();
        }
        self.kill();
    }

    /// A machine whose workers have ended well stays until those of all machines have, or one has failed.
    fn until_the_others_have(&mut self) {
        let missing = self.evidence.missing();
        if missing > 0 && self.blamed.is_empty() {
            let cause = format!("{missing} of {} workers ended without a word", self.evidence.expected);
            self.blame(RootCause::of_agent(cause, 1), IS_KNOWN);
        }
        let mut machines = 0..self.agents.run.share.machines;
        while !self.is_over() && (missing > 0 || self.is_failing || !machines.is_empty()) {
            self.listen();
            self.hear_user();
            let may_ask = missing == 0 && !self.is_failing && !machines.is_empty();
            match if may_ask { self.agents.is_done(self.restart, machines.start) } else { Ok(false) } {
                Ok(is_done) => machines.start += usize::from(is_done),
                Err(error) => self.fail(self.agents.lost(&error)),
            }
        }
        // All others have heard of it, however it has come to be known here.
        if let (Some(client), Some(cause)) = (self.agents.joined(), self.evidence.told()) {
            self.evidence.root_cause = Some(cause.settle(client, self.restart));
        }
    }

    /// Whether it is known how the attempt ends, which is not well.
    fn is_over(&self) -> bool {
        self.evidence.root_cause.is_some() || self.evidence.given_up.is_some()
    }

    /// Takes in what is told, for a moment.
    fn listen(&mut self) {
        let begin = Instant::now();
        while let Ok(told) = self.socket.told().recv_timeout(LOOK.saturating_sub(begin.elapsed())) {
            match told {
                Told::Here(worker, process, stream) => {
                    let mut keeper = Contact { process, stream: Some(stream) };
                    if self.is_over() {
                        keeper.tell(&Word::Release);
                    } else if let Some(start) = &self.start {
                        keeper.tell(start);
                    }
                    self.keepers.insert(worker, keeper);
                }
                Told::Program(worker, process) => drop(self.evidence.programs.insert(worker, process)),
                Told::Ended(worker, report) => {
                    if let Some((cause, code)) = report.ending.cause() {
                        // Whom a signal has reached comes after who has failed by itself.
                        let wait = if report.asked { IS_KNOWN } else { Duration::ZERO };
                        self.blame(RootCause::of_worker(worker, format!("failed: {cause}"), code), wait);
                    }
                    self.evidence.reports.insert(worker, report);
                }
                Told::Gone(worker, tail) => {
                    self.keepers.get_mut(&worker).into_iter().for_each(|keeper| keeper.stream = None);
                    self.evidence.tails.insert(worker, tail);
                    if !self.evidence.reports.contains_key(&worker) {
                        self.blame(RootCause::of_worker(worker, Fault::Lost.to_string(), 1), Duration::ZERO);
                    }
                }
                Told::Start(word) => {
                    self.tell_all(&word);
                    self.start = Some(word);
                }
                Told::First(cause, wait, counts) => self.settle(cause, wait, false, counts),
                Told::Failed(cause) => self.fail(cause),
            }
        }
    }

    fn tell_all(&mut self, word: &Word) {
        self.keepers.values_mut().for_each(|keeper| keeper.tell(word));
    }

    /// Something here has failed, and may be the root cause. Of a worker, the first that is seen counts.
    fn blame(&mut self, cause: RootCause, wait: Duration) {
        let may_be_later = cause.worker.is_some() && self.agents.run.programs_meet();
        if cause.worker.is_none_or(|worker| self.blamed.insert(worker)) {
            self.settle(cause, wait, may_be_later, true);
        }
    }

    /// Has all agents know the root cause, unless another one comes within `wait`, or another program was the first. What does
    /// not count is nothing where all workers end well before that.
    fn settle(&mut self, cause: RootCause, wait: Duration, may_be_later: bool, counts: bool) {
        if self.is_over() {
            return;
        }
        if self.agents.joined().is_none() {
            // There is nobody who could be told.
            return self.fail(cause);
        }
        self.is_failing |= counts;
        let (restart, news) = (self.restart, self.news.clone());
        self.agents.spawn(self.socket.sender(), move |_, client| {
            Ok(Told::Failed(news.settle(cause, wait, may_be_later, client, restart)))
        });
    }

    /// The attempt has failed: from now on all are to end.
    fn fail(&mut self, cause: RootCause) {
        if self.evidence.root_cause.is_none() {
            self.evidence.root_cause = Some(cause);
            self.deadline = Some(Instant::now() + self.agents.run.arguments.grace + KEEPERS);
            self.tell_all(&Word::Release);
        }
    }

    fn ended(&mut self, child: u32, change: Change) {
        let Some(index) = self.living.iter().position(|(id, _)| *id == child) else { return };
        let (_, name) = self.living.swap_remove(index);
        let (code, how) = match change {
            Change::Exited(code) => (code, format!("exited with code {code}")),
            Change::Killed(signal) => (128 + signal, format!("was killed by signal {signal}")),
        };
        // A keeper that was there is missed by its socket.
        if code != 0 && !self.keepers.values().any(|keeper| keeper.process == child) {
            self.blame(RootCause::of_agent(format!("{name} {how}"), code), IS_KNOWN);
        }
    }

    /// Kills what has been stopped for too long: it would neither end nor end its workers.
    fn give_up_stopped(&mut self) {
        if self.surveyed.elapsed() < SURVEY {
            return;
        }
        self.surveyed = Instant::now();
        let all: BTreeSet<u32> =
            self.living.iter().map(|(id, _)| *id).chain(self.keepers.values().map(|keeper| keeper.process)).collect();
        let is_stopped = |process: &u32| Process::of(*process).is_some_and(|process| process.is_stopped());
        let still: BTreeSet<u32> = all.into_iter().filter(is_stopped).collect();
        self.stopped.retain(|process, _| still.contains(process));
        for process in still {
            self.stopped.entry(process).or_insert_with(Instant::now);
        }
        let patience = self.agents.run.arguments.patience;
        let overdue = self.stopped.iter().find(|(_, since)| since.elapsed() >= patience);
        let Some((process, time)) = overdue.map(|(process, since)| (*process, since.elapsed())) else { return };
        let cause = match self.keepers.iter().find(|(_, keeper)| keeper.process == process) {
            Some((worker, _)) => RootCause::of_worker(*worker, Fault::Silent(time).to_string(), 1),
            None => {
                let name = self.living.iter().find(|(id, _)| *id == process).map_or("a process", |(_, name)| name);
                let seconds = patience.as_secs_f64();
                RootCause::of_agent(format!("{name} (process {process}) has been stopped for {seconds:.1} s"), 1)
            }
        };
        self.blame(cause, Duration::ZERO);
        send(process, Signal::KILL);
    }

    /// Hands signals on; who sends three does not want to wait, nor who sends one when there is nobody left who could hear it.
    fn hear_user(&mut self) {
        let Some(signal) = self.signals.take() else { return };
        self.received += 1;
        self.evidence.interrupted = Some(signal);
        if self.living.is_empty() || self.evidence.programs.is_empty() || self.received > 2 {
            self.evidence.given_up = Some(signal);
            return self.kill();
        }
        self.tell_all(&Word::Signal(signal));
    }

    /// Ends all that is left, at once.
    fn kill(&mut self) {
        if !self.living.is_empty() || !descendants().is_empty() {
            end_all(Duration::ZERO, |_, _| {});
            self.living.clear();
        }
    }
}
