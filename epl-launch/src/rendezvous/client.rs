//! A member: joins, beats, asks, and hears who failed.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::thread::{self, Builder, JoinHandle, Thread};
use std::time::Instant;

use super::connection::Connection;
use super::handshake::{Claim, Unwelcome, Verdict, introduce, other_version};
use super::mailbox::Mailbox;
use super::message::{MAX_KEY, MAX_VALUE, Request};
use super::secret::Secret;
use super::session::Session;
use crate::error::{Error, Result};
use crate::store::{Store, unset};

/// How long a try to connect and to be let in may take.
const TRY: Duration = Duration::from_secs(5);
/// For how long a number is tried again, once it was heard that it is taken.
const TAKEN_FOR: Duration = Duration::from_secs(5);
/// For how long it is tried again, once another version was heard: that proves nothing, as anybody who listens there can say it.
const OTHER_FOR: Duration = Duration::from_secs(5);
/// Between two tries, at first and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(500)];
/// Beats that fit into the time after which a member that is silent is given up.
const BEATS: u32 = 5;
/// The server may be silent for so many times as long as a member, where nothing else is said: without it all is over.
const PATIENCE: u32 = 3;

/// A worker's place at the rendezvous. It leaves when it is dropped, and fails if that is in a panic.
pub struct Client {
    membership: Arc<Membership>,
    threads: Vec<JoinHandle<()>>,
    beating: Thread,
}

struct Membership {
    worker: usize,
    workers: usize,
    address: String,
    connection: Connection,
    mailbox: Mailbox,
    leaving: AtomicBool,
    /// How long the server may be silent, in milliseconds.
    patience: AtomicU64,
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Membership { worker, workers, address, .. } = &*self.membership;
        write!(formatter, "Client(worker {worker} of {workers} at {address})")
    }
}

impl Client {
    /// Joins the server at `address` (`host:port`) as `worker` of `workers`, and waits until all have joined. The server
    /// need not be there yet.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use epl_launch::rendezvous::{Client, Secret, Server, Settings};
    /// let limit = Duration::from_secs(30);
    /// let server = Server::start(Settings::new(1, Secret::random()?))?;
    /// let stranger = Client::join(&server.address().to_string(), 0, 1, &Secret::random()?, limit);
    /// assert!(stranger.is_err(), "whoever has another secret is not let in");
    /// # Ok::<_, epl_launch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// When there is no server, or not all workers, within `limit`; when the server does not let this worker in; or when
    /// a worker failed meanwhile. All name who.
    pub fn join(address: &str, worker: usize, workers: usize, secret: &Secret, limit: Duration) -> Result<Self> {
        Self::join_again(address, worker, workers, 0, secret, limit)
    }

    /// [`join`](Self::join), in a run that has been restarted so many times.
    ///
    /// # Errors
    ///
    /// As of [`join`](Self::join).
    pub fn join_again(
        address: &str,
        worker: usize,
        workers: usize,
        restart: u32,
        secret: &Secret,
        limit: Duration,
    ) -> Result<Self> {
        let begin = Instant::now();
        let small = |number: usize| {
            u32::try_from(number).map_err(|_| Error::Joining { message: format!("there is no worker {number}") })
        };
        let claim = Claim { worker: small(worker)?, workers: small(workers)?, restart };
        let (stream, session, silence) = connect(address, claim, secret, limit)?;
        let connection = Connection::new(stream, session).map_err(|error| Error::Joining {
            message: format!("the connection to the rendezvous at {address} cannot be set up: {error}"),
        })?;
        let (address, mailbox, leaving) = (address.to_string(), Mailbox::default(), AtomicBool::new(false));
        let patience = AtomicU64::new(milliseconds(silence.saturating_mul(PATIENCE)));
        let membership = Arc::new(Membership { worker, workers, address, connection, mailbox, leaving, patience });
        let (reading, beating) = (membership.clone(), membership.clone());
        let reader = membership.thread("rendezvous reader", move || reading.read())?;
        let beater = membership.thread("rendezvous beat", move || beating.beat(silence))?;
        let beating = beater.thread().clone();
        let client = Self { membership, threads: vec![reader, beater], beating };
        client.barrier("all workers have joined", limit.saturating_sub(begin.elapsed()))?;
        Ok(client)
    }

