//! The members of a run, their values, and what they wait for. No input or output: what is to be sent comes back as a
//! list.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::connection::Connection;
use super::failure::{Failure, Fault};
use super::handshake::{Claim, Verdict};
use super::message::{MAX_KEY, MAX_VALUE, Reply};
use crate::store::taken;

/// All values together, in bytes.
const MAX_STORED: usize = 16 << 20;
/// All keys.
const MAX_KEYS: usize = 1 << 16;
/// What a member may wait for at once.
const MAX_WAITING: usize = 64;

/// What is to be sent, and to whom.
pub(super) type Post = Vec<(Arc<Connection>, Reply)>;

/// Where a worker is.
#[derive(Debug, Default)]
enum Presence {
    #[default]
    Absent,
    Here {
        connection: Arc<Connection>,
        heard: Instant,
    },
    Left,
}

/// Something a member waits for.
#[derive(Debug)]
struct Waiter {
    worker: usize,
    id: u64,
    what: What,
    wait: Duration,
    /// None is for ever.
    until: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum What {
    Key(String),
    Barrier(String),
}

/// What the server knows.
#[derive(Debug)]
pub(super) struct Members {
    restart: u32,
    presence: Vec<Presence>,
    values: HashMap<String, Arc<[u8]>>,
    stored: usize,
    waiting: Vec<Waiter>,
    failure: Option<Failure>,
}

impl Members {
    pub(super) fn new(workers: usize, restart: u32) -> Self {
        let presence = (0..workers).map(|_| Presence::Absent).collect();
        Self { restart, presence, values: HashMap::new(), stored: 0, waiting: Vec::new(), failure: None }
    }

    /// Whether such a worker may come in.
    pub(super) fn judge(&self, claim: Claim, silence: Duration) -> Verdict {
        let workers = self.presence.len() as u32;
        // First: who comes early for another time may be one of another number.
        if claim.restart != self.restart {
            return Verdict::Restart(self.restart);
        }
        if claim.workers != workers || claim.worker >= workers {
            return Verdict::Workers(workers);
        }
        if let Some(failure) = &self.failure {
            return Verdict::Ended(failure.worker as u32);
        }
        match self.presence[claim.worker as usize] {
            // A program may run one world after the other.
            Presence::Absent | Presence::Left => {
                Verdict::Welcome { silence_ms: u32::try_from(silence.as_millis()).unwrap_or(u32::MAX) }
            }
            Presence::Here { .. } => Verdict::Taken,
        }
    }

    pub(super) fn enter(&mut self, worker: usize, connection: Arc<Connection>) {
        self.presence[worker] = Presence::Here { connection, heard: Instant::now() };
    }

    /// A member has said something.
    pub(super) fn hear(&mut self, worker: usize) {
        if let Presence::Here { heard, .. } = &mut self.presence[worker] {
            *heard = Instant::now();
        }
    }

    /// A member has gone, as it said it would.
    pub(super) fn leave(&mut self, worker: usize) {
        self.presence[worker] = Presence::Left;
        self.waiting.retain(|waiting| waiting.worker != worker);
    }

    /// Whether a worker has been here and left.
    pub(super) fn was_here(&self, worker: usize) -> bool {
        matches!(self.presence.get(worker), Some(Presence::Left))
    }

    /// Whether the run goes on with some member here.
    pub(super) fn are_here(&self) -> bool {
        self.failure.is_none() && self.presence.iter().any(|presence| matches!(presence, Presence::Here { .. }))
    }

    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// The first failure counts, and all others are told. Nothing where there was one before.
    pub(super) fn fail(&mut self, worker: usize, fault: Fault) -> Option<(Failure, Post)> {
        if self.failure.is_some() {
            return None;
        }
        let failure = Failure { worker, fault };
        self.failure = Some(failure.clone());
        self.waiting.clear();
        let told = Reply::failed(worker as u32, &failure.fault.to_string());
        Some((failure, self.to_all(&told)))
    }

