//! How a member and the server show each other that they know the secret, and agree on the keys of their session: Noise's
//! pattern NNpsk0, in messages of fixed length.
//!
//! ```text
//!  server ─▶ member   magic, nonce
//!  member ─▶ server   magic, e, the claim          encrypted by the secret: who does not know it can write none
//!  server ─▶ member   1, e, the verdict            encrypted by the secret and both keys `e`
//!                or   0, and as many zeros         the secret is another one
//! ```
//!
//! Magic and nonce are Noise's prologue, so that a claim that was overheard is worth nothing on another connection. The
//! server reads nothing of a member that does not know the secret, and computes nothing for it but one authentication.

use core::time::Duration;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use snow::{Builder, HandshakeState};

use super::secret::{Secret, random};
use super::session::{Session, TAG};

const SUITE: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
/// What both ends begin with. Its last digit is the version.
const MAGIC: &[u8; 8] = b"EPL-RDV2";
const NONCE: usize = 32;
const GREETING: usize = MAGIC.len() + NONCE;
/// Noise's `e`: a public key that is used once.
const KEY: usize = 32;
/// Three numbers, of at most 5 bytes each.
const CLAIM: usize = 15;
const HELLO: usize = MAGIC.len() + KEY + CLAIM + TAG;
/// A kind and a number.
const VERDICT: usize = 6;
const ANSWER: usize = 1 + KEY + VERDICT + TAG;
/// The first byte of the answer to one that knows the secret.
const KNOWN: u8 = 1;

/// Who a member says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    pub worker: u32,
    pub workers: u32,
    pub restart: u32,
}

/// What the server makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
}

/// Why a connection came to nothing.
#[derive(Debug)]
pub(super) enum Unwelcome {
    /// No answer in time, or the connection broke.
    Io(io::Error),
    /// The answer was not that of a member, or of a server.
    Garbage,
    /// The other end speaks this version of the protocol.
    Version(char),
    /// The other end does not know the secret.
    Stranger,
    /// The server says that it has another secret. That proves nothing, as there is nothing to prove it with.
    OtherSecret,
}

