//! The server: lets members in, answers them, and watches over them.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder, JoinHandle};
use std::time::Instant;

use super::connection::Connection;
use super::failure::{Failure, Fault};
use super::gate::Gate;
use super::handshake::{Unwelcome, Verdict, other_version, receive};
use super::members::{Members, Post};
use super::message::Request;
use super::settings::{Event, Refusal, Settings};
use crate::error::{Error, Result};
use crate::store::{Store, unset};

/// How often the server looks at its clock.
const TICK: Duration = Duration::from_millis(20);
/// Looks that were missed by more than this were missed because the server did not run.
const GAP: Duration = Duration::from_secs(1);
/// The threads of the server do little.
const STACK: usize = 256 << 10;

type Listener = Box<dyn Fn(&Event) + Send + Sync>;

/// A server, until it is dropped.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    settings: Settings,
    members: Mutex<Members>,
    gate: Gate,
    ended: AtomicBool,
    /// Whether nobody is let in any more.
    is_closing: AtomicBool,
    refused: AtomicU64,
    listener: Listener,
}

impl fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Shared").field("members", &self.members).finish_non_exhaustive()
    }
}

impl Server {
    /// Starts one that tells nobody what happens.
    ///
    /// # Errors
    ///
    /// As of [`start_with`](Self::start_with).
    pub fn start(settings: Settings) -> Result<Self> {
        Self::start_with(settings, |_| {})
    }

    /// Starts one that tells what happens, from threads of its own.
    ///
    /// # Errors
    ///
    /// No workers, or an address where it cannot listen, such as one whose port is in use.
    pub fn start_with(settings: Settings, listener: impl Fn(&Event) + Send + Sync + 'static) -> Result<Self> {
        let joining = |message: String| Error::Joining { message };
        settings.check()?;
        let port = TcpListener::bind(settings.address).map_err(|error| {
            joining(format!(
                "the rendezvous cannot listen at {}: {error}; choose an address of this host and a free port",
                settings.address
            ))
        })?;
        let address = port.local_addr().map_err(|error| joining(error.to_string()))?;
        let shared = Arc::new(Shared {
            members: Mutex::new(Members::new(settings.workers, settings.restart)),
            gate: Gate::new(settings.pending),
            ended: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            listener: Box::new(listener),
            settings,
        });
        let mut server = Self { shared, address, threads: Vec::new() };
        let (accepting, watching) = (server.shared.clone(), server.shared.clone());
        server.thread("rendezvous", move || accepting.accept(&port))?;
        server.thread("rendezvous watch", move || watching.watch())?;
        Ok(server)
    }