    /// The same to all who are here.
    pub(super) fn to_all(&self, reply: &Reply) -> Post {
        let here = self.presence.iter().filter_map(|presence| match presence {
            Presence::Here { connection, .. } => Some((connection.clone(), reply.clone())),
            Presence::Absent | Presence::Left => None,
        });
        here.collect()
    }

    fn to_one(&self, worker: usize, reply: Reply) -> Post {
        match &self.presence[worker] {
            Presence::Here { connection, .. } => vec![(connection.clone(), reply)],
            Presence::Absent | Presence::Left => Vec::new(),
        }
    }

    pub(super) fn beat(&self, worker: usize) -> Post {
        self.to_one(worker, Reply::Beat)
    }

    /// Gives a key its value, whoever wants it to.
    pub(super) fn put(&mut self, key: &str, value: &[u8]) -> Result<Post, String> {
        if key.len() > MAX_KEY || value.len() > MAX_VALUE {
            return Err(too_long(key, value.len()));
        }
        match self.values.get(key) {
            Some(old) if **old == *value => return Ok(Vec::new()),
            Some(_) => return Err(taken(key).to_string()),
            None => {}
        }
        let stored = self.stored + key.len() + value.len();
        if stored > MAX_STORED || self.values.len() >= MAX_KEYS {
            return Err(format!(
                "no room for `{key}`: the store has {} keys and {} bytes, allowed are {MAX_KEYS} and {MAX_STORED}",
                self.values.len(),
                self.stored
            ));
        }
        self.stored = stored;
        self.values.insert(key.to_string(), value.into());
        let what = What::Key(key.to_string());
        let mut post = Vec::new();
        for waiting in self.waiting.extract_if(.., |waiting| waiting.what == what) {
            if let Presence::Here { connection, .. } = &self.presence[waiting.worker] {
                post.push((connection.clone(), Reply::Done { id: waiting.id, value: value.to_vec() }));
            }
        }
        Ok(post)
    }

    /// Forgets a value, if it is there.
    pub(super) fn drop_value(&mut self, key: &str) {
        if let Some(value) = self.values.remove(key) {
            self.stored -= key.len() + value.len();
        }
    }

    pub(super) fn forget(&mut self, worker: usize, id: u64, key: &str) -> Post {
        self.drop_value(key);
        self.to_one(worker, Reply::Done { id, value: Vec::new() })
    }

    pub(super) fn value(&self, key: &str) -> Option<Vec<u8>> {
        self.values.get(key).map(|value| value.to_vec())
    }

    pub(super) fn set(&mut self, worker: usize, id: u64, key: &str, value: &[u8]) -> Post {
        match self.put(key, value) {
            Ok(mut post) => {
                post.extend(self.to_one(worker, Reply::Done { id, value: Vec::new() }));
                post
            }
            Err(why) => self.to_one(worker, Reply::refused(id, &why)),
        }
    }

    pub(super) fn get(&mut self, worker: usize, id: u64, key: String, wait: Duration) -> Post {
        match self.value(&key) {
            Some(value) => self.to_one(worker, Reply::Done { id, value }),
            None => self.wait_for(worker, id, What::Key(key), wait),
        }
    }

    pub(super) fn barrier(&mut self, worker: usize, id: u64, name: String, wait: Duration) -> Post {
        let what = What::Barrier(name);
        let mut post = self.wait_for(worker, id, What::Barrier(self.name_of(&what)), wait);
        if self.waiting.iter().filter(|waiting| waiting.what == what).count() == self.presence.len() {
            for waiting in self.waiting.extract_if(.., |waiting| waiting.what == what) {
                if let Presence::Here { connection, .. } = &self.presence[waiting.worker] {
                    post.push((connection.clone(), Reply::Done { id: waiting.id, value: Vec::new() }));
                }
            }
        }
        post
    }

    fn name_of(&self, what: &What) -> String {
        match what {
            What::Key(name) | What::Barrier(name) => name.clone(),
        }
    }

