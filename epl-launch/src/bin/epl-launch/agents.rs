//! The session of the agents, one a machine: each joins it once, it lives through all restarts, and the first machine
//! serves it. All that attempts need are its keys:
//!
//! | key | value | who sets it |
//! |---|---|---|
//! | `what machines are given`, `what else machines are given` | options that must be the same | every machine |
//! | `the run` | what no other run has | the first machine |
//! | `R/programs` | where the programs of attempt R meet | the first machine |
//! | `R/first` | whose program failed first, as programs that meet were told, and what it said | the first machine |
//! | `R/failure` | the root cause of the failure of attempt R | who knows it first |
//! | `R/done/M` | nothing: the workers of machine M have ended well | machine M |
//! | `R/can/M` | whether machine M can start once more | machine M |
//! | `R/again` | the restart decision: `yes`, or the machine that does not | the first machine, once all can; or who refuses |
//! | `R/watch/M/N` | what the ranks of machine M do, until the first machine has read it | machine M, if it watches |
//! | `left/M` | nothing: machine M has left, and sets no key any more | machine M |

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use epl_launch::rendezvous::{Client, Event, Fault, Refusal, Server, Settings};
use epl_launch::{Error, Result, Store};

use crate::arguments::Share;
use crate::outcome::Outcome;
use crate::root_cause::First;
use crate::run::{Run, resolve};
use crate::signals::Signals;
use crate::socket::Told;
use crate::spec::{AFTER_WORDS, RootCause, Word, key};

const TERMS: [&str; 2] = ["what machines are given", "what else machines are given"];
const ID: &str = "the run";
const LOOK: Duration = Duration::from_millis(20);
/// The end of an attempt may take other machines so much longer than the grace of their workers.
const OTHERS: Duration = Duration::from_secs(10);
/// The attempt of another machine may end so much later than this one's, beside the grace: its last lines, the end of what does
/// not end, and what it tells take their time.
const ATTEMPT_ENDS: Duration = Duration::from_secs(30);
/// That all start once more.
const YES: &[u8] = b"yes";
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

fn left(machine: usize) -> String {
    format!("left/{machine}")
}