    /// The number of this worker.
    pub fn worker(&self) -> usize {
        self.membership.worker
    }

    /// How many workers the run has.
    pub fn workers(&self) -> usize {
        self.membership.workers
    }

    /// From now on the server may be silent for so long, as one that was stopped or swaps is, before it counts as lost:
    /// whoever asks it something waits as much longer. Three times as long as the server allows its members, until it is
    /// set. That a server's process has ended is seen at once in any case.
    pub fn set_patience(&self, patience: Duration) {
        // It may not have been asked for longer than that.
        self.membership.mailbox.excuse();
        // Less than a millisecond is not none at all.
        self.membership.patience.store(milliseconds(patience).max(1), Ordering::Relaxed);
        self.beating.unpark();
    }

    /// How long the server may be silent.
    pub fn patience(&self) -> Duration {
        self.membership.patience()
    }

    /// Waits until all workers are at the barrier of this name. It can be used again.
    ///
    /// # Errors
    ///
    /// When they are not within `wait`, with those that are missing; or when a worker failed meanwhile.
    pub fn barrier(&self, name: &str, wait: Duration) -> Result<()> {
        check_lengths(name, 0)?;
        let wait_ms = milliseconds(wait);
        let request = |id| Request::Barrier { id, name: name.to_string(), wait_ms };
        self.membership.ask(wait, self.patience(), request).map(|_| ())
    }

    /// Tells all others that this worker failed, and why. The run has failed then, for this worker too.
    pub fn fail(&self, cause: &str) {
        // First, as the server then closes the connection, which is no failure of its own.
        self.membership
            .mailbox
            .fail(Error::Worker { worker: self.membership.worker, cause: format!("failed: {cause}") });
        let _ = self.membership.connection.send(&Request::fail(cause));
    }

    /// Tells the server that this worker is done, as it is told when this is dropped: for a process that is about to end
    /// without that. Nothing is asked afterwards.
    pub fn leave(&self) {
        if !self.membership.leaving.swap(true, Ordering::SeqCst) {
            let _ = self.membership.connection.send(&Request::Leave);
        }
    }

    /// What has failed the run, if something did: a worker, or the way to the server.
    pub fn failure(&self) -> Option<Error> {
        self.membership.mailbox.failure()
    }

    /// Calls `told` once when the run fails, from another thread; at once if it has failed.
    pub fn on_failure(&self, told: impl FnOnce(&Error) + Send + 'static) {
        self.membership.mailbox.on_failure(Box::new(told));
    }
}