    fn wait_for(&mut self, worker: usize, id: u64, what: What, wait: Duration) -> Post {
        let own = self.waiting.iter().filter(|waiting| waiting.worker == worker);
        if own.clone().any(|waiting| waiting.what == what && matches!(what, What::Barrier(_))) {
            let why = format!("worker {worker} waits at barrier `{}` already", self.name_of(&what));
            return self.to_one(worker, Reply::refused(id, &why));
        }
        if own.count() >= MAX_WAITING {
            let why = format!("worker {worker} waits for {MAX_WAITING} things already, which is as many as it may");
            return self.to_one(worker, Reply::refused(id, &why));
        }
        let until = Instant::now().checked_add(wait);
        self.waiting.push(Waiter { worker, id, what, wait, until });
        Vec::new()
    }

    /// Those who have waited as long as they wanted to.
    pub(super) fn expired(&mut self, now: Instant) -> Post {
        let mut post = Vec::new();
        let due = |waiting: &Waiter| waiting.until.is_some_and(|until| until <= now);
        while let Some(index) = self.waiting.iter().position(due) {
            let reply = self.in_vain(&self.waiting[index]);
            let Waiter { worker, .. } = self.waiting.swap_remove(index);
            post.extend(self.to_one(worker, reply));
        }
        post
    }

    /// What is told to one who has waited in vain.
    fn in_vain(&self, waiting: &Waiter) -> Reply {
        let id = waiting.id;
        let What::Barrier(name) = &waiting.what else { return Reply::Unset { id } };
        let came = |worker: usize| self.waiting.iter().any(|one| one.worker == worker && one.what == waiting.what);
        let missing = (0..self.presence.len()).filter(|worker| !came(*worker)).map(|worker| {
            format!(
                "worker {worker}{}",
                match self.presence[worker] {
                    Presence::Absent => " (which has not joined)",
                    Presence::Left => " (which has left)",
                    Presence::Here { .. } => "",
                }
            )
        });
        let missing: Vec<String> = missing.collect();
        let seconds = waiting.wait.as_secs_f64();
        let why = format!(
            "barrier `{name}` has waited {seconds:.1} s for {} of {} workers: {}",
            missing.len(),
            self.presence.len(),
            missing.join(", ")
        );
        Reply::refused(id, &why)
    }

    /// The member that has been silent for longer than allowed, if there is one.
    pub(super) fn silent(&self, now: Instant, limit: Duration) -> Option<(usize, Duration)> {
        let since = |presence: &Presence| match presence {
            Presence::Here { heard, .. } => Some(now.saturating_duration_since(*heard)).filter(|time| *time > limit),
            Presence::Absent | Presence::Left => None,
        };
        self.presence.iter().enumerate().find_map(|(worker, presence)| Some((worker, since(presence)?)))
    }

    /// Nobody was silent while the server itself was not there to listen.
    pub(super) fn excuse(&mut self) {
        (0..self.presence.len()).for_each(|worker| self.hear(worker));
    }

    /// The first who has not come, and a sentence on all who have not.
    pub(super) fn absent(&self) -> Option<(usize, String)> {
        let absent = |(worker, presence): (usize, &Presence)| matches!(presence, Presence::Absent).then_some(worker);
        let absent: Vec<usize> = self.presence.iter().enumerate().filter_map(absent).collect();
        let names: Vec<String> = absent.iter().take(16).map(usize::to_string).collect();
        let more = if absent.len() > 16 { ", …" } else { "" };
        let text = format!("{} of {} have not come: {}{more}", absent.len(), self.presence.len(), names.join(", "));
        absent.first().map(|worker| (*worker, text))
    }

    /// Closes all connections.
    pub(super) fn close(&self) {
        for presence in &self.presence {
            if let Presence::Here { connection, .. } = presence {
                connection.close();
            }
        }
    }
}

fn too_long(key: &str, value: usize) -> String {
    format!("a key of {} bytes with a value of {value}; allowed are {MAX_KEY} and {MAX_VALUE}", key.len())
}
