//! The library, made and loaded; each test has one of its own.

use std::ffi::{CString, c_char};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use epl_comm::nccl::{Launcher, Library};
use epl_comm::{Error, ProcessGroup, Rank, Result};

use crate::host_memory::{Driver, FakeDevice, HostMemory};

static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
    // One file, however often the tests are run, and by however many processes at once.
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libfake_nccl.so");
    std::fs::rename(build(&[]), &path).unwrap();
    path
});
static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// A name that no other test, in whatever process, uses.
fn new_path() -> PathBuf {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("libfake_nccl_{}_{number}.so", std::process::id()))
}

/// Makes the library.
pub fn build(arguments: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("epl-comm/tests/fake_nccl/lib.rs");
    let (rustc, path) = (std::env::var("RUSTC").unwrap_or("rustc".to_string()), new_path());
    let output = Command::new(rustc)
        .args(["--edition", "2024", "--crate-name", "fake_nccl", "--crate-type", "cdylib", "-C", "opt-level=1"])
        .args(["--cap-lints", "allow"])
        .args(arguments)
        .arg("-o")
        .args([&path, &source])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

pub struct Fake {
    pub library: Arc<Library>,
    handle: libloading::Library,
    path: PathBuf,
}

impl Fake {
    pub fn new() -> Self {
        // A copy is a library of its own: it shares neither switches nor counts with the others.
        let path = new_path();
        std::fs::copy(&*BUILT, &path).unwrap();
        // SAFETY: it does nothing when it is loaded.
        let handle = unsafe { libloading::Library::new(&path) }.unwrap();
        Self { library: Library::at(&path).unwrap(), handle, path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn with(switch: &str, value: &str) -> Self {
        let fake = Self::new();
        fake.set(switch, value);
        fake
    }

    pub fn set(&self, switch: &str, value: &str) {
        let (switch, value) = (CString::new(switch).unwrap(), CString::new(value).unwrap());
        type Set = unsafe extern "C" fn(*const c_char, *const c_char);
        // SAFETY: the function is declared like this; it takes texts that end with a zero.
        unsafe { (self.handle.get::<Set>("fake_nccl_set").unwrap())(switch.as_ptr(), value.as_ptr()) };
    }

    pub fn count(&self, what: &str) -> u64 {
        let what = CString::new(what).unwrap();
        type Count = unsafe extern "C" fn(*const c_char) -> u64;
        // SAFETY: as above.
        unsafe { (self.handle.get::<Count>("fake_nccl_count").unwrap())(what.as_ptr()) }
    }

    pub fn device(&self, rank: Rank) -> FakeDevice {
        FakeDevice::new(Driver::of(&self.handle), rank.0)
    }

    pub fn launcher(&self, ranks: usize) -> Launcher {
        Launcher::new(ranks).library(self.library.clone())
    }

    /// Runs ranks that must all end well; every communicator is given back in the way that NCCL asks for.
    pub fn run<T: Send>(&self, ranks: usize, is_own: bool, f: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
        let values = self.run_on(self.launcher(ranks), is_own, |group| Ok::<T, Error>(f(group)));
        let values = values.unwrap_or_else(|(rank, error)| panic!("{rank}: {error}"));
        assert_eq!((self.count("misused"), self.count("aborted")), (0, 0));
        assert_eq!(self.count("made"), self.count("destroyed"));
        values
    }

    /// The ranks of a launcher, on host memory.
    pub fn run_on<T: Send, E: From<Error> + Display + Send>(
        &self,
        launcher: Launcher,
        is_own: bool,
        f: impl Fn(ProcessGroup) -> Result<T, E> + Sync,
    ) -> Result<Vec<T>, (Rank, E)> {
        launcher.run_on(|rank| Ok(HostMemory::new(self, rank, is_own)), f)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
