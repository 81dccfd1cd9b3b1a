//! Files that are either as before or as after, whenever the machine stops.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use crate::error::{Error, Result};

/// Replaces a file: written under another name, synced, renamed.
///
/// # Errors
///
/// When the file cannot be written.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let error = |error| Error::file(path, error);
    let partial = path.with_extension("partial");
    let mut file = File::create(&partial).map_err(error)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(error)?;
    rename(&partial, path)
}

/// Renames, and syncs the folder that holds the name.
pub(super) fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|error| Error::file(to, error))?;
    sync_parent(to)
}

/// Makes the name of a file or folder durable.
pub(super) fn sync_parent(path: &Path) -> Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_folder(parent),
        _ => sync_folder(Path::new(".")),
    }
}

/// Makes the names in a folder durable.
pub(super) fn sync_folder(folder: &Path) -> Result<()> {
    // Elsewhere a folder cannot be opened as a file, and renames are durable without.
    if cfg!(unix) {
        File::open(folder).and_then(|file| file.sync_all()).map_err(|error| Error::file(folder, error))?;
    }
    Ok(())
}
