//! A folder that is made once, whoever needs it.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::Path;

use tempfile::TempDir;

use super::disk::{FileSystem, create_folder, rename, sync_folder};
use crate::error::{Error, Result};

/// Makes a folder unless it is there, and says whether it was made: by the first process that asks, while the others wait until
/// it is whole. Should that one end before, the next one makes it.
///
/// `make` fills a folder beside `path`, which gets its name when it is whole. Beside it stays a file, `.NAME.lock`, that the
/// processes wait at; on a disk that has no locks each makes the folder, and the first to end is read.
///
/// # Errors
///
/// [`Error::File`] when it cannot be made; what `make` returns.
pub fn once<E: From<Error>>(path: &Path, make: impl FnOnce(&Path) -> Result<(), E>) -> Result<bool, E> {
    if path.exists() {
        return Ok(false);
    }
    let Some(name) = path.file_name() else {
        return Err(Error::file(path, "this is no name of a folder").into());
    };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    create_folder(&FileSystem, parent)?;
    let mut lock = OsString::from(".");
    lock.push(name);
    lock.push(".lock");
    let lock = parent.join(lock);
    let waited = File::options().write(true).create(true).truncate(false).open(&lock);
    let waited = waited.map_err(|error| Error::file(&lock, error))?;
    // Without locks, too, what comes of it is right: only, each makes it.
    let _ = waited.lock();
    if path.exists() {
        return Ok(false);
    }
    // No other's: on a disk that several machines see, locks may hold on one machine only.
    let made = folder_in(parent).map_err(|error| Error::file(parent, error))?;
    make(made.path())?;
    sync_folder(&FileSystem, made.path())?;
    match rename(&FileSystem, made.path(), path) {
        Ok(()) => {
            // Its name is another one now.
            let _ = made.keep();
            Ok(true)
        }
        Err(_) if path.exists() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A folder of its own name, as open to others as every one that is made.
fn folder_in(parent: &Path) -> io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".partial-");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    builder.tempdir_in(parent)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn of_many_that_need_it_one_makes_it() {
        let folder = tempfile::tempdir().unwrap();
        // Those above are made.
        let path = folder.path().join("above/it");
        let calls = AtomicUsize::new(0);
        // Each opens the lock's file by itself, as a process does.
        let ask = || {
            let made = once(&path, |partial| {
                calls.fetch_add(1, Ordering::Relaxed);
                fs::write(partial.join("first"), "1").map_err(|error| Error::file(partial, error))?;
                std::thread::sleep(std::time::Duration::from_millis(20));
                fs::write(partial.join("second"), "2").map_err(|error| Error::file(partial, error))
            });
            assert_eq!(fs::read_to_string(path.join("second")).unwrap(), "2", "it is whole");
            made.unwrap()
        };
        let made = std::thread::scope(|scope| {
            let asking: Vec<_> = (0..6).map(|_| scope.spawn(ask)).collect();
            asking.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum::<usize>()
        });
        assert_eq!((made, calls.load(Ordering::Relaxed)), (1, 1));
        assert!(!once(&path, |_| Err(Error::invalid("it is there"))).unwrap());
    }

    #[test]
    fn what_fails_leaves_nothing_and_the_next_makes_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it");
        let failed = once(&path, |partial| {
            fs::write(partial.join("half"), "").unwrap();
            Err(Error::invalid("no more"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no more");
        let names = || fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        assert_eq!(names(), [".it.lock"]);
        assert!(once::<Error>(&path, |_| Ok(())).unwrap() && path.is_dir());
        // As where locks do not hold: another one was first.
        let late = folder.path().join("late");
        let made = once::<Error>(&late, |_| {
            fs::create_dir(&late).unwrap();
            fs::write(late.join("file"), "the first").map_err(|error| Error::file(&late, error))
        });
        assert!(!made.unwrap() && names().len() == 4, "{:?}", names());
        let no_name = once::<Error>(&folder.path().join("none/.."), |_| Ok(())).unwrap_err().to_string();
        assert!(no_name.contains("no name of a folder"), "{no_name}");
    }
}
