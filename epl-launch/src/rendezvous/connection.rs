//! A connection whose both ends know each other.

use core::fmt;
use core::time::Duration;
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::message::{decode, encode};
use super::session::{Direction, Session};
use crate::system::limit_acknowledgements;

/// Who takes so long to read a frame is not waited for.
const WRITE_LIMIT: Duration = Duration::from_secs(2);
/// A host that acknowledges nothing of what it was sent for so long has lost its power or its network. That of a process
/// that is stopped acknowledges, whatever the process does.
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
        // A member beats, and is answered, so that both ends have something under way.
        limit_acknowledgements(&stream, ACKNOWLEDGE_LIMIT)?;
        Ok(Self { stream, session, sent: Mutex::default(), received: Mutex::default() })
    }

    /// Sends a message. After a failure the connection is closed, as half a frame may have been sent.
    pub(super) fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let sent = &mut lock(&self.sent);
        let written =
            encode(message).and_then(|frame| self.session.write(&mut Limited::new(&self.stream), sent, &frame));
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

/// Writes one frame, all of it within the limit, however many writes it takes.
struct Limited<'a> {
    stream: &'a TcpStream,
    begin: Instant,
    /// Whether a write was for a part only, so that the next has less time.
    is_late: bool,
}

impl<'a> Limited<'a> {
    fn new(stream: &'a TcpStream) -> Self {
        Self { stream, begin: Instant::now(), is_late: false }
    }
}

impl Write for Limited<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_late {
            let left = WRITE_LIMIT.saturating_sub(self.begin.elapsed());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
        }
        let written = self.stream.write(bytes)?;
        let was_late = std::mem::replace(&mut self.is_late, written < bytes.len());
        if was_late && !self.is_late {
            self.stream.set_write_timeout(Some(WRITE_LIMIT))?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn lock(direction: &Mutex<Direction>) -> MutexGuard<'_, Direction> {
    direction.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Read;
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

    /// Each of its writes goes on for a while.
    #[test]
    fn who_reads_a_frame_bit_by_bit_is_not_waited_for() {
        use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_socket_recv_buffer_size(&listener, 1).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        set_socket_send_buffer_size(&stream, 1).unwrap();
        let mut slow = listener.accept().unwrap().0;
        let [session, _] = crate::rendezvous::session::tests::pair();
        let connection = Connection::new(stream, session).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while matches!(slow.read(&mut [0; 500]), Ok(1..)) {
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
            let begin = Instant::now();
            let sent = connection.send(&vec![0_u8; crate::rendezvous::MAX_VALUE]);
            assert!(sent.is_err() && begin.elapsed() >= WRITE_LIMIT, "{sent:?} {:?}", begin.elapsed());
            assert!(connection.send(&0_u8).is_err(), "half a frame was sent");
        });
    }
}