/// What is said of workers, said of machines. A host's name may have the word within it.
fn of_machines(text: &str) -> String {
    let word = |word: &str| match word.trim_end_matches([',', ';', ')']) {
        "worker" | "workers" => word.replace("worker", "machine"),
        _ => word.to_string(),
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// A value, if somebody sets it within so long.
pub(crate) fn heard(client: &Client, key: &str, wait: Duration) -> Result<Option<Vec<u8>>> {
    match client.get(key, wait) {
        Ok(value) => Ok(Some(value)),
        Err(Error::Unset { .. }) => Ok(None),
        Err(error) => Err(error),
    }
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
                // A program that exits with 0 may do so without a word.
                let _ = told.send(Told::First(cause, wait, failure.fault != Fault::Lost));
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

    /// The client, once all have joined, for who cannot begin and has to tell them why. A signal ends the wait.
    pub fn join_to_tell(self: &Arc<Self>, signals: &Signals) -> Option<&Client> {
        let agents = self.clone();
        let joining = thread::spawn(move || agents.client().is_ok());
        while !joining.is_finished() && !signals.are_there() {
            thread::sleep(LOOK);
        }
        self.joined()
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
        for (key, own) in TERMS.into_iter().zip(run.terms()) {
            let Err(error) = client.set(key, own.as_bytes()) else { continue };
            // It may have been set though nobody answered in time.
            let other = client.get(key, Duration::ZERO).map_err(|_| error)?;
            if other == own.as_bytes() {
                continue;
            }
            let other = String::from_utf8_lossy(&other);
            let cause = format!(
                "failed: it could not be started: this machine has `{own}`, and another `{other}`; give all machines the same"
            );
            let cause = RootCause { is_final: true, ..RootCause::of_worker(run.share.first, cause, 2) };
            return Ok(Told::Failed(cause.settle(client, restart)));
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
        RootCause::of_agent(if stands_for_worker { text } else { of_machines(&text) }, 1)
    }

    /// Whether the workers of a machine have ended well, for which it is waited for a moment; of this one it is told. Each agent
    /// asks in the order of the machines.
    pub fn is_done(&self, restart: u32, machine: usize) -> Result<bool> {
        let (client, key) = (self.client()?, key_of(restart, "done", machine));
        if machine == self.run.share.machine {
            return client.set(&key, b"").map(|()| true);
        }
        if heard(client, &key, 10 * LOOK)?.is_some() {
            return Ok(true);
        }
        // It leaves after its last word.
        match heard(client, &left(machine), Duration::ZERO)? {
            Some(_) if heard(client, &key, Duration::ZERO)?.is_none() => {
                Err(Error::Joining { message: format!("machine {machine} has left before its workers ended well") })
            }
            Some(_) => Ok(true),
            None => Ok(false),
        }
    }

    /// The restart decision: whether this machine and all others start once more. Says so where it is another machine that
    /// does not.
    pub fn agree(&self, restart: u32, outcome: &Outcome, signals: &Signals) -> bool {
        while self.client.get().is_none() {
            if !outcome.can_restart || signals.are_there() {
                return false;
            }
            thread::sleep(LOOK);
        }
        // What failed before there was anybody to tell: the others have begun, and would wait for this machine.
        if let (Some(client), Some(cause)) = (self.joined(), &outcome.root_cause) {
            cause.tell(client, restart);
        }
        match self.decide(restart, outcome.can_restart, signals) {
            Ok(None) => return true,
            Ok(Some(machine)) if machine == self.run.share.machine => {}
            Ok(Some(machine)) => {
                let address = &self.run.arguments.machine_list[machine];
                self.run.merged.say(&format!("no restart: machine {machine} ({address}) does not"));
            }
            Err(error) => {
                let cause = self.lost(&error).cause;
                self.run.merged.say(&format!("no restart, as the machines could not agree on it: {cause}"));
                // The others may have: they are not to wait for this machine.
                self.joined().into_iter().for_each(|client| client.fail("could not agree on the restart"));
            }
        }
        false
    }

    /// Says what this machine can, and comes back with what all obey: that all start once more, or the machine that does not.
    /// A signal counts until that is known, and ends what is begun afterwards.
    fn decide(&self, restart: u32, can: bool, signals: &Signals) -> Result<Option<usize>> {
        let (client, Share { machine: own, machines, .. }) = (self.client()?, self.run.share);
        let again = key(restart, "again");
        // Refused where it is decided.
        let refuse = |machine: usize| drop(client.set(&again, machine.to_string().as_bytes()));
        let (begin, limit) = (Instant::now(), self.run.arguments.grace.saturating_add(ATTEMPT_ENDS));
        let can = can && !signals.are_there();
        client.set(&key_of(restart, "can", own), if can { YES } else { b"no" })?;
        let mut asked = 0..machines;
        let decided = loop {
            if !can || signals.are_there() {
                refuse(own);
            } else if begin.elapsed() >= limit {
                // Of the others only the first machine decides.
                refuse(if self.server.is_some() { asked.start } else { 0 });
            }
            if self.server.is_some()
                && let Some(can) = heard(client, &key_of(restart, "can", asked.start), 10 * LOOK)?
            {
                match asked.next() {
                    Some(machine) if can != YES => refuse(machine),
                    _ if asked.is_empty() => drop(client.set(&again, YES)),
                    _ => {}
                }
            }
            let wait = if self.server.is_some() { Duration::ZERO } else { 10 * LOOK };
            if let Some(decided) = heard(client, &again, wait)? {
                break decided;
            }
        };
        if decided == YES {
            self.forget_before(restart);
            return Ok(None);
        }
        Ok(Some(String::from_utf8_lossy(&decided).parse().ok().filter(|machine| *machine < machines).unwrap_or(own)))
    }

    /// Forgets all that was before this attempt: all machines are past it.
    fn forget_before(&self, restart: u32) {
        let (Some(server), Some(old)) = (&self.server, restart.checked_sub(1)) else { return };
        let of_all = ["programs", "first", "failure", "again"].map(|what| key(old, what));
        let machines = 0..self.run.share.machines;
        let of_each = machines.flat_map(|machine| ["done", "can"].map(|what| key_of(old, what, machine)));
        of_all.into_iter().chain(of_each).for_each(|key| drop(server.forget(&key)));
    }

    /// Leaves, after an attempt that has ended so. Who serves waits until the others have heard how the run has ended, and left.
    pub fn leave(&self, restart: u32, outcome: &Outcome, signals: &Signals) {
        if let Some(client) = self.joined() {
            match &outcome.root_cause {
                // The others would wait for this machine.
                Some(cause) if cause.tell(client, restart).is_none() => client.fail(&cause.cause),
                _ => {
                    let _ = client.set_within(&left(self.run.share.machine), b"", AFTER_WORDS);
                    client.leave();
                }
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_host_stays() {
        let text = "worker 1 could not join the rendezvous at worker-0.svc:7000: 2 of 4 workers, worker 3; workers";
        let told = "machine 1 could not join the rendezvous at worker-0.svc:7000: 2 of 4 machines, machine 3; machines";
        assert_eq!(of_machines(text), told);
    }
}