impl Store for Client {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.set_within(key, value, self.patience())
    }

    fn set_within(&self, key: &str, value: &[u8], limit: Duration) -> Result<()> {
        check_lengths(key, value.len())?;
        let request = |id| Request::Set { id, key: key.to_string(), value: value.to_vec() };
        self.membership.ask(Duration::ZERO, limit.min(self.patience()), request).map(|_| ())
    }

    fn get(&self, key: &str, wait: Duration) -> Result<Vec<u8>> {
        check_lengths(key, 0)?;
        let wait_ms = milliseconds(wait);
        let value =
            self.membership.ask(wait, self.patience(), |id| Request::Get { id, key: key.to_string(), wait_ms })?;
        value.ok_or_else(|| unset(key, wait))
    }

    fn forget(&self, key: &str) -> Result<()> {
        check_lengths(key, 0)?;
        self.membership
            .ask(Duration::ZERO, self.patience(), |id| Request::Forget { id, key: key.to_string() })
            .map(|_| ())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if thread::panicking() && self.failure().is_none() {
            self.fail("it panicked");
        }
        self.leave();
        self.membership.connection.close();
        self.beating.unpark();
        for thread in self.threads.drain(..) {
            // A callback may drop the client on one of its own threads.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Membership {
    fn thread(&self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
        Builder::new().name(name.into()).spawn(body).map_err(|error| {
            self.connection.close();
            Error::Joining { message: format!("a thread of worker {} cannot be started: {error}", self.worker) }
        })
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.patience.load(Ordering::Relaxed))
    }

    /// Makes a request and waits for its answer: as long as the server was asked to, and `patience` longer.
    fn ask(&self, wait: Duration, patience: Duration, request: impl FnOnce(u64) -> Request) -> Result<Option<Vec<u8>>> {
        let id = self.mailbox.expect()?;
        // A failure to send is noticed by the reader, which then fails the mailbox.
        let _ = self.connection.send(&request(id));
        self.mailbox.wait(id, wait.saturating_add(patience)).unwrap_or_else(|| {
            let message = format!("the rendezvous at {} does not answer worker {}", self.address, self.worker);
            Err(Error::Joining { message })
        })
    }

    fn read(&self) {
        let why = loop {
            match self.connection.receive() {
                Ok(Some(reply)) => self.mailbox.receive(reply),
                Ok(None) => break "it closed the connection; what started the workers has ended".to_string(),
                Err(error) => break error.to_string(),
            }
        };
        self.connection.close();
        if !self.leaving.load(Ordering::SeqCst) {
            self.lose(&why);
        }
    }

    /// The server is lost.
    fn lose(&self, why: &str) {
        let message = format!("worker {} has lost the rendezvous at {}: {why}", self.worker, self.address);
        self.mailbox.fail(Error::Joining { message });
    }

    /// Beats until it leaves or the connection ends.
    fn beat(&self, silence: Duration) {
        while !self.leaving.load(Ordering::SeqCst) && self.connection.send(&Request::Beat).is_ok() {
            thread::park_timeout(silence.min(self.patience()) / BEATS);
            let silence = self.mailbox.silence();
            if silence > self.patience() {
                self.lose(&format!("nothing was heard from it for {:.1} s", silence.as_secs_f64()));
                return self.connection.close();
            }
        }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn check_lengths(key: &str, value: usize) -> Result<()> {
    if key.len() <= MAX_KEY && value <= MAX_VALUE {
        return Ok(());
    }
    let length = key.len();
    Err(Error::Joining {
        message: format!("a key of {length} bytes with a value of {value}; allowed are {MAX_KEY} and {MAX_VALUE}"),
    })
}

/// Connects and is let in, with as many tries as the time allows.
fn connect(address: &str, claim: Claim, secret: &Secret, limit: Duration) -> Result<(TcpStream, Session, Duration)> {
    let (begin, mut pause) = (Instant::now(), PAUSES[0]);
    // What listens there said more than that a later try came too late.
    let mut known = None::<String>;
    let (mut taken_since, mut other_since) = (None::<Instant>, None::<Instant>);
    loop {
        let left = limit.saturating_sub(begin.elapsed()).clamp(Duration::from_millis(1), TRY);
        let why = match attempt(address, claim, secret, left) {
            Ok((stream, session, Verdict::Welcome { silence_ms })) => {
                return Ok((stream, session, Duration::from_millis(u64::from(silence_ms))));
            }
            Ok((.., verdict)) => match refusal(address, claim, verdict) {
                // It may be that of the time before, which is about to end.
                refused if matches!(verdict, Verdict::Restart(there) if there < claim.restart) => refused,
                // That may be this one, whose last word of an earlier world has not been read yet.
                refused
                    if verdict == Verdict::Taken
                        && taken_since.get_or_insert_with(Instant::now).elapsed() < TAKEN_FOR =>
                {
                    refused
                }
                refused => return Err(Error::Joining { message: refused }),
            },
            Err(Unlet::ForGood(why)) => return Err(Error::Joining { message: not_let_in(address, claim, &why) }),
            Err(Unlet::Version(other)) => {
                let why = format!("it {}", other_version(other));
                if other_since.get_or_insert_with(Instant::now).elapsed() >= OTHER_FOR {
                    return Err(Error::Joining { message: not_let_in(address, claim, &why) });
                }
                known.insert(why).clone()
            }
            Err(Unlet::Known(why)) => known.insert(why).clone(),
            Err(Unlet::Io(why)) => known.clone().unwrap_or(why),
        };
        if begin.elapsed() + pause >= limit {
            return Err(Error::Joining {
                message: format!(
                    "worker {} could not join the rendezvous at {address} within {:.1} s: {why}; start what listens \
                     there, or wait longer",
                    claim.worker,
                    limit.as_secs_f64()
                ),
            });
        }
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSES[1]);
    }
}

/// Why a try came to nothing.
enum Unlet {
    /// Nothing was heard.
    Io(String),
    /// What was heard is not what a rendezvous says.
    Known(String),
    /// What listens there says that it speaks this version.
    Version(char),
    /// What listens there says why nobody who is like this worker is let in.
    ForGood(String),
}

/// One try.
fn attempt(
    address: &str,
    claim: Claim,
    secret: &Secret,
    limit: Duration,
) -> Result<(TcpStream, Session, Verdict), Unlet> {
    let mut why = Unlet::Io("the name has no address".to_string());
    for place in address.to_socket_addrs().map_err(|error| Unlet::Io(error.to_string()))? {
        match TcpStream::connect_timeout(&place, limit) {
            Ok(mut stream) => match introduce(&mut stream, secret, claim, limit) {
                Ok((verdict, session)) => return Ok((stream, session, verdict)),
                Err(Unwelcome::OtherSecret) => {
                    return Err(Unlet::ForGood("it has another secret; give all workers the same".into()));
                }
                Err(Unwelcome::Version(other)) => return Err(Unlet::Version(other)),
                Err(Unwelcome::Io(error)) => why = Unlet::Io(format!("it was not let in: {error}")),
                Err(Unwelcome::Garbage) => why = Unlet::Known("what listens there is no rendezvous".into()),
                Err(Unwelcome::Stranger) => why = Unlet::Known("what listens there does not know the secret".into()),
            },
            Err(error) => why = Unlet::Io(error.to_string()),
        }
    }
    Err(why)
}

fn refusal(address: &str, claim: Claim, verdict: Verdict) -> String {
    let Claim { worker, workers, restart } = claim;
    let why = match verdict {
        Verdict::Welcome { .. } => "it was let in".to_string(),
        Verdict::Workers(other) => {
            format!("it is worker {worker} of {workers}, and the run there has {other}, numbered from 0")
        }
        Verdict::Restart(other) => format!("it belongs to restart {restart}, and the run there is at {other}"),
        Verdict::Taken => "there was a worker of this number already; each needs a number of its own".into(),
        Verdict::Ended(culprit) => format!("the run there has ended, as worker {culprit} failed"),
    };
    not_let_in(address, claim, &why)
}

fn not_let_in(address: &str, claim: Claim, why: &str) -> String {
    format!("the rendezvous at {address} does not let worker {} in: {why}", claim.worker)
}

#[cfg(test)]
mod tests {
    use super::super::{Server, Settings};
    use super::*;

    #[test]
    fn patience_is_that_of_the_server_until_it_is_set_and_never_none() {
        let secret = Secret::random().unwrap();
        let settings = Settings { silence: Duration::from_secs(7), ..Settings::new(1, secret.clone()) };
        let server = Server::start(settings).unwrap();
        let limit = Duration::from_secs(60);
        let client = Client::join(&server.address().to_string(), 0, 1, &secret, limit).unwrap();
        assert_eq!(client.patience(), Duration::from_secs(21));
        for (set, kept) in [(limit, limit), (Duration::from_micros(10), Duration::from_millis(1))] {
            client.set_patience(set);
            assert_eq!(client.patience(), kept);
        }
    }
}