    fn thread(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = Builder::new().name(name.into()).stack_size(STACK).spawn(body);
        let thread = thread.map_err(|error| Error::Joining {
            message: format!("a thread of the rendezvous cannot be started: {error}"),
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The failure that ended the run, if one did.
    pub fn failure(&self) -> Option<Failure> {
        self.shared.members().failure().cloned()
    }

    /// How many connections were refused.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Says that a worker failed, on behalf of who watches it. Nothing where one failed before.
    pub fn fail(&self, worker: usize, cause: &str) {
        self.shared.fail(worker, Fault::Failed(cause.to_string()));
    }

    /// Lets nobody in any more, and waits until all members have left, or one has failed. Members that beat are waited for
    /// as long as they are there: whoever hosts the rendezvous of others must not end it under them.
    pub fn close(&self) {
        self.shared.is_closing.store(true, Ordering::SeqCst);
        while self.shared.members().are_here() {
            thread::sleep(TICK);
        }
    }
}

/// The server's own process has the store, too. It does not wait for members otherwise than by asking again.
impl Store for Server {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let put = self.shared.members().put(key, value);
        put.map(deliver).map_err(|message| Error::Joining { message })
    }

    fn get(&self, key: &str, wait: Duration) -> Result<Vec<u8>> {
        let begin = Instant::now();
        loop {
            let members = self.shared.members();
            if let Some(value) = members.value(key) {
                return Ok(value);
            }
            if let Some(failure) = members.failure() {
                return Err(failure.into());
            }
            drop(members);
            if begin.elapsed() >= wait {
                return Err(unset(key, wait));
            }
            thread::sleep(TICK.min(wait));
        }
    }

    fn forget(&self, key: &str) -> Result<()> {
        self.shared.members().drop_value(key);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.gate.close();
        self.shared.members().close();
        // Wakes the thread that waits for connections.
        let here = match self.address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        let woken = TcpStream::connect_timeout(&SocketAddr::new(here, self.address.port()), Duration::from_secs(1));
        for thread in self.threads.drain(..) {
            // One that could not be woken is not waited for.
            if woken.is_ok() || thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

/// Sends what is to be sent. Who cannot be reached is noticed by who reads from it.
fn deliver(post: Post) {
    for (connection, reply) in post {
        let _ = connection.send(&reply);
    }
}

impl Shared {
    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: &Event) {
        (self.listener)(event);
    }

    fn refuse(&self, peer: SocketAddr, refusal: Refusal) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        self.tell(&Event::Refused(peer, refusal));
    }

    fn refuse_stranger(&self, peer: SocketAddr, why: impl fmt::Display) {
        self.refuse(peer, Refusal::Stranger(why.to_string()));
    }

    fn fail(&self, worker: usize, fault: Fault) {
        let failed = self.members().fail(worker, fault);
        if let Some((failure, post)) = failed {
            // First: who hears of it may end at once, and is not to be blamed before it is known here who was the first.
            self.tell(&Event::Failed(failure));
            deliver(post);
        }
    }

    /// Takes connections, each to a thread of its own.
    fn accept(self: Arc<Self>, port: &TcpListener) {
        loop {
            let accepted = port.accept();
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            let Ok((stream, peer)) = accepted else {
                // Such as too many open files: those that wait are closed in time.
                thread::sleep(TICK);
                continue;
            };
            let shared = self.clone();
            let body = move || shared.serve(stream, peer);
            if let Err(error) = Builder::new().name("rendezvous member".into()).stack_size(STACK).spawn(body) {
                self.refuse_stranger(peer, format!("no thread for it: {error}"));
            }
        }
    }

    /// The life of a connection.
    fn serve(&self, mut stream: TcpStream, peer: SocketAddr) {
        if self.is_closing.load(Ordering::SeqCst) {
            // It may want to join the next one at this address: it tries again.
            return;
        }
        let Some((place, crowded)) = self.gate.enter(&stream) else {
            self.refuse_stranger(peer, "too many have connected and not shown who they are");
            return;
        };
        if crowded {
            let why = "it took the place of one that had connected and said nothing";
            self.tell(&Event::Refused(peer, Refusal::Stranger(why.into())));
        }
        let met = match receive(&mut stream, &self.settings.secret, self.settings.handshake) {
            Ok(met) => met,
            Err(unwelcome) => {
                let why = match unwelcome {
                    Unwelcome::Io(error) => format!("it did not show who it is: {error}"),
                    Unwelcome::Garbage => "what it says is not what a worker says".into(),
                    Unwelcome::Version(other) => format!("it {}", other_version(other)),
                    Unwelcome::Stranger | Unwelcome::OtherSecret => "it does not know the secret".into(),
                };
                return self.refuse_stranger(peer, why);
            }
        };
        // Who knows the secret is nobody whose place another may take.
        drop(place);
        let worker = met.claim.worker as usize;
        let joined = {
            let mut members = self.members();
            let is_late = self.is_closing.load(Ordering::SeqCst) || self.ended.load(Ordering::SeqCst);
            if is_late || (!self.settings.comes_again && members.was_here(worker)) {
                // As above.
                return;
            }
            let verdict = members.judge(met.claim, self.settings.silence);
            if !matches!(verdict, Verdict::Welcome { .. }) {
                drop(members);
                // It is counted before it hears so.
                self.refuse(peer, Refusal::Worker(format!("worker {worker} was not let in: {verdict:?}")));
                let _ = met.answer(&mut stream, verdict);
                return;
            }
            // It is a member before it hears so, and hears nothing else before.
            let answered = met.answer(&mut stream, verdict);
            let joined = answered.and_then(|session| Connection::new(stream, session)).map(Arc::new);
            if let Ok(connection) = &joined {
                members.enter(worker, connection.clone());
            }
            joined
        };
        match joined {
            Ok(connection) => self.attend(worker, &connection),
            Err(error) => self.refuse(peer, Refusal::Worker(error.to_string())),
        }
    }

    /// Answers a member until it leaves, or its connection ends.
    fn attend(&self, worker: usize, connection: &Arc<Connection>) {
        self.tell(&Event::Joined(worker));
        let fault = loop {
            match connection.receive() {
                Ok(Some(Request::Fail { cause })) => break Some(Fault::Failed(cause)),
                Ok(Some(Request::Leave)) => {
                    self.members().leave(worker);
                    break None;
                }
                Ok(Some(request)) => self.answer(worker, request),
                // It is there, and what comes from it cannot be used.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    break Some(Fault::Failed(error.to_string()));
                }
                Ok(None) | Err(_) => break Some(Fault::Lost),
            }
        };
        connection.close();
        match fault {
            Some(fault) if !self.ended.load(Ordering::SeqCst) => self.fail(worker, fault),
            _ => self.tell(&Event::Left(worker)),
        }
    }

    /// Answers a request of a member that stays.
    fn answer(&self, worker: usize, request: Request) {
        let mut members = self.members();
        members.hear(worker);
        let wait = Duration::from_millis;
        let post = match request {
            Request::Beat => members.beat(worker),
            Request::Set { id, key, value } => members.set(worker, id, &key, &value),
            Request::Get { id, key, wait_ms } => members.get(worker, id, key, wait(wait_ms)),
            Request::Barrier { id, name, wait_ms } => members.barrier(worker, id, name, wait(wait_ms)),
            Request::Forget { id, key } => members.forget(worker, id, &key),
            Request::Fail { .. } | Request::Leave => return,
        };
        drop(members);
        deliver(post);
    }

    /// Looks at the clock until the server ends.
    fn watch(&self) {
        let begin = Instant::now();
        let mut last = begin;
        while !self.ended.load(Ordering::SeqCst) {
            thread::sleep(TICK);
            let now = Instant::now();
            let mut members = self.members();
            if now.saturating_duration_since(last) > GAP {
                members.excuse();
            }
            last = now;
            let post = members.expired(now);
            let silent = members.silent(now, self.settings.silence);
            let late = self.settings.join_within.filter(|limit| begin.elapsed() > *limit);
            let absent = late.and_then(|limit| members.absent().map(|absent| (limit, absent)));
            drop(members);
            deliver(post);
            if let Some((worker, time)) = silent {
                self.fail(worker, Fault::Silent(time));
            }
            if let Some((limit, (worker, others))) = absent {
                self.fail(worker, Fault::Absent(limit, others));
            }
        }
    }
}
