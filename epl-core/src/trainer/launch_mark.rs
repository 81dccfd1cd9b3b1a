//! Which launch the folder of a run belongs to: one that is restarted goes on with its own run, and with no other that
//! the folder held when it was first started.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use epl_comm::Launch;

use crate::checkpoint::durable;
use crate::error::{Error, Result};

/// The file with the launch's name.
const FILE: &str = "launch";

/// Whether a run in this folder goes on without being told to: its launch has begun it there, and has restarted it.
///
/// # Errors
///
/// When the mark cannot be read, or what `epl-launch` says.
pub fn goes_on(out: &Path) -> Result<bool> {
    match Launch::from_environment()? {
        Some(launch) if launch.restarts > 0 => bears(out, &launch.id),
        _ => Ok(false),
    }
}

/// Whether the folder bears this launch.
pub(super) fn bears(out: &Path, launch: &str) -> Result<bool> {
    let path = out.join(FILE);
    match fs::read_to_string(&path) {
        Ok(mark) => Ok(mark.trim() == launch),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::file(path, error)),
    }
}

/// From now on the folder belongs to this launch.
pub(super) fn make(out: &Path, launch: &str) -> Result<()> {
    durable::replace(&out.join(FILE), format!("{launch}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_bears_its_last_launch() {
        let out = tempfile::tempdir().unwrap();
        assert!(!bears(out.path(), "one").unwrap());
        for launch in ["one", "two"] {
            make(out.path(), launch).unwrap();
        }
        assert_eq!([bears(out.path(), "one").unwrap(), bears(out.path(), "two").unwrap()], [false, true]);
        fs::remove_file(out.path().join(FILE)).unwrap();
        fs::create_dir(out.path().join(FILE)).unwrap();
        assert!(bears(out.path(), "two").unwrap_err().to_string().contains("launch"));
    }
}
