//! The agent's end of the sockets over which keepers tell what their workers write, and how they end.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::output::kind;
use crate::spec::{Report, RootCause, Spec, Word};
use crate::system::{Listener, Stream, own_folder, takes_output, terminal_size};

const PAUSE: Duration = Duration::from_millis(20);
/// How many lines of a worker are kept, a panic's backtrace among them, and of each so many characters.
const KEPT: usize = 50;
const KEPT_LENGTH: usize = 400;

/// What an agent is told in an attempt: by its keepers, and over the session of the agents.
pub(crate) enum Told {
    /// A worker's keeper is there, as this process.
    Here(usize, u32, Stream),
    /// Its program runs, as this process.
    Program(usize, u32),
    /// It has ended.
    Ended(usize, Report),
    /// Its keeper is gone; its last lines.
    Gone(usize, Vec<String>),
    /// All machines are there: programs may start.
    Start(Word),
    /// A program was the first to fail, as those that meet were told, and what it is to blame for if nobody knows more, in
    /// so long; and whether that counts though all workers end well.
    First(RootCause, Duration, bool),
    /// The attempt has failed, and why.
    Failed(RootCause),
}

/// All lines of all workers, with whose they are; and below them the screen, if there is one.
#[derive(Clone)]
pub(crate) struct Merged(Arc<Mutex<Shown>>);

struct Shown {
    file: Option<File>,
    /// The lines of the screen that stand in the terminal, below all others.
    screen: Vec<String>,
    /// The columns that it was drawn for.
    columns: usize,
}

impl Shown {
    /// Takes the screen away, from a terminal of so many columns if that is known, so that a line can be written where it begins.
    fn erase(&self, columns: Option<usize>) -> Vec<u8> {
        match self.screen.len() {
            0 => Vec::new(),
            // Nobody knows where the screen begins: all that is seen goes.
            _ if self.is_broken(columns) => b"\x1b[2J\x1b[H".to_vec(),
            lines => format!("\x1b[{lines}A\r\x1b[J").into_bytes(),
        }
    }

    /// Whether its lines may be broken into several, by a terminal that has become narrower.
    fn is_broken(&self, columns: Option<usize>) -> bool {
        columns.is_some_and(|columns| columns < self.columns)
    }

    fn drawn(&self) -> Vec<u8> {
        self.screen.iter().flat_map(|line| [line.as_bytes(), b"\n"].concat()).collect()
    }
}

/// Those of the terminal, where they are known.
fn columns() -> Option<usize> {
    terminal_size().map(|[columns, _]| columns).filter(|columns| *columns > 0)
}

/// A terminal that takes nothing ends no run.
fn write_out(bytes: &[u8]) {
    let _ = io::stdout().write_all(bytes).and_then(|()| io::stdout().flush());
}

impl Merged {
    /// To the terminal, and to a file.
    pub fn new(file: Option<&Path>) -> io::Result<Self> {
        let file = file.map(File::create).transpose()?;
        Ok(Self(Arc::new(Mutex::new(Shown { file, screen: Vec::new(), columns: 0 }))))
    }

    /// A line, whole. A terminal or a disk that takes none ends no run.
    pub fn line(&self, is_error: bool, prefix: &str, line: &[u8]) {
        let line = [prefix.as_bytes(), line, b"\n"].concat();
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let columns = columns();
        write_out(&shown.erase(columns));
        if shown.is_broken(columns) {
            // Drawn again it would be broken again, and this line would go with it; the next screen is made for these columns.
            shown.screen.clear();
        }
        match is_error {
            true => drop(io::stderr().write_all(&line)),
            false => write_out(&line),
        }
        write_out(&shown.drawn());
        let _ = shown.file.as_mut().map(|file| file.write_all(&line));
    }

    /// Draws the screen, which was made for so many columns, in the place of the one before; of no lines, it is gone. Whether it is
    /// drawn: a terminal that takes nothing now keeps what it shows, so that workers' lines do not wait for a screen.
    pub fn draw(&self, screen: Vec<String>, made_for: usize) -> bool {
        let mut shown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !takes_output() {
            return false;
        }
        let erased = shown.erase(columns());
        (shown.screen, shown.columns) = (screen, made_for);
        write_out(&[erased, shown.drawn()].concat());
        true
    }

    /// Leaves the screen where it stands: lines that come are written below it.
    pub fn leave_screen(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).screen.clear();
    }

    /// Something that the agent itself has to say.
    pub fn say(&self, text: &str) {
        text.lines().for_each(|line| self.line(true, "epl-launch: ", line.as_bytes()));
    }
}

