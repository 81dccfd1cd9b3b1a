//! The session of the agents, one a machine: each joins it once, it lives through all restarts, and the first machine
//! serves it. All that attempts need are its keys:
//!
//! | key | value | who sets it |
//! |---|---|---|
//! | `what machines are given` | options that must be the same | every machine |
//! | `the run` | what no other run has | the first machine |
//! | `R/programs` | where the programs of attempt R meet | the first machine |
//! | `R/first` | whose program failed first, as programs that meet were told, and what it said | the first machine |
//! | `R/failure` | the root cause of the failure of attempt R | who knows it first |
//! | `R/done/M` | nothing: the workers of machine M have ended well | machine M |
//! | `R/can/M` | whether machine M can start once more | machine M |

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use epl_launch::rendezvous::{Client, Event, Refusal, Server, Settings};
use epl_launch::{Error, Result, Store};

use crate::root_cause::First;
use crate::run::{Run, resolve};
use crate::signals::Signals;
use crate::socket::Told;
use crate::spec::{RootCause, Word, key};

const TERMS: &str = "what machines are given";
const ID: &str = "the run";
const LOOK: Duration = Duration::from_millis(20);
/// For ever, as far as a rendezvous can tell.
const EVER: Duration = Duration::from_secs(1 << 32);
/// The end of an attempt may take other machines so much longer than the grace of their workers.
const OTHERS: Duration = Duration::from_secs(10);
/// So many refused connections are told, of strangers and of machines, and the others counted.
const REFUSALS: usize = 5;

/// One agent's place in the session.
pub(crate) struct Agents {
    pub run: Arc<Run>,
    /// On the first machine.
    server: Option<Arc<Server>>,
    client: OnceLock<Result<Client>>,
    strangers: Arc<AtomicUsize>,
}

fn key_of(restart: u32, what: &str, machine: usize) -> String {
    format!("{restart}/{what}/{machine}")
}

impl Agents {
    /// Serves, where this is the first machine. Nobody has joined yet.
    pub fn begin(run: Arc<Run>) -> Result<Arc<Self>, String> {
        let strangers = Arc::new(AtomicUsize::new(0));
        let mut agents = Self { run, server: None, client: OnceLock::new(), strangers };
        if agents.run.share.machine == 0 {
            let server = agents.serve()?;
            server.set(ID, agents.run.id.as_bytes()).map_err(|error| error.to_string())?;
            agents.server = Some(Arc::new(server));
        }
        Ok(Arc::new(agents))
    }

    fn serve(&self) -> Result<Server, String> {
        let run = &self.run;
        let secret = run.secret_of_agents().map_err(|error| error.to_string())?;
        let mut settings = Settings::new(run.share.machines, secret);
        settings.join_within = Some(run.arguments.join_timeout);
        settings.silence = run.arguments.patience;
        if let Some(first) = run.arguments.machine_list.first() {
            settings.address = resolve(first)?;
        }
        let (merged, strangers, members) = (run.merged.clone(), self.strangers.clone(), AtomicUsize::new(0));
        let told = move |event: &Event| {
            let Event::Refused(peer, refusal) = event else { return };
            let counted = if matches!(refusal, Refusal::Stranger(_)) { &*strangers } else { &members };
            if counted.fetch_add(1, Ordering::SeqCst) < REFUSALS {
                merged.say(&format!("refused {peer}: {refusal}"));
            }
        };
        Server::start_with(settings, told).map_err(|error| error.to_string())
    }

    /// Where the programs of an attempt meet, on the first machine; which of them fails first is told to all.
    pub fn serve_programs(&self, restart: u32, told: Sender<Told>) -> Result<Option<Server>> {
        let run = &self.run;
        let Some(agents) = self.server.as_ref().filter(|_| run.programs_meet()) else { return Ok(None) };
        let mut settings = Settings::new(run.choice.workers, run.secret_of_programs()?);
        settings.address = agents.address();
        // The arguments have a port that has a next one.
        let port = if run.share.machines == 1 { 0 } else { settings.address.port() + 1 };
        settings.address.set_port(port);
        settings.restart = restart;
        settings.silence = run.arguments.patience;
        let (session, strangers) = (agents.clone(), self.strangers.clone());
        let see = move |event: &Event| match event {
            Event::Refused(_, Refusal::Stranger(_)) => drop(strangers.fetch_add(1, Ordering::SeqCst)),
            Event::Failed(failure) => {
                // Nobody else sets it, and an attempt that is over is told nothing.
                let _ = session.set(&key(restart, "first"), &First::encode(failure));
                let (cause, wait) = First::alone(failure);
                let _ = told.send(Told::First(cause, wait));
            }
            _ => {}
        };
        let server = Server::start_with(settings, see)?;
        let address = match run.arguments.machine_list.first().and_then(|first| first.rsplit_once(':')) {
            // As other machines know it, which this one may know by another address.
            Some((host, _)) if run.share.machines > 1 => format!("{host}:{port}"),
            _ => server.address().to_string(),
        };
        agents.set(&key(restart, "programs"), address.as_bytes())?;
        Ok(Some(server))
    }

    /// This agent's client. The first who asks joins; all wait until the agents of all machines have.
    pub fn client(&self) -> Result<&Client> {
        let join = || {
            let run = &self.run;
            let limit = run.arguments.join_timeout;
            let (address, limit) = match &self.server {
                // It says who does not come in time.
                Some(server) => (server.address().to_string(), limit.saturating_add(OTHERS)),
                None => (run.arguments.machine_list[0].clone(), limit),
            };
            let (machine, machines) = (run.share.machine, run.share.machines);
            Client::join(&address, machine, machines, &run.secret_of_agents()?, limit)
        };
        self.client.get_or_init(join).as_ref().map_err(Clone::clone)
    }

