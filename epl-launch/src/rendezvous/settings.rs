//! What a server is told, and what it tells.

use core::fmt;
use core::time::Duration;
use std::net::{Ipv4Addr, SocketAddr};

use super::failure::Failure;
use super::secret::Secret;
use crate::error::{Error, Result};

/// What the server does.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it listens; port 0 is one that is free. On loopback unless set.
    pub address: SocketAddr,
    /// How many workers the run has.
    pub workers: usize,
    /// How many times it has been restarted: members of another time are refused.
    pub restart: u32,
    /// What all members know.
    pub secret: Secret,
    /// How long all members may take to come, all together. None is for ever.
    pub join_within: Option<Duration>,
    /// Who is silent for longer is given up.
    pub silence: Duration,
    /// How long one that has connected may take to show who it is.
    pub handshake: Duration,
    /// How many may be about to do so at once.
    pub pending: usize,
    /// Whether a worker that has left may come again, as a program may that runs one world after the other. Where each
    /// world has a server of its own, who has left comes for the next one, and has to wait for that.
    pub comes_again: bool,
}

impl Settings {
    /// For so many workers: on loopback, any port, 5 s of silence, 5 s and 64 places for strangers, and no limit for the
    /// members to come.
    pub fn new(workers: usize, secret: Secret) -> Self {
        let seconds = Duration::from_secs;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (silence, handshake) = (seconds(5), seconds(5));
        let (restart, join_within, pending, comes_again) = (0, None, 64, true);
        Self { address, workers, restart, secret, join_within, silence, handshake, pending, comes_again }
    }

    /// Whether a run can come to be with these.
    pub(super) fn check(&self) -> Result<()> {
        let joining = |message: String| Err(Error::Joining { message });
        if self.workers == 0 || u32::try_from(self.workers).is_err() {
            return joining(format!("a run of {} workers; it needs at least one", self.workers));
        }
        if self.pending == 0 {
            return joining(
                "0 connections may show who they are, so that nobody could ever join; allow at least 1".into(),
            );
        }
        for (what, time) in [("silence", self.silence), ("handshake", self.handshake)] {
            if time.as_millis() == 0 {
                return joining(format!("a {what} of {time:?} is over at once; allow at least 1 ms"));
            }
        }
        Ok(())
    }
}

/// Who was refused, and why.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// A connection that has not shown that it knows the secret.
    Stranger(String),
    /// A worker that has, and does not belong to this run.
    Worker(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Stranger(why) | Self::Worker(why)) = self;
        formatter.write_str(why)
    }
}

/// What happens at a server, for a log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A connection was refused.
    Refused(SocketAddr, Refusal),
    /// A worker has joined.
    Joined(usize),
    /// A worker has left, as it said it would.
    Left(usize),
    /// The run has failed. Said once.
    Failed(Failure),
}
