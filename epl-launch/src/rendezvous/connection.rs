//! A connection whose both ends know each other.

use core::fmt;
use core::time::Duration;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::message::{decode, encode};
use super::session::{Direction, Session};

/// Who does not read for so long is not waited for.
const WRITE_LIMIT: Duration = Duration::from_secs(2);
/// A host that acknowledges nothing of what it was sent for so long has lost its power or its network. That of a process
/// that is stopped acknowledges, whatever the process does.
#[cfg(target_os = "linux")]
const ACKNOWLEDGE_LIMIT: Duration = Duration::from_secs(15);

/// One end: any thread writes, one reads.
pub(super) struct Connection {
    stream: TcpStream,
    session: Session,
    /// A frame at a time.
    sent: Mutex<Direction>,
    received: Mutex<Direction>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Connection").field(&self.stream).finish()
    }
}

impl Connection {
    pub(super) fn new(stream: TcpStream, session: Session) -> io::Result<Self> {
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(Some(WRITE_LIMIT))?;
        stream.set_nodelay(true)?;
        #[cfg(target_os = "linux")]
        limit_acknowledgements(&stream)?;
        Ok(Self { stream, session, sent: Mutex::default(), received: Mutex::default() })
    }

    /// Sends a message. After a failure the connection is closed, as half a frame may have been sent.
    pub(super) fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let sent = &mut lock(&self.sent);
        let written = encode(message).and_then(|frame| self.session.write(&mut &self.stream, sent, &frame));
        written.inspect_err(|_| self.close())
    }

    /// The next message; none at the end.
    ///
    /// # Errors
    ///
    /// What the connection says; what is no message, or not what the other end sent, is
    /// [`InvalidData`](io::ErrorKind::InvalidData).
    pub(super) fn receive<M: DeserializeOwned>(&self) -> io::Result<Option<M>> {
        let frame = self.session.read(&mut &self.stream, &mut lock(&self.received));
        let frame = frame.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => io::Error::new(error.kind(), "its host does not acknowledge what it is sent"),
            _ => error,
        })?;
        frame.map(|frame| decode(&frame)).transpose()
    }

    /// Ends it, also for who reads from it.
    pub(super) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn lock(direction: &Mutex<Direction>) -> MutexGuard<'_, Direction> {
    direction.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A member beats, and is answered, so that both ends have something under way.
#[cfg(target_os = "linux")]
fn limit_acknowledgements(stream: &TcpStream) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_tcp_user_timeout(stream, ACKNOWLEDGE_LIMIT.as_millis() as u32)?)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_host_that_acknowledges_nothing_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let [session, _] = crate::rendezvous::session::tests::pair();
        let connection = Connection::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap(), session).unwrap();
        let limit = rustix::net::sockopt::tcp_user_timeout(&connection.stream).unwrap();
        assert_eq!(u128::from(limit), ACKNOWLEDGE_LIMIT.as_millis());
    }
}