    /// The client, if all have joined.
    pub fn joined(&self) -> Option<&Client> {
        self.client.get()?.as_ref().ok()
    }

    /// Does something that takes its time in the session, and tells what comes of it: that, or that the session has ended.
    pub fn spawn(
        self: &Arc<Self>,
        told: Sender<Told>,
        work: impl FnOnce(&Self, &Client) -> Result<Told> + Send + 'static,
    ) {
        let agents = self.clone();
        thread::spawn(move || {
            let done = agents.client().and_then(|client| work(&agents, client));
            // An attempt that is over is told nothing.
            let _ = told.send(done.unwrap_or_else(|error| Told::Failed(agents.lost(&error))));
        });
    }

    /// What programs of an attempt are started with; or why none are, as machines were given other things.
    pub fn beginning(&self, client: &Client, restart: u32) -> Result<Told> {
        let run = &self.run;
        let own = run.terms();
        if let Err(error) = client.set(TERMS, own.as_bytes()) {
            let other = client.get(TERMS, Duration::ZERO).map_err(|_| error)?;
            let other = String::from_utf8_lossy(&other);
            let cause = format!(
                "failed: it could not be started: this machine has `{own}`, and another `{other}`; give all machines the same"
            );
            let cause = RootCause { is_final: true, ..RootCause::of_worker(run.share.first, cause, 2) };
            return Ok(Told::Failed(cause.settle(client, restart, Duration::ZERO)));
        }
        let limit = run.arguments.join_timeout;
        let text = |key: &str| client.get(key, limit).map(|value| String::from_utf8_lossy(&value).into_owned());
        let address = run.programs_meet().then(|| text(&key(restart, "programs"))).transpose()?;
        Ok(Told::Start(Word::Start { id: text(ID)?, address }))
    }

    /// What ended the session, as the root cause: the agent of a machine that is gone, or does not come.
    pub fn lost(&self, error: &Error) -> RootCause {
        let run = &self.run;
        // Members of this session are machines; one that has one worker is known by that.
        let stands_for_worker = run.choice.workers == run.share.machines;
        let text = error.to_string();
        RootCause::of_agent(if stands_for_worker { text } else { text.replace("worker", "machine") }, 1)
    }

    /// Whether the workers of a machine have ended well, for which it is waited for a moment; of this one it is told. Each agent
    /// asks in the order of the machines.
    pub fn is_done(&self, restart: u32, machine: usize) -> Result<bool> {
        let (client, key) = (self.client()?, key_of(restart, "done", machine));
        if machine == self.run.share.machine {
            return client.set(&key, b"").map(|()| true);
        }
        match client.get(&key, 10 * LOOK) {
            Ok(_) => Ok(true),
            Err(Error::Unset { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The restart decision: whether this machine and all others can start once more. Says so where it is another machine
    /// that cannot.
    pub fn agree(&self, restart: u32, can: bool, signals: &Signals) -> bool {
        while self.client.get().is_none() {
            if !can || signals.are_there() {
                return false;
            }
            thread::sleep(LOOK);
        }
        // Who has said yes is held to it: the others may have begun. A signal then ends what is begun.
        match self.decide(restart, can && !signals.are_there()) {
            Ok(None) => return true,
            Ok(Some(machine)) if machine == self.run.share.machine => {}
            Ok(Some(machine)) => {
                let address = &self.run.arguments.machine_list[machine];
                self.run.merged.say(&format!("no restart: machine {machine} ({address}) does not"));
            }
            Err(error) => {
                let cause = self.lost(&error).cause;
                self.run.merged.say(&format!("no restart, as the machines could not agree on it: {cause}"));
            }
        }
        false
    }

    /// Says what this machine can; the first machine that cannot comes back.
    fn decide(&self, restart: u32, can: bool) -> Result<Option<usize>> {
        let (client, share) = (self.client()?, self.run.share);
        client.set(&key_of(restart, "can", share.machine), if can { b"yes" } else { b"no" })?;
        if !can {
            return Ok(Some(share.machine));
        }
        let limit = self.run.arguments.grace.saturating_add(OTHERS);
        let mut refused = None;
        for machine in 0..share.machines {
            if client.get(&key_of(restart, "can", machine), limit)? != b"yes" {
                refused = refused.or(Some(machine));
            }
        }
        if let (Some(server), Some(old)) = (&self.server, restart.checked_sub(1)) {
            // All are past it.
            let of_all = ["programs", "first", "failure"].map(|what| key(old, what));
            let of_each =
                (0..share.machines).flat_map(|machine| ["done", "can"].map(|what| key_of(old, what, machine)));
            of_all.into_iter().chain(of_each).for_each(|key| drop(server.forget(&key)));
        }
        Ok(refused)
    }

    /// Leaves. Who serves waits until the others have heard how the run has ended, and left.
    pub fn leave(&self, signals: &Signals) {
        self.joined().into_iter().for_each(Client::leave);
        if let Some(server) = self.server.clone().filter(|_| self.joined().is_some()) {
            let closing = thread::spawn(move || server.close());
            let (begin, limit) = (Instant::now(), self.run.arguments.grace.saturating_add(OTHERS));
            while !closing.is_finished() && begin.elapsed() < limit && !signals.are_there() {
                thread::sleep(LOOK);
            }
        }
        let refused = self.strangers.load(Ordering::SeqCst);
        if refused > 0 {
            self.run.merged.say(&format!("{refused} connections of strangers were refused"));
        }
    }
}

/// When an attempt's failure is known: not before there is one.
pub(crate) fn failure(client: &Client, restart: u32) -> Result<Told> {
    let value = client.get(&key(restart, "failure"), EVER)?;
    Ok(Told::Failed(RootCause::decode(&value)))
}