impl From<io::Error> for Unwelcome {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What is said of one that speaks another version, as the end of a sentence that begins with it.
pub(super) fn other_version(other: char) -> String {
    let own = char::from(MAGIC[7]);
    format!(
        "speaks version {other} of the rendezvous' protocol, and this end version {own}; run the same version of epl-launch \
         on all machines"
    )
}

/// Whether the other end begins so, too.
fn check(magic: &[u8]) -> Result<(), Unwelcome> {
    match magic.strip_prefix(&MAGIC[..7]) {
        _ if magic == MAGIC => Ok(()),
        Some([other]) if other.is_ascii_digit() => Err(Unwelcome::Version(char::from(*other))),
        _ => Err(Unwelcome::Garbage),
    }
}

/// Reads as many bytes, until a moment, which never comes where there is none: each by itself may not take its time.
fn read_until(stream: &mut TcpStream, bytes: &mut [u8], until: Option<Instant>) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // Less than a millisecond may be rounded to none, which would be no limit at all.
        stream.set_read_timeout(left.map(|left| left.max(Duration::from_millis(1))))?;
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// One end of the handshake that this greeting begins.
fn noise(secret: &Secret, greeting: &[u8; GREETING], is_member: bool) -> io::Result<HandshakeState> {
    let key = secret.key();
    let state = || -> Result<HandshakeState, snow::Error> {
        let builder = Builder::new(SUITE.parse()?).psk(0, &key)?.prologue(greeting)?;
        if is_member { builder.build_initiator() } else { builder.build_responder() }
    };
    state().map_err(io::Error::other)
}

/// Writes one message of the handshake. Its contents are filled up with zeros, so that they tell nothing by their length.
fn write<const N: usize>(noise: &mut HandshakeState, contents: &impl Serialize, into: &mut [u8]) -> io::Result<()> {
    let mut padded = [0; N];
    postcard::to_slice(contents, &mut padded).map_err(io::Error::other)?;
    noise.write_message(&padded, into).map_err(io::Error::other)?;
    Ok(())
}

/// Reads one.
fn read<const N: usize, T: for<'a> Deserialize<'a>>(noise: &mut HandshakeState, from: &[u8]) -> Result<T, Unwelcome> {
    let mut padded = [0; N];
    noise.read_message(from, &mut padded).map_err(|_| Unwelcome::Stranger)?;
    postcard::from_bytes(&padded).map_err(|_| Unwelcome::Garbage)
}

fn session(noise: HandshakeState) -> io::Result<Session> {
    noise.into_stateless_transport_mode().map(Session::new).map_err(io::Error::other)
}

/// The server's half, up to the claim.
pub(super) fn receive(stream: &mut TcpStream, secret: &Secret, limit: Duration) -> Result<Met, Unwelcome> {
    let until = Instant::now().checked_add(limit);
    let nonce = random::<NONCE>().map_err(|error| io::Error::other(error.to_string()))?;
    stream.set_write_timeout(Some(limit))?;
    let mut greeting = [0; GREETING];
    greeting[..MAGIC.len()].copy_from_slice(MAGIC);
    greeting[MAGIC.len()..].copy_from_slice(&nonce);
    stream.write_all(&greeting)?;
    let mut begin = [0; MAGIC.len()];
    read_until(stream, &mut begin, until)?;
    check(&begin)?;
    let mut hello = [0; HELLO - MAGIC.len()];
    read_until(stream, &mut hello, until)?;
    let mut noise = noise(secret, &greeting, false)?;
    match read::<CLAIM, _>(&mut noise, &hello) {
        Ok(claim) => Ok(Met { noise, claim }),
        Err(unwelcome) => {
            let _ = stream.write_all(&[0; ANSWER]);
            Err(unwelcome)
        }
    }
}

/// A member that has shown that it knows the secret.
pub(super) struct Met {
    noise: HandshakeState,
    pub claim: Claim,
}

impl Met {
    /// The verdict, with the server's own proof. What is said from then on is the session's.
    pub(super) fn answer(mut self, stream: &mut TcpStream, verdict: Verdict) -> io::Result<Session> {
        let mut answer = [KNOWN; ANSWER];
        write::<VERDICT>(&mut self.noise, &verdict, &mut answer[1..])?;
        stream.write_all(&answer)?;
        session(self.noise)
    }
}

/// The member's half. A server that does not know the secret gets no further than [`Unwelcome::Stranger`].
pub(super) fn introduce(
    stream: &mut TcpStream,
    secret: &Secret,
    claim: Claim,
    limit: Duration,
) -> Result<(Verdict, Session), Unwelcome> {
    let until = Instant::now().checked_add(limit);
    stream.set_write_timeout(Some(limit))?;
    let mut greeting = [0; GREETING];
    // First, as another version may have another length.
    read_until(stream, &mut greeting[..MAGIC.len()], until)?;
    if let Err(unwelcome) = check(&greeting[..MAGIC.len()]) {
        // So that it can tell, too. Who is no server need not take it.
        let _ = stream.write_all(MAGIC);
        return Err(unwelcome);
    }
    read_until(stream, &mut greeting[MAGIC.len()..], until)?;
    let mut noise = noise(secret, &greeting, true)?;
    let mut hello = [0; HELLO];
    hello[..MAGIC.len()].copy_from_slice(MAGIC);
    write::<CLAIM>(&mut noise, &claim, &mut hello[MAGIC.len()..])?;
    stream.write_all(&hello)?;
    let mut answer = [0; ANSWER];
    read_until(stream, &mut answer, until)?;
    match answer {
        [KNOWN, ref proof @ ..] => Ok((read::<VERDICT, _>(&mut noise, proof)?, session(noise)?)),
        [0, ..] => Err(Unwelcome::OtherSecret),
        _ => Err(Unwelcome::Garbage),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);
    const CLAIM: Claim = Claim { worker: u32::MAX, workers: u32::MAX, restart: u32::MAX };

    fn secret(text: &str) -> Secret {
        Secret::from_bytes(text.as_bytes()).unwrap()
    }

    /// A handshake between a server and a member with these secrets.
    fn meet(of_server: &str, of_member: &str) -> (Result<Claim, Unwelcome>, Result<Verdict, Unwelcome>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::scope(|scope| {
            let member = scope.spawn(|| {
                let mut stream = TcpStream::connect(address).unwrap();
                introduce(&mut stream, &secret(of_member), CLAIM, LIMIT).map(|(verdict, _)| verdict)
            });
            let mut stream = listener.accept().unwrap().0;
            let met = receive(&mut stream, &secret(of_server), LIMIT);
            let claim = met.map(|met| {
                let claim = met.claim;
                met.answer(&mut stream, Verdict::Ended(u32::MAX)).unwrap();
                claim
            });
            (claim, member.join().unwrap())
        })
    }

    #[test]
    fn both_ends_need_the_same_secret() {
        let (claim, verdict) = meet("0123456789abcdef", "0123456789abcdef");
        assert_eq!((claim.unwrap(), verdict.unwrap()), (CLAIM, Verdict::Ended(u32::MAX)));
        let (claim, verdict) = meet("0123456789abcdef", "0123456789abcdeg");
        assert!(matches!(claim, Err(Unwelcome::Stranger)), "{claim:?}");
        assert!(matches!(verdict, Err(Unwelcome::OtherSecret)), "{verdict:?}");
    }
}
