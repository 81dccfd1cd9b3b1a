//! How a member and the server show each other that they know the secret. All messages have a fixed length.

use core::time::Duration;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::secret::{NONCE, Secret, TAG, random};

const MAGIC: &[u8; 8] = b"EPL-RDV1";
const GREETING: usize = MAGIC.len() + NONCE;
const CLAIM: usize = 12;
const HELLO: usize = MAGIC.len() + NONCE + CLAIM + TAG;
const VERDICT: usize = 9;

/// Who a member says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub worker: u32,
    pub workers: u32,
    pub restart: u32,
}

/// What the server makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Come in; who is silent for so many milliseconds is given up.
    Welcome { silence_ms: u32 },
    /// The run has another number of workers.
    Workers(u32),
    /// The run has been restarted another number of times.
    Restart(u32),
    /// There is such a worker already.
    Taken,
    /// The run has ended, as this worker failed.
    Ended(u32),
    /// It does not know the secret. The only verdict that proves nothing, as there is nothing to prove it with.
    Stranger,
}

/// Why a connection was not let in, for the log.
#[derive(Debug)]
pub(super) enum Unwelcome {
    /// No answer in time, or the connection broke.
    Io(io::Error),
    /// The answer was not that of a member.
    Garbage,
    /// The proof is wrong.
    Stranger,
}

impl From<io::Error> for Unwelcome {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Claim {
    fn encode(self) -> [u8; CLAIM] {
        let mut bytes = [0; CLAIM];
        for (place, number) in bytes.chunks_exact_mut(4).zip([self.worker, self.workers, self.restart]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self { worker: number(0), workers: number(4), restart: number(8) }
    }
}

impl Verdict {
    fn encode(self) -> [u8; VERDICT] {
        let (kind, number) = match self {
            Self::Welcome { silence_ms } => (0, silence_ms),
            Self::Workers(workers) => (1, workers),
            Self::Restart(restart) => (2, restart),
            Self::Taken => (3, 0),
            Self::Ended(worker) => (4, worker),
            Self::Stranger => (5, 0),
        };
        let mut bytes = [0; VERDICT];
        bytes[0] = kind;
        bytes[1..5].copy_from_slice(&u32::to_le_bytes(number));
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let number = u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
        Some(match bytes[0] {
            0 => Self::Welcome { silence_ms: number },
            1 => Self::Workers(number),
            2 => Self::Restart(number),
            3 => Self::Taken,
            4 => Self::Ended(number),
            5 => Self::Stranger,
            _ => return None,
        })
    }
}

/// Reads as many bytes, until a moment: each by itself may not take its time.
fn read_until(stream: &mut TcpStream, bytes: &mut [u8], until: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // Less than a millisecond may be rounded to none, which would be no limit at all.
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The server's half, up to the claim. The nonce of the member is needed for the verdict.
pub(super) fn receive(stream: &mut TcpStream, secret: &Secret, limit: Duration) -> Result<Met, Unwelcome> {
    let until = Instant::now() + limit;
    let own = random::<NONCE>().map_err(|error| io::Error::other(error.to_string()))?;
    stream.set_write_timeout(Some(limit))?;
    let mut greeting = [0; GREETING];
    greeting[..MAGIC.len()].copy_from_slice(MAGIC);
    greeting[MAGIC.len()..].copy_from_slice(&own);
    stream.write_all(&greeting)?;
    let mut magic = [0; MAGIC.len()];
    read_until(stream, &mut magic, until)?;
    if magic != *MAGIC {
        return Err(Unwelcome::Garbage);
    }
    let mut rest = [0; HELLO - MAGIC.len()];
    read_until(stream, &mut rest, until)?;
    let (nonce, rest) = rest.split_at(NONCE);
    let (claim, tag) = rest.split_at(CLAIM);
    if !secret.verifies(&[b"member", &own, nonce, claim], tag) {
        let mut answer = [0; VERDICT + TAG];
        answer[..VERDICT].copy_from_slice(&Verdict::Stranger.encode());
        let _ = stream.write_all(&answer);
        return Err(Unwelcome::Stranger);
    }
    let mut theirs = [0; NONCE];
    theirs.copy_from_slice(nonce);
    Ok(Met { own, theirs, claim: Claim::decode(claim) })
}

/// A member that has shown that it knows the secret.
pub(super) struct Met {
    own: [u8; NONCE],
    theirs: [u8; NONCE],
    pub claim: Claim,
}

impl Met {
    /// The verdict, with the server's own proof.
    pub(super) fn answer(&self, stream: &mut TcpStream, secret: &Secret, verdict: Verdict) -> io::Result<()> {
        let verdict = verdict.encode();
        let tag = secret.tag(&[b"server", &self.theirs, &self.own, &verdict]);
        let mut answer = [0; VERDICT + TAG];
        answer[..VERDICT].copy_from_slice(&verdict);
        answer[VERDICT..].copy_from_slice(&tag);
        stream.write_all(&answer)
    }
}

/// The member's half. A server that does not know the secret gets no further than [`Unwelcome::Stranger`].
pub(super) fn introduce(
    stream: &mut TcpStream,
    secret: &Secret,
    claim: Claim,
    limit: Duration,
) -> Result<Verdict, Unwelcome> {
    let until = Instant::now() + limit;
    stream.set_write_timeout(Some(limit))?;
    let mut greeting = [0; GREETING];
    read_until(stream, &mut greeting, until)?;
    let (magic, theirs) = greeting.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(Unwelcome::Garbage);
    }
    let own = random::<NONCE>().map_err(|error| io::Error::other(error.to_string()))?;
    let claim = claim.encode();
    let tag = secret.tag(&[b"member", theirs, &own, &claim]);
    stream.write_all(&[&MAGIC[..], &own, &claim, &tag].concat())?;
    let mut answer = [0; VERDICT + TAG];
    read_until(stream, &mut answer, until)?;
    let (verdict, tag) = answer.split_at(VERDICT);
    match Verdict::decode(verdict) {
        None => Err(Unwelcome::Garbage),
        Some(Verdict::Stranger) => Ok(Verdict::Stranger),
        Some(known) if secret.verifies(&[b"server", &own, theirs, verdict], tag) => Ok(known),
        Some(_) => Err(Unwelcome::Stranger),
    }
}
