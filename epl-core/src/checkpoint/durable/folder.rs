//! A folder that is made under another name, and then takes the place of one that is there.
//!
//! ```text
//! NAME             what is read
//! .NAME.partial    in the making
//! .NAME.old        the one that is replaced, until the new one has its name. After a crash in between, it is what is read
//! ```

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::disk::{Disk, create_folder, remove_folder, rename};
use crate::error::{Error, Result};

/// A folder by its name, and the two others beside it.
#[derive(Clone, Debug)]
pub(crate) struct AtomicFolder {
    finished: PathBuf,
    partial: PathBuf,
    replaced: PathBuf,
}

impl AtomicFolder {
    /// # Errors
    ///
    /// When a path such as `..` names no folder.
    pub fn new(path: &Path) -> Result<Self> {
        let no_name = || Error::file(path, "this is no name of a folder; give one that can be renamed");
        let hidden = |end| beside(path, end).ok_or_else(no_name);
        Ok(Self { finished: path.to_path_buf(), partial: hidden("partial")?, replaced: hidden("old")? })
    }

    /// Where it is written.
    pub fn partial(&self) -> &Path {
        &self.partial
    }

    /// Ends what a crash left of a replacement: the one before has its name again, or is removed.
    pub fn recover(&self, disk: &dyn Disk) -> Result<()> {
        match (self.finished.exists(), self.replaced.exists()) {
            (false, true) => rename(disk, &self.replaced, &self.finished),
            (true, true) => remove_folder(disk, &self.replaced),
            (_, false) => Ok(()),
        }
    }

    /// Makes the one that is to be written, after what a crash left is put in order.
    pub fn open(&self, disk: &dyn Disk) -> Result<()> {
        self.recover(disk)?;
        if self.partial.exists() {
            remove_folder(disk, &self.partial)?;
        }
        create_folder(disk, &self.partial)
    }

    /// Gives it its name. One that is there keeps another until it is [forgotten](Self::forget_replaced).
    pub fn commit(&self, disk: &dyn Disk) -> Result<()> {
        if self.finished.exists() {
            // A folder cannot be renamed over another.
            rename(disk, &self.finished, &self.replaced)?;
        }
        rename(disk, &self.partial, &self.finished)
    }

    /// Removes the one that was replaced.
    pub fn forget_replaced(&self, disk: &dyn Disk) -> Result<()> {
        if self.replaced.exists() { remove_folder(disk, &self.replaced) } else { Ok(()) }
    }
}

/// Where a folder is read: after a crash between two renames, the one that was to be replaced.
pub(crate) fn found(path: &Path) -> PathBuf {
    let replaced = beside(path, "old").filter(|replaced| !path.exists() && replaced.exists());
    replaced.unwrap_or_else(|| path.to_path_buf())
}

/// A hidden folder beside another one.
fn beside(path: &Path, end: &str) -> Option<PathBuf> {
    let mut hidden = OsString::from(".");
    hidden.push(path.file_name()?);
    hidden.push(format!(".{end}"));
    Some(path.with_file_name(hidden))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::durable::FileSystem;
    use std::fs;

    fn write(folder: &AtomicFolder, text: &str) {
        folder.open(&FileSystem).unwrap();
        fs::write(folder.partial().join("text"), text).unwrap();
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn it_takes_the_place_of_the_one_before() {
        let temporary = tempfile::tempdir().unwrap();
        // Those above are made.
        let path = temporary.path().join("above/it");
        let folder = AtomicFolder::new(&path).unwrap();
        for text in ["one", "two"] {
            write(&folder, text);
            folder.commit(&FileSystem).unwrap();
            assert_eq!(fs::read_to_string(path.join("text")).unwrap(), text);
        }
        assert_eq!(names(path.parent().unwrap()).len(), 2, "the one before is there until it is forgotten");
        folder.forget_replaced(&FileSystem).unwrap();
        assert_eq!(names(path.parent().unwrap()), ["it"]);
    }

    #[test]
    fn between_two_renames_the_one_before_is_found() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("it");
        let folder = AtomicFolder::new(&path).unwrap();
        assert_eq!(found(&path), path);
        write(&folder, "one");
        folder.commit(&FileSystem).unwrap();
        write(&folder, "two");
        fs::rename(&path, &folder.replaced).unwrap();
        assert_eq!(found(&path), folder.replaced);
        folder.open(&FileSystem).unwrap();
        assert_eq!((found(&path), fs::read_to_string(path.join("text")).unwrap()), (path, "one".to_string()));
    }

    #[test]
    fn what_has_no_name_cannot_be_replaced_and_can_be_read() {
        assert!(AtomicFolder::new(Path::new("..")).unwrap_err().to_string().contains("no name of a folder"));
        assert_eq!(found(Path::new("..")), Path::new(".."));
    }
}
