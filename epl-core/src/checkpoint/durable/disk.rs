//! What changes files and folders, and makes the changes durable.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use crate::error::{Error, Result};
use crate::system;

/// What changes files and folders. A file's bytes are durable once it was synced, its name once its folder was.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Makes a folder, with those above it.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn create_folder(&self, path: &Path) -> io::Result<()>;

    /// Makes an empty file, in the place of one that is there.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Renames a file, over one that is there, or a folder.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a folder with all in it.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
}

/// A file that is being written.
pub trait DiskFile: Write + Send {
    /// Makes its bytes durable.
    ///
    /// # Errors
    ///
    /// What the system says.
    fn sync(&mut self) -> io::Result<()>;
}

/// The file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileSystem;

impl Disk for FileSystem {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        // Not over one that is there: it could be a link that leads elsewhere.
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(Box::new(File::create_new(path)?)),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        system::sync_folder(path)
    }
}

impl DiskFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// Makes a folder, with those above it that are not there, all with durable names.
pub(crate) fn create_folder(disk: &dyn Disk, path: &Path) -> Result<()> {
    let missing = path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
    for folder in missing.collect::<Vec<_>>().into_iter().rev() {
        disk.create_folder(folder).map_err(|error| Error::file(folder, error))?;
        sync_parent(disk, folder)?;
    }
    Ok(())
}

/// Renames, and syncs the folder that holds the name.
pub(crate) fn rename(disk: &dyn Disk, from: &Path, to: &Path) -> Result<()> {
    disk.rename(from, to).map_err(|error| Error::file(to, error))?;
    sync_parent(disk, to)
}

/// Removes a folder with all in it.
pub(crate) fn remove_folder(disk: &dyn Disk, path: &Path) -> Result<()> {
    disk.remove_folder(path).map_err(|error| Error::file(path, error))
}

/// Makes the name of a file or folder durable.
pub(crate) fn sync_parent(disk: &dyn Disk, path: &Path) -> Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_folder(disk, parent),
        _ => sync_folder(disk, Path::new(".")),
    }
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(disk: &dyn Disk, folder: &Path) -> Result<()> {
    disk.sync_folder(folder).map_err(|error| Error::file(folder, error))
}
