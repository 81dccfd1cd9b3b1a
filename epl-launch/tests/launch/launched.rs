//! Runs `epl-launch`, and looks for what it leaves behind. Also for the tests that have programs to be launched, which are of
//! another package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long anything may take before there is a fault, on a machine that does much else.
pub const LIMIT: Duration = Duration::from_secs(240);
/// How long a run may take to end once something has happened to it.
pub const PROMPTLY: Duration = Duration::from_secs(15);
/// In the environment of all processes of a test.
const MARK: &str = "EPL_TEST_MARK";

/// Waits for a condition.
pub fn until<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(met) = condition() {
            return met;
        }
        assert!(begin.elapsed() < limit, "{what}: not within {limit:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A run of `epl-launch` under way. It ends with the test.
pub struct Launched {
    child: Child,
    mark: String,
    /// Of all its processes: one that is killed outright leaves its socket here.
    temporary: TempDir,
    pub folder: PathBuf,
}

/// How it ended.
pub struct Ended {
    pub code: Option<i32>,
    pub text: String,
}

impl Ended {
    /// Checks the exit code, and that all of these were said.
    pub fn expect(&self, code: i32, said: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.text);
        for part in said {
            assert!(self.text.contains(part), "no `{part}` in\n{}", self.text);
        }
    }
}

/// An empty folder for a test.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("epl_launch").join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the folder can be made");
    folder
}

/// The program, which is built beside the tests: with those of its own package, and with the whole workspace.
pub fn launcher() -> PathBuf {
    let here = std::env::current_exe().expect("a test has a path");
    let launcher = here.parent().and_then(Path::parent).expect("tests are built in a folder").join("epl-launch");
    assert!(launcher.is_file(), "there is no {}; `cargo build -p epl-launch` makes it", launcher.display());
    launcher
}

/// Starts it with these arguments; `environment` is added to that of the test, without what another launcher has set.
pub fn launch(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Launched {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let mark = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
    let folder = folder(name);
    let output = fs::File::create(folder.join("output")).expect("a file can be made");
    let mut command = Command::new(launcher());
    let ours = ["RUST_BACKTRACE", "EPL_", "OMPI_", "PMI", "SLURM_", "CUDA_"];
    for (key, _) in std::env::vars().filter(|(key, _)| ours.iter().any(|prefix| key.starts_with(prefix))) {
        command.env_remove(key);
    }
    let temporary = tempfile::tempdir().expect("a folder for a moment");
    command
        .args(arguments)
        .env(MARK, &mark)
        .env("TMPDIR", temporary.path())
        .envs(environment.iter().copied())
        .stdin(Stdio::null());
    command.stdout(output.try_clone().expect("a file can be shared")).stderr(output);
    let child = command.spawn().expect("epl-launch can be started");
    Launched { child, mark, temporary, folder }
}

/// A script as the program of a run.
pub fn script<'a>(arguments: &[&'a str], script: &'a str) -> Vec<&'a str> {
    [arguments, &["--", "bash", "-c", script]].concat()
}

impl Launched {
    /// What has been written so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.join("output")).unwrap_or_default()).into_owned()
    }

    /// Waits until so many lines begin with these words, and returns what follows them, sorted.
    pub fn said(&mut self, words: &str, count: usize) -> Vec<String> {
        until(words, LIMIT, || {
            let text = self.text();
            let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let mut found: Vec<String> =
                whole.filter_map(|line| Some(line.split_once(words)?.1.trim().to_string())).collect();
            if found.len() < count {
                let ended = self.child.try_wait().expect("it can be waited for");
                assert!(
                    ended.is_none() || self.text().matches(words).count() >= count,
                    "it has ended:\n{}",
                    self.text()
                );
            }
            found.sort();
            (found.len() >= count).then_some(found)
        })
    }

    /// The process that each worker has said it is.
    pub fn processes(&mut self, workers: usize) -> Vec<u32> {
        let said = self.said("] I am ", workers);
        // "worker of process": sorted by worker.
        said.iter().map(|line| line.rsplit(' ').next().and_then(|id| id.parse().ok()).expect("a number")).collect()
    }

    /// The launcher's own process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end, and looks that no process is left, nor a folder with a socket or with what ranks told.
    pub fn end(&mut self, limit: Duration) -> Ended {
        let status = until("the end", limit, || self.child.try_wait().expect("it can be waited for"));
        let left = self.left();
        assert!(left.is_empty(), "left: {left:?}\n{}", self.text());
        let folders = self.temporary_folders();
        assert!(folders.is_empty(), "left: {folders:?}\n{}", self.text());
        Ended { code: status.code(), text: self.text() }
    }

    /// The temporary folders of the launcher that there are.
    pub fn temporary_folders(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.temporary.path()).expect("it is there until the test ends").flatten();
        let is_ours =
            |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"epl-launch-"));
        entries.map(|entry| entry.path()).filter(is_ours).collect()
    }

    /// The processes of this run that there are.
    pub fn left(&self) -> Vec<(u32, String)> {
        let mark = format!("{MARK}={}", self.mark);
        let processes = fs::read_dir("/proc").expect("there is a /proc").flatten();
        let of_run = processes.filter_map(|process| {
            let id = process.file_name().to_str()?.parse().ok()?;
            let environment = fs::read(process.path().join("environ")).ok()?;
            let is_ours = environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
            let command = fs::read(process.path().join("cmdline")).ok()?;
            is_ours.then(|| (id, String::from_utf8_lossy(&command).replace('\0', " ")))
        });
        of_run.collect()
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for (process, _) in self.left() {
            signal(process, "KILL");
        }
    }
}

/// Sends a signal.
pub fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(process.to_string()).stderr(Stdio::null()).status();
    sent.expect("there is a `kill`");
}

/// The parent of a process.
pub fn parent(process: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("the process is there");
    let fields = stat.rsplit_once(") ").expect("it has a name").1;
    fields.split(' ').nth(1).and_then(|parent| parent.parse().ok()).expect("it has a parent")
}

/// Whether there is an `mpirun`. Without one, what needs it says that it was not run.
pub fn has_mpi() -> bool {
    let has = Command::new("mpirun").arg("--version").output().is_ok_and(|output| output.status.success());
    if !has {
        eprintln!("not run: there is no mpirun");
    }
    has
}
