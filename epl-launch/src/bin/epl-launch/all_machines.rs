//! What the ranks of all machines do, as the first machine that watches sees it.
//!
//! It travels in the session of the agents, where a key takes one value: a machine sets its next key once the first machine has
//! forgotten the one before. So no more than one of each lies there, whether the first machine watches or not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use epl_launch::rendezvous::Client;
use epl_launch::watch::WorkerStatus;
use epl_launch::{Error, Result, Store};

use crate::agents::{Agents, heard};
use crate::spec::key;

/// Of an attempt.
pub(crate) struct AllMachines {
    agents: Arc<Agents>,
    restart: u32,
    /// By machine, how many keys of it are done with: on the first machine of all others, elsewhere its own.
    done: BTreeMap<usize, u64>,
    /// What was last heard of other machines.
    others: BTreeMap<usize, Vec<WorkerStatus>>,
}

impl AllMachines {
    pub fn new(agents: Arc<Agents>, restart: u32) -> Self {
        Self { agents, restart, done: BTreeMap::new(), others: BTreeMap::new() }
    }

    /// The first worker that is seen from this machine, and how many are.
    pub fn workers(&self) -> [usize; 2] {
        let run = &self.agents.run;
        if run.share.machine == 0 { [0, run.choice.workers] } else { [run.share.first, run.here()] }
    }

    /// With what the workers of this machine have told, that of all others. A session that has ended tells nothing more.
    pub fn with_others(&mut self, own: Vec<WorkerStatus>, now: Duration) -> Vec<WorkerStatus> {
        let agents = self.agents.clone();
        if let Some(client) = agents.joined().filter(|_| agents.run.share.machines > 1) {
            let _ = match agents.run.share.machine {
                0 => self.hear(client, now),
                machine => self.tell(client, machine, &own, now),
            };
        }
        own.into_iter().chain(self.others.values().flatten().cloned()).collect()
    }

    fn key(&self, machine: usize, number: u64) -> String {
        key(self.restart, &format!("watch/{machine}/{number}"))
    }

    fn hear(&mut self, client: &Client, now: Duration) -> Result<()> {
        for machine in 1..self.agents.run.share.machines {
            let number = self.done.get(&machine).copied().unwrap_or(0);
            let key = self.key(machine, number);
            let Some(bytes) = heard(client, &key, Duration::ZERO)? else { continue };
            client.forget(&key)?;
            self.done.insert(machine, number + 1);
            // What cannot be read is of another version of this program.
            if let Ok(told) = postcard::from_bytes(&bytes) {
                self.others.insert(machine, turned(told, now));
            }
        }
        Ok(())
    }

    fn tell(&mut self, client: &Client, machine: usize, own: &[WorkerStatus], now: Duration) -> Result<()> {
        let number = self.done.get(&machine).copied().unwrap_or(0);
        let before = number.checked_sub(1).map(|before| heard(client, &self.key(machine, before), Duration::ZERO));
        if before.transpose()?.flatten().is_some() {
            return Ok(());
        }
        let bytes = postcard::to_stdvec(&turned(own.to_vec(), now));
        let bytes = bytes.map_err(|error| Error::Joining { message: error.to_string() })?;
        client.set(&self.key(machine, number), &bytes)?;
        self.done.insert(machine, number + 1);
        Ok(())
    }
}

/// Clocks of machines differ: what travels says how long ago it was told; and the other way.
fn turned(mut statuses: Vec<WorkerStatus>, now: Duration) -> Vec<WorkerStatus> {
    statuses.iter_mut().for_each(|status| status.told = now.saturating_sub(status.told));
    statuses
}
