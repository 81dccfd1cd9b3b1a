//! What the ranks of all machines do, as the first machine that watches sees it.
//!
//! It travels in the session of the agents, where a key takes one value, of a limited length: a machine sets its next keys, most
//! often one, once the first machine has forgotten the last one before. So there is no more than what it says at a moment,
//! whether the first machine watches or not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use epl_launch::rendezvous::{Client, MAX_VALUE};
use epl_launch::watch::WorkerStatus;
use epl_launch::{Result, Store};

use crate::agents::{Agents, heard};
use crate::spec::key;

/// Of an attempt.
pub(crate) struct AllMachines {
    agents: Arc<Agents>,
    restart: u32,
    /// By machine, how many keys of it are done with: on the first machine of all others, elsewhere its own.
    done: BTreeMap<usize, u64>,
    /// By worker, what was last heard of other machines.
    others: BTreeMap<usize, WorkerStatus>,
    /// The first machine is not told of all workers, which was said.
    is_short: bool,
}

impl AllMachines {
    pub fn new(agents: Arc<Agents>, restart: u32) -> Self {
        Self { agents, restart, done: BTreeMap::new(), others: BTreeMap::new(), is_short: false }
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
        own.into_iter().chain(self.others.values().cloned()).collect()
    }

    fn key(&self, machine: usize, number: u64) -> String {
        key(self.restart, &format!("watch/{machine}/{number}"))
    }

    fn hear(&mut self, client: &Client, now: Duration) -> Result<()> {
        let workers = self.agents.run.choice.workers;
        for machine in 1..self.agents.run.share.machines {
            let mut number = self.done.get(&machine).copied().unwrap_or(0);
            // A machine tells no more values at a time than there are workers.
            for _ in 0..workers {
                let key = self.key(machine, number);
                let Some(bytes) = heard(client, &key, Duration::ZERO)? else { break };
                client.forget(&key)?;
                number += 1;
                self.done.insert(machine, number);
                // What cannot be read is of another version of this program.
                let told: Vec<WorkerStatus> = postcard::from_bytes(&bytes).unwrap_or_default();
                let known = turned(told, now).into_iter().filter(|status| status.worker < workers);
                self.others.extend(known.map(|status| (status.worker, status)));
            }
        }
        Ok(())
    }

    fn tell(&mut self, client: &Client, machine: usize, own: &[WorkerStatus], now: Duration) -> Result<()> {
        let mut number = self.done.get(&machine).copied().unwrap_or(0);
        let before = number.checked_sub(1).map(|before| heard(client, &self.key(machine, before), Duration::ZERO));
        if before.transpose()?.flatten().is_some() {
            return Ok(());
        }
        let (values, too_long) = values(&turned(own.to_vec(), now));
        for value in values {
            client.set(&self.key(machine, number), &value)?;
            number += 1;
            self.done.insert(machine, number);
        }
        if let Some(worker) = too_long.first().filter(|_| !self.is_short) {
            let more = too_long.len() - 1;
            let more = if more > 0 { format!(" and {more} more of this machine") } else { String::new() };
            self.agents.run.merged.say(&format!(
                "--watch: the first machine does not show worker {worker}{more}: what one tells of its ranks and their \
                 groups is longer than {MAX_VALUE} bytes"
            ));
            self.is_short = true;
        }
        Ok(())
    }
}

/// What workers tell, in as few values as halving makes, and the workers of which not even one fits.
fn values(statuses: &[WorkerStatus]) -> (Vec<Vec<u8>>, Vec<usize>) {
    match (postcard::to_stdvec(statuses), statuses) {
        (Ok(bytes), _) if bytes.len() <= MAX_VALUE => (vec![bytes], Vec::new()),
        (_, []) => (Vec::new(), Vec::new()),
        (_, [one]) => (Vec::new(), vec![one.worker]),
        (_, many) => {
            let (first, second) = many.split_at(many.len() / 2);
            let ([first, second], mut all) = ([first, second].map(values), (Vec::new(), Vec::new()));
            for (values, too_long) in [first, second] {
                all.0.extend(values);
                all.1.extend(too_long);
            }
            all
        }
    }
}

/// Clocks of machines differ: what travels says how long ago it was told; and the other way.
fn turned(mut statuses: Vec<WorkerStatus>, now: Duration) -> Vec<WorkerStatus> {
    statuses.iter_mut().for_each(|status| status.told = now.saturating_sub(status.told));
    statuses
}

#[cfg(test)]
mod tests {
    use epl_launch::watch::{Group, RankStatus};

    use super::*;

    /// A worker with a rank that is in a group of so many.
    fn worker(worker: usize, members: usize) -> WorkerStatus {
        let group = Group { name: "world".into(), members: (0..members).collect() };
        let ranks = vec![RankStatus { calls: vec![(group, 1)], ..RankStatus::default() }];
        WorkerStatus { worker, ranks, ..WorkerStatus::default() }
    }

    #[test]
    fn what_does_not_fit_goes_in_parts_and_what_never_fits_is_named() {
        let read = |statuses: &[WorkerStatus]| {
            let (values, too_long) = values(statuses);
            assert!(values.iter().all(|value| value.len() <= MAX_VALUE));
            let told = values.iter().map(|value| postcard::from_bytes::<Vec<WorkerStatus>>(value).expect("a value"));
            (told.collect::<Vec<_>>(), too_long)
        };
        let few = [worker(0, 8), worker(1, 8)];
        assert_eq!(read(&few), (vec![few.to_vec()], vec![]));
        // Each member takes two or three bytes.
        let many: Vec<WorkerStatus> =
            [15_000, 15_000, 100_000, 8].into_iter().enumerate().map(|(i, n)| worker(i, n)).collect();
        let (told, too_long) = read(&many);
        let expected = [&many[0..2], &many[3..4]].map(<[WorkerStatus]>::to_vec);
        assert_eq!(too_long, [2]);
        assert_eq!(told, expected);
        assert_eq!(read(&[]), (vec![vec![]], vec![]));
    }
}
