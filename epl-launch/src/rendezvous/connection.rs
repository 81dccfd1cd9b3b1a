//! A connection whose both ends know each other.

use core::time::Duration;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, PoisonError};

use super::message::{read_frame, write_frame};

/// Who does not read for so long is not waited for.
const WRITE_LIMIT: Duration = Duration::from_secs(2);
/// A host that acknowledges nothing of what it was sent for so long has lost its power or its network. That of a process
/// that is stopped acknowledges, whatever the process does.
#[cfg(target_os = "linux")]
const ACKNOWLEDGE_LIMIT: Duration = Duration::from_secs(15);

/// One end: any thread writes, one reads.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// A frame at a time.
    writing: Mutex<()>,
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(Some(WRITE_LIMIT))?;
        stream.set_nodelay(true)?;
        #[cfg(target_os = "linux")]
        limit_acknowledgements(&stream)?;
        Ok(Self { stream, writing: Mutex::default() })
    }

    /// Sends a frame. After a failure the connection is closed, as half a frame may have been sent.
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        write_frame(&mut &self.stream, frame).inspect_err(|_| self.close())
    }

    /// The next frame; none at the end.
    pub(super) fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        read_frame(&mut &self.stream).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => io::Error::new(error.kind(), "its host does not acknowledge what it is sent"),
            _ => error,
        })
    }

    /// Ends it, also for who reads from it.
    pub(super) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// A member beats, and is answered, so that both ends have something under way.
#[cfg(target_os = "linux")]
fn limit_acknowledgements(stream: &TcpStream) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let limit = ACKNOWLEDGE_LIMIT.as_millis() as libc::c_uint;
    let (value, size) = ((&raw const limit).cast(), size_of_val(&limit) as libc::socklen_t);
    // SAFETY: the socket is open as long as the stream; the pointer is to a number of that size that outlives the call.
    match unsafe { libc::setsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, value, size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_host_that_acknowledges_nothing_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = Connection::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap()).unwrap();
        let (mut limit, mut size) = (0 as libc::c_uint, size_of::<libc::c_uint>() as libc::socklen_t);
        let (socket, to) = (connection.stream.as_raw_fd(), (&raw mut limit).cast());
        // SAFETY: an open socket, and pointers to variables that outlive the call, of the size that is given.
        let asked = unsafe { libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, to, &raw mut size) };
        assert_eq!((asked, u128::from(limit)), (0, ACKNOWLEDGE_LIMIT.as_millis()));
    }
}
