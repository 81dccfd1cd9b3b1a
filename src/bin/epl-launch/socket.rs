//! The launcher's end of the sockets over which keepers tell what their workers write, and how they end.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::order::Report;
use crate::output::kind;

/// What keepers tell.
pub enum Told {
    /// A worker's keeper is there, as this process.
    Here(usize, u32, UnixStream),
    /// Its program runs, as this process.
    Program(usize, u32),
    /// It has ended.
    Ended(usize, Report),
    /// Its keeper is gone.
    Gone(usize),
}

/// All lines of all workers, with whose they are.
#[derive(Clone)]
pub struct Merged(Arc<Mutex<Option<File>>>);

impl Merged {
    /// To the terminal, and to a file in a folder.
    pub fn new(log_dir: Option<&Path>) -> io::Result<Self> {
        let file = log_dir.map(|folder| File::create(folder.join("merged.log"))).transpose()?;
        Ok(Self(Arc::new(Mutex::new(file))))
    }

    /// A line, whole. A terminal or a disk that takes none ends no run.
    pub fn line(&self, is_error: bool, prefix: &str, line: &[u8]) {
        let line = [prefix.as_bytes(), line, b"\n"].concat();
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = match is_error {
            true => io::stderr().write_all(&line),
            false => io::stdout().write_all(&line).and_then(|()| io::stdout().flush()),
        };
        let _ = file.as_mut().map(|file| file.write_all(&line));
    }

    /// Something that the launcher itself has to say.
    pub fn say(&self, text: &str) {
        text.lines().for_each(|line| self.line(true, "epl-launch: ", line.as_bytes()));
    }
}

/// Where keepers connect, in a folder that nobody else may enter.
pub struct Socket {
    folder: tempfile::TempDir,
    told: Receiver<Told>,
}

impl Socket {
    /// Opens it. What workers write goes to `merged`.
    pub fn open(merged: &Merged) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("epl-launch-").tempdir()?;
        let listener = UnixListener::bind(Self::path_in(folder.path())).map_err(|error| {
            let temporary = std::env::temp_dir();
            io::Error::other(format!("no socket in {}: {error}; set TMPDIR to a short path", temporary.display()))
        })?;
        let (sender, told) = mpsc::channel();
        let merged = merged.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (sender, merged) = (sender.clone(), merged.clone());
                thread::spawn(move || read(stream, &sender, &merged));
            }
        });
        Ok(Self { folder, told })
    }

    fn path_in(folder: &Path) -> PathBuf {
        folder.join("socket")
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        Self::path_in(self.folder.path())
    }

    /// What keepers have told, in the order in which it came.
    pub fn told(&self) -> &Receiver<Told> {
        &self.told
    }
}

/// A worker and the process of its keeper.
fn here(text: &str) -> Option<(usize, u32)> {
    let (worker, process) = text.split_once(' ')?;
    Some((worker.parse().ok()?, process.parse().ok()?))
}

/// Reads what one keeper tells, to its end.
fn read(stream: UnixStream, sender: &Sender<Told>, merged: &Merged) {
    let Ok(copy) = stream.try_clone() else { return };
    let (mut stream, mut line) = (BufReader::new(stream), Vec::new());
    let mut worker = None;
    let mut copy = Some(copy);
    let mut prefix = String::new();
    while let Ok(1..) = stream.read_until(b'\n', &mut line) {
        let text = String::from_utf8_lossy(line.get(1..).unwrap_or_default());
        let text = text.trim_end();
        let told = match (line[0], worker) {
            (kind::WORKER, None) => here(text).zip(copy.take()).map(|((number, process), copy)| {
                worker = Some(number);
                prefix = format!("[worker {number}] ");
                Told::Here(number, process, copy)
            }),
            (kind::PROGRAM, Some(worker)) => text.parse().ok().map(|process| Told::Program(worker, process)),
            (kind::REPORT, Some(worker)) => serde_json::from_str(text).ok().map(|report| Told::Ended(worker, report)),
            (stream @ (kind::OUT | kind::ERR), Some(_)) => {
                let content = line[1..].strip_suffix(b"\n").unwrap_or(&line[1..]);
                merged.line(stream == kind::ERR, &prefix, content);
                None
            }
            _ => None,
        };
        if told.is_some_and(|told| sender.send(told).is_err()) {
            return;
        }
        line.clear();
    }
    if let Some(worker) = worker {
        let _ = sender.send(Told::Gone(worker));
    }
}
