//! A connection whose both ends know each other.

use core::time::Duration;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, PoisonError};

use super::message::{read_frame, write_frame};

/// Who does not read for so long is not waited for.
const WRITE_LIMIT: Duration = Duration::from_secs(2);

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
        Ok(Self { stream, writing: Mutex::default() })
    }

    /// Sends a frame. After a failure the connection is closed, as half a frame may have been sent.
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        write_frame(&mut &self.stream, frame).inspect_err(|_| self.close())
    }

    /// The next frame; none at the end.
    pub(super) fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        read_frame(&mut &self.stream)
    }

    /// Ends it, also for who reads from it.
    pub(super) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