/// Where keepers connect, in a folder that nobody else may enter. An agent that is killed outright leaves it: no other end does.
pub(crate) struct Socket {
    folder: tempfile::TempDir,
    sender: Sender<Told>,
    told: Receiver<Told>,
    closed: Arc<AtomicBool>,
}

impl Socket {
    /// Opens it. Each keeper is given the spec; what workers write goes to `merged`.
    pub fn open(merged: &Merged, spec: &Spec) -> io::Result<Self> {
        let mut spec = serde_json::to_vec(spec).map_err(io::Error::other)?;
        spec.push(b'\n');
        let folder = own_folder()?;
        let listener = Listener::bind(Self::path_in(folder.path())).map_err(|error| {
            let temporary = std::env::temp_dir();
            io::Error::other(format!("no socket in {}: {error}; set TMPDIR to a short path", temporary.display()))
        })?;
        let (sender, told) = mpsc::channel();
        let (merged, spec, closed) = (merged.clone(), Arc::new(spec), Arc::new(AtomicBool::new(false)));
        let (is_closed, of_keepers) = (closed.clone(), sender.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                if is_closed.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else {
                    // Such as too many open files.
                    thread::sleep(PAUSE);
                    continue;
                };
                let (sender, merged, spec) = (of_keepers.clone(), merged.clone(), spec.clone());
                thread::spawn(move || read(stream, &spec, &sender, &merged));
            }
        });
        Ok(Self { folder, sender, told, closed })
    }

    fn path_in(folder: &Path) -> PathBuf {
        folder.join("socket")
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        Self::path_in(self.folder.path())
    }

    /// Where others tell the agent something, too.
    pub fn sender(&self) -> Sender<Told> {
        self.sender.clone()
    }

    /// What was told, in the order in which it came.
    pub fn told(&self) -> &Receiver<Told> {
        &self.told
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        // Wakes the thread that waits for keepers.
        let _ = Stream::connect(self.path());
    }
}

/// A worker and the process of its keeper.
fn here(text: &str) -> Option<(usize, u32)> {
    let (worker, process) = text.split_once(' ')?;
    Some((worker.parse().ok()?, process.parse().ok()?))
}

/// Gives one keeper its spec, and reads what it tells, to its end.
fn read(mut stream: Stream, spec: &[u8], sender: &Sender<Told>, merged: &Merged) {
    let Ok(copy) = stream.try_clone() else { return };
    if stream.write_all(spec).is_err() {
        return;
    }
    let (mut stream, mut line) = (BufReader::new(stream), Vec::new());
    let (mut worker, mut copy, mut prefix, mut tail) = (None, Some(copy), String::new(), VecDeque::new());
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
                tail.push_back(String::from_utf8_lossy(content).chars().take(KEPT_LENGTH).collect());
                if tail.len() > KEPT {
                    tail.pop_front();
                }
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
        let _ = sender.send(Told::Gone(worker, tail.into()));
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    use super::*;

    fn spec() -> Spec {
        let text = r#"{"workers":1,"local_ranks":1,"first":0,"transport":"threads","restart":0,"program_secret":null,
            "log_dir":null,"watched":null,"patience":{"secs":1,"nanos":0},"grace":{"secs":1,"nanos":0},"devices":[],"by_bus":false,
            "program":{"Unix":[97]},"arguments":[]}"#;
        serde_json::from_str(text).expect("a spec")
    }

    #[test]
    fn what_has_become_too_narrow_is_cleared_whole() {
        let shown = Shown { file: None, screen: vec!["a line".into(), "another".into()], columns: 80 };
        let erased = |columns| String::from_utf8(shown.erase(columns)).expect("it is text");
        assert_eq!([None, Some(80), Some(120)].map(erased), ["\x1b[2A\r\x1b[J"; 3]);
        assert_eq!(erased(Some(79)), "\x1b[2J\x1b[H");
    }

    #[test]
    fn a_socket_that_is_dropped_leaves_no_thread_and_no_listener() {
        let merged = Merged::new(None).expect("no file is needed");
        let socket = Socket::open(&merged, &spec()).expect("a socket");
        let mode = std::fs::metadata(socket.folder.path()).expect("a folder").permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "the spec has secrets");
        let mut first = String::new();
        let stream = Stream::connect(socket.path()).expect("it listens");
        BufReader::new(stream).read_line(&mut first).expect("the spec");
        assert!(first.contains("program_secret"), "{first}");
        let folder = socket.folder.path().to_path_buf();
        drop(socket);
        assert!(!folder.exists());
        let begin = Instant::now();
        while Arc::strong_count(&merged.0) > 1 {
            assert!(begin.elapsed() < Duration::from_secs(60), "a thread has stayed");
            thread::sleep(PAUSE);
        }
    }
}
