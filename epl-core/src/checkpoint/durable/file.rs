//! A file that is written under another name, synced, and then renamed.

use std::ffi::OsString;
use std::fmt;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::disk::{Disk, DiskFile, FileSystem, sync_parent};
use crate::error::{Error, Result};

/// A file that is whole and synced, and has not got its name yet: dropped before, it is removed.
pub struct Unpublished<'a> {
    disk: &'a dyn Disk,
    /// What it is called so far; nothing once it has its name.
    partial: Option<PathBuf>,
    path: PathBuf,
}

/// What writes the next bytes of a file.
type Next<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// A file that is being written, piece by piece, and has not got its name: dropped, it is removed.
pub struct Partial<'a> {
    /// Before the file's name, as what it holds is written when it is dropped.
    file: BufWriter<Box<dyn DiskFile>>,
    unpublished: Unpublished<'a>,
}

impl Partial<'static> {
    /// Begins a file beside `path`, under a name that no other writer has: of several, the last one to publish is read.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when it cannot be made.
    pub fn create(path: &Path) -> Result<Self> {
        // A process's number is not its own on a disk that several machines see.
        Self::create_as(&FileSystem, path, &format!(".{:016x}.partial", rand::random::<u64>()))
    }
}

impl<'a> Partial<'a> {
    fn create_as(disk: &'a dyn Disk, path: &Path, end: &str) -> Result<Self> {
        let Some(name) = path.file_name() else {
            return Err(Error::file(path, "this is no name of a file"));
        };
        let mut partial = OsString::from(name);
        partial.push(end);
        let partial = path.with_file_name(partial);
        let file = BufWriter::new(disk.create(&partial).map_err(|error| Error::file(path, error))?);
        // From here on it is removed when something fails, once what was written to it is through.
        Ok(Self { file, unpublished: Unpublished { disk, partial: Some(partial), path: path.to_path_buf() } })
    }

    /// Writes the next bytes.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when they cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| Error::file(&self.unpublished.path, error))
    }

    /// Ends the file and syncs it.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when it cannot be written to the end.
    pub fn sync(self) -> Result<Unpublished<'a>> {
        let Self { file, unpublished } = self;
        let error = |cause| Error::file(&unpublished.path, cause);
        file.into_inner().map_err(|failed| error(failed.into_error()))?.sync().map_err(error)?;
        Ok(unpublished)
    }

    fn whole(mut self, write: impl FnOnce(Next<'_>) -> Result<()>) -> Result<Unpublished<'a>> {
        write(&mut |bytes| self.write(bytes))?;
        self.sync()
    }
}

impl fmt::Debug for Partial<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a part of {:?}", self.unpublished)
    }
}

impl Unpublished<'static> {
    /// Writes a file as [`Partial::create`] begins it.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when it cannot be written; what `write` returns.
    pub fn write(path: &Path, write: impl FnOnce(Next<'_>) -> Result<()>) -> Result<Self> {
        Partial::create(path)?.whole(write)
    }
}

impl Unpublished<'_> {
    /// Gives the file its name, in place of what had it before, and makes that durable.
    ///
    /// # Errors
    ///
    /// When it cannot be renamed.
    pub fn publish(mut self) -> Result<()> {
        if let Some(partial) = &self.partial {
            self.disk.rename(partial, &self.path).map_err(|error| Error::file(&self.path, error))?;
            self.partial = None;
        }
        sync_parent(self.disk, &self.path)
    }
}

impl Drop for Unpublished<'_> {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // Nobody reads it; whoever failed says so.
            let _ = self.disk.remove_file(partial);
        }
    }
}

impl fmt::Debug for Unpublished<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the file that is to be {}", self.path.display())
    }
}

/// Gives several files their names, in this order, unless the name of one is a folder's: then none.
///
/// # Errors
///
/// When one cannot be renamed.
pub fn publish_all<'a>(files: impl IntoIterator<Item = Unpublished<'a>>) -> Result<()> {
    let files: Vec<Unpublished<'a>> = files.into_iter().collect();
    if let Some(file) = files.iter().find(|file| file.path.is_dir()) {
        return Err(Error::file(&file.path, "this is a folder; remove it, or choose another name"));
    }
    files.into_iter().try_for_each(Unpublished::publish)
}

/// Replaces a file: written under another name, synced, renamed.
///
/// For a file that has one writer at a time: the other name is always the same, so that the next writer clears up what a
/// crash has left.
///
/// ```
/// # use epl_core::checkpoint::durable::replace;
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// let path = folder.path().join("latest");
/// for step in [b"10", b"20"] {
///     replace(&path, step)?; // whoever reads meanwhile finds the one or the other, and never a part
/// }
/// assert_eq!(std::fs::read(&path).unwrap(), b"20");
/// assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1); // nothing else is left
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// # Errors
///
/// When the file cannot be written.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_on(&FileSystem, path, bytes)
}

/// The same on any disk.
pub(crate) fn replace_on(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<()> {
    Partial::create_as(disk, path, ".partial")?.whole(|write| write(bytes))?.publish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn it_is_read_once_it_is_published() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        replace(&path, b"old").unwrap();
        let [first, second] = [b"first", b"other"].map(|text| Unpublished::write(&path, |write| write(text)).unwrap());
        assert_eq!((fs::read(&path).unwrap(), names(folder.path()).len()), (b"old".to_vec(), 3), "each has a name");
        first.publish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        drop(second);
        assert_eq!((fs::read(&path).unwrap(), names(folder.path())), (b"first".to_vec(), vec!["a.json".to_string()]));
    }

    #[test]
    fn what_fails_leaves_the_file_as_it_was_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        replace(&path, b"old").unwrap();
        let failed = Unpublished::write(&path, |write| {
            write(b"half")?;
            Err(Error::invalid("no more"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no more");
        assert!(Unpublished::write(Path::new(".."), |_| Ok(())).unwrap_err().to_string().contains("no name of a file"));
        assert_eq!((fs::read(&path).unwrap(), names(folder.path()).len()), (b"old".to_vec(), 1));
    }

    #[test]
    fn of_several_none_is_published_where_one_cannot_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("b")).unwrap();
        let write = |name: &str| Unpublished::write(&path(name), |write| write(name.as_bytes())).unwrap();
        let refused = publish_all([write("a"), write("b")]).unwrap_err().to_string();
        assert!(refused.contains("this is a folder; remove it"), "{refused}");
        assert_eq!(names(folder.path()), ["b"]);
        publish_all([write("a"), write("c")]).unwrap();
        assert_eq!(names(folder.path()).len(), 3);
    }

    #[test]
    fn what_a_crash_left_is_in_nobodys_way() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a.json"), folder.path().join("b.json"));
        fs::write(&other, "other").unwrap();
        fs::write(folder.path().join("a.json.partial"), "much longer than what comes").unwrap();
        replace(&path, b"new").unwrap();
        #[cfg(unix)]
        {
            // A link is replaced, and what it leads to stays.
            std::os::unix::fs::symlink(&other, folder.path().join("a.json.partial")).unwrap();
            replace(&path, b"newer").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"newer");
        }
        assert_eq!((fs::read(&other).unwrap(), names(folder.path()).len()), (b"other".to_vec(), 2));
    }
}
