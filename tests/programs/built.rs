//! Programs as `cargo test` has built them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program of `examples/`.
pub fn example(name: &str) -> PathBuf {
    let here = std::env::current_exe().expect("a test has a path");
    here.parent().and_then(Path::parent).expect("tests are built in a folder").join("examples").join(name)
}

/// To run one: options of the environment that tests run in do not reach it.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("EPL_")) {
        command.env_remove(key);
    }
    command
}
