//! Whether a run that failed is started again: all machines do, or none.
//!
//! Each launcher knows something that the others do not, such as that its user wants an end. After the end of all
//! workers they meet once more, at the address of the first machine, and each says whether it can.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use epl_launch::Store;
use epl_launch::rendezvous::{Client, Secret, Server, Settings};

use crate::run::{Run, resolve};
use crate::signals::Signals;
use crate::spec::time_of_vote;

const LOOK: Duration = Duration::from_millis(20);
/// The end of an attempt may take other machines so much longer than the grace of their workers.
const OTHERS: Duration = Duration::from_secs(10);

/// How far one machine has come.
enum Stage {
    Asked,
    /// Its word is out.
    Said,
    /// Its user wants an end, and it says nothing any more.
    Withdrawn,
}

/// One machine's part in a vote.
struct Vote {
    address: String,
    machine: usize,
    machines: usize,
    time: u32,
    secret: Secret,
    limit: Duration,
    stage: Arc<Mutex<Stage>>,
}

impl Run {
    /// Whether this machine and all others can start once more. Says so where it is another machine that cannot.
    pub fn agree(&self, restart: u32, can: bool, signals: &Signals) -> bool {
        let Some(address) = self.arguments.machine_list.first().filter(|_| self.share.machines > 1) else { return can };
        let secret = match self.secrets() {
            Ok([secret, _]) => secret,
            Err(error) => {
                self.merged.say(&format!("no restart: {error}"));
                return false;
            }
        };
        let (machine, machines) = (self.share.machine, self.share.machines);
        let limit = self.arguments.grace.saturating_add(OTHERS);
        let (address, time, stage) = (address.clone(), time_of_vote(restart), Arc::new(Mutex::new(Stage::Asked)));
        let vote = Vote { address, machine, machines, time, secret, limit, stage: stage.clone() };
        let voting = thread::spawn(move || vote.take(can));
        while !voting.is_finished() {
            // Who has said yes is held to it: the others may have begun. The signal then ends what is begun.
            let mut stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
            if signals.are_there() && matches!(*stage, Stage::Asked) {
                *stage = Stage::Withdrawn;
                return false;
            }
            drop(stage);
            thread::sleep(LOOK);
        }
        let refused = match voting.join() {
            Ok(Ok(refused)) => refused,
            Ok(Err(error)) => {
                self.merged.say(&format!("no restart, as the machines could not agree on it: {error}"));
                return false;
            }
            Err(_) => return false,
        };
        if let Some(other) = refused.filter(|other| *other != machine) {
            self.merged.say(&format!("no restart: machine {other} ({}) does not", self.arguments.machine_list[other]));
        }
        refused.is_none()
    }
}

impl Vote {
    /// Says what this machine can; the first machine that cannot comes back.
    fn take(self, can: bool) -> Result<Option<usize>, String> {
        let server = (self.machine == 0).then(|| self.serve()).transpose()?;
        let refused = self.ask(can).map_err(|error| error.to_string());
        // The others must have heard, too.
        server.iter().for_each(Server::close);
        refused
    }

    fn serve(&self) -> Result<Server, String> {
        let mut settings = Settings::new(self.machines, self.secret.clone());
        settings.address = resolve(&self.address)?;
        settings.restart = self.time;
        Server::start(settings).map_err(|error| error.to_string())
    }

    fn ask(&self, can: bool) -> epl_launch::Result<Option<usize>> {
        let Self { address, machine, machines, time, secret, limit, stage } = self;
        let client = Client::join_again(address, *machine, *machines, *time, secret, *limit)?;
        let key = |machine: usize| format!("machine {machine}");
        {
            let mut stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
            let can = can && !matches!(*stage, Stage::Withdrawn);
            *stage = Stage::Said;
            client.set(&key(*machine), if can { b"yes" } else { b"no" })?;
        }
        let mut refused = None;
        for other in 0..*machines {
            if client.get(&key(other), *limit)? != b"yes" {
                refused = refused.or(Some(other));
            }
        }
        Ok(refused)
    }
}
