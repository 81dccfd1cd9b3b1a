//! What a worker writes: to its agent, and to its log.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::system::Stream;

/// A longer line is told in pieces.
const LONGEST: u64 = 8 << 10;

/// The kinds of lines on the agent's socket.
pub(crate) mod kind {
    pub const WORKER: u8 = b'w';
    pub const PROGRAM: u8 = b'p';
    pub const OUT: u8 = b'o';
    pub const ERR: u8 = b'e';
    pub const REPORT: u8 = b'x';
}

/// Where a worker's lines go.
#[derive(Clone)]
pub(crate) struct Output(Arc<Mutex<Sinks>>);

struct Sinks {
    socket: Stream,
    log: Option<File>,
}

impl Output {
    /// To the agent's socket, and to a log in a folder, which is begun anew by the first start and continued by
    /// others.
    pub fn new(socket: Stream, log_dir: Option<&Path>, worker: usize, restart: u32) -> io::Result<Self> {
        let open = |folder: &Path| {
            let path = folder.join(format!("worker-{worker}.log"));
            let mut options = OpenOptions::new();
            let options = options.create(true).write(true);
            let mut file = if restart == 0 { options.truncate(true) } else { options.append(true) }.open(path)?;
            if restart > 0 {
                writeln!(file, "--- restart {restart} ---")?;
            }
            Ok::<_, io::Error>(file)
        };
        let log = log_dir.map(open).transpose()?;
        Ok(Self(Arc::new(Mutex::new(Sinks { socket, log }))))
    }

    fn sinks(&self) -> MutexGuard<'_, Sinks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the agent something. One that is gone is not told.
    pub fn tell(&self, kind: u8, line: &[u8]) {
        let line = [&[kind], line, b"\n"].concat();
        let _ = self.sinks().socket.write_all(&line);
    }

    /// A line of the program.
    fn line(&self, kind: u8, line: &[u8]) {
        let mut sinks = self.sinks();
        // A full disk does not end a run.
        let _ = sinks.log.as_mut().map(|log| log.write_all(&[line, b"\n"].concat()));
        drop(sinks);
        self.tell(kind, line);
    }

    /// Reads a stream of the program to its end.
    pub fn pump(&self, kind: u8, stream: impl Read + Send + 'static) -> JoinHandle<()> {
        let output = self.clone();
        thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while let Ok(1..) = stream.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
                let end = line.strip_suffix(b"\n").unwrap_or(&line);
                output.line(kind, end.strip_suffix(b"\r").unwrap_or(end));
                line.clear();
            }
        })
    }
}
