//! Which failure of an attempt was the first: the one that all agents tell.

use std::sync::OnceLock;
use std::time::Duration;

use epl_launch::rendezvous::{Client, Failure, Fault};
use epl_launch::{MemoryStore, Result, Store};
use serde::{Deserialize, Serialize};

use crate::socket::Told;
use crate::spec::{AFTER_WORDS, RootCause, key};

/// How long it may take to be known which program was the first, or which worker, once one has ended badly.
pub(crate) const IS_KNOWN: Duration = Duration::from_millis(500);
/// For ever, as far as a rendezvous can tell.
const EVER: Duration = Duration::from_secs(1 << 32);
const FAILURE: &str = "failure";
/// The longest text of a program that is kept, so that it fits into a value.
const LONGEST: usize = 32 << 10;

/// What is heard in an attempt of its failure: once, however many workers of this machine end at the same time, as the session
/// lets a member wait for a few things only.
#[derive(Default)]
pub(crate) struct News {
    first: OnceLock<Option<First>>,
    failure: MemoryStore,
}

impl News {
    /// Which program was the first to fail, if that is heard within a moment.
    fn first(&self, client: &Client, restart: u32) -> Option<First> {
        let asked = |wait| postcard::from_bytes(&client.get(&key(restart, "first"), wait).ok()?).ok();
        // It may be heard later than it was first asked for.
        self.first.get_or_init(|| asked(IS_KNOWN)).clone().or_else(|| asked(Duration::ZERO))
    }

    /// When the attempt's failure is known: not before there is one.
    pub fn failure(&self, client: &Client, restart: u32) -> Result<Told> {
        let value = client.get(&key(restart, FAILURE), EVER)?;
        self.failure.set(FAILURE, &value)?;
        Ok(Told::Failed(RootCause::decode(&value)))
    }

    /// Has all agents know this root cause, unless another one comes within `wait`, or another program was the first. The one
    /// that counts comes back.
    pub fn settle(
        &self,
        cause: RootCause,
        wait: Duration,
        may_be_later: bool,
        client: &Client,
        restart: u32,
    ) -> RootCause {
        let (cause, more) = match may_be_later {
            true => cause.after_first(self.first(client, restart)),
            false => (cause, Duration::ZERO),
        };
        match self.failure.get(FAILURE, wait.max(more)) {
            Ok(known) => RootCause::decode(&known),
            Err(_) => cause.settle(client, restart),
        }
    }
}

/// The program that failed first, as programs that meet were told.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct First {
    worker: usize,
    /// What was heard from it; nothing where its connection ended without a word.
    said: Option<String>,
}

impl First {
    /// What agents tell each other of it.
    pub fn encode(failure: &Failure) -> Vec<u8> {
        let mut said = (failure.fault != Fault::Lost).then(|| failure.fault.to_string());
        said.iter_mut().for_each(|said| said.truncate(said.floor_char_boundary(LONGEST)));
        postcard::to_stdvec(&Self { worker: failure.worker, said }).unwrap_or_default()
    }

    /// What it is the root cause of if no more is heard, and how long it may take to be heard: a program that has lost its
    /// connection has ended, or is about to, and its keeper knows more.
    pub fn alone(failure: &Failure) -> (RootCause, Duration) {
        let (its, wait) = match failure.fault {
            Fault::Lost => ("failed: its program ", AFTER_WORDS),
            Fault::Silent(_) => ("", Duration::ZERO),
            _ => ("", AFTER_WORDS),
        };
        let mut cause = format!("{its}{}", failure.fault);
        cause.truncate(cause.floor_char_boundary(LONGEST));
        (RootCause::of_worker(failure.worker, cause, 1), wait)
    }
}

impl RootCause {
    /// As an agent has told it.
    pub fn decode(value: &[u8]) -> Self {
        postcard::from_bytes(value).unwrap_or_else(|_| Self::of_agent("failed, as another machine says", 1))
    }

    /// The cause of the end of a worker whose program may have ended because another one had: where programs meet, all hear
    /// of the first failure, and whose keeper sees an end first is chance. Also how long another agent may take to say more.
    pub fn after_first(self, first: Option<First>) -> (Self, Duration) {
        match first {
            Some(First { worker, .. }) if Some(worker) != self.worker => {
                // Its own agent knows more.
                (Self::of_worker(worker, "failed, and its program was the first", 1), AFTER_WORDS)
            }
            // What it said has a meaning where its end may have none.
            Some(First { said: Some(said), .. }) => {
                (Self { cause: format!("{said}; it {}", self.cause), ..self }, Duration::ZERO)
            }
            _ => (self, Duration::ZERO),
        }
    }

    /// Tells all agents, unless another one has. The one that counts comes back.
    pub fn settle(self, client: &Client, restart: u32) -> Self {
        self.tell(client, restart).unwrap_or(self)
    }

    /// Tells all agents, unless another one has. The one that counts comes back; none where nobody could be told.
    pub fn tell(&self, client: &Client, restart: u32) -> Option<Self> {
        let value = postcard::to_stdvec(self).unwrap_or_default();
        let key = key(restart, FAILURE);
        match client.set_within(&key, &value, AFTER_WORDS) {
            Ok(()) => Some(self.clone()),
            Err(_) => client.get(&key, Duration::ZERO).ok().map(|value| Self::decode(&value)),
        }
    }
}
