//! A folder that is made once, whoever needs it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Duration;

use super::disk::{FileSystem, create_folder, rename, sync_folder};
use crate::error::{Error, Result};
use crate::system::folder_in;

/// What nobody has written in for so long has no maker.
const OLD: Duration = Duration::from_secs(24 * 60 * 60);

/// Makes a folder unless it is there, and says whether it was made: by the first process that asks, while the others wait until
/// it is whole. Should that one end before, the next one makes it.
///
/// `make` fills a folder beside `path`, which gets its name when it is whole. Beside it stays a file, `.NAME.lock`, that the
/// processes wait at; on a disk that has no locks each makes the folder, and the first to end is read.
/// What a maker has left that was killed, `.NAME.partial-…`, is removed by one that comes a day later.
///
/// ```
/// # use epl_core::{Error, checkpoint::durable::once};
/// # let out = tempfile::tempdir().expect("there is room for a folder");
/// let words = out.path().join("words");
/// let make = |folder: &std::path::Path| {
///     std::fs::write(folder.join("list.txt"), "zero one two").map_err(|error| Error::file(folder, error))
/// };
/// assert!(once(&words, make)?);
/// assert!(!once(&words, make)?, "it is there");
/// assert_eq!(std::fs::read_to_string(words.join("list.txt")).unwrap(), "zero one two");
/// # Ok::<_, Error>(())
/// ```
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
    let begin = begin_of_partial(name);
    remove_old(parent, &begin);
    // No other's: on a disk that several machines see, locks may hold on one machine only.
    let made = folder_in(parent, &begin).map_err(|error| Error::file(parent, error))?;
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

/// How the names of folders begin that are to become this one; no such name is the begin of another's.
fn begin_of_partial(name: &OsStr) -> OsString {
    let mut begin = OsString::from(".");
    begin.push(name);
    begin.push(".partial-");
    begin
}

/// Removes what makers have left that were killed. Where a lock does not hold, another may be at work: what was made or written in
/// of late stays.
fn remove_old(parent: &Path, begin: &OsStr) {
    let is_old = |path: &Path| -> io::Result<bool> {
        let changed = |path: &Path| fs::symlink_metadata(path)?.modified();
        let mut last = changed(path)?;
        for entry in fs::read_dir(path)? {
            last = last.max(changed(&entry?.path())?);
        }
        Ok(last.elapsed().is_ok_and(|age| age > OLD))
    };
    let begins = |name: &OsStr| name.as_encoded_bytes().starts_with(begin.as_encoded_bytes());
    for entry in fs::read_dir(parent).into_iter().flatten().flatten().filter(|entry| begins(&entry.file_name())) {
        if is_old(&entry.path()).unwrap_or(false) {
            // It is in nobody's way: whoever may not remove it goes on.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
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
    fn what_a_killed_maker_left_is_removed_when_it_is_old() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in [".it.partial-old", ".it.partial-new", ".other.partial-old"] {
            fs::create_dir(path(name)).unwrap();
            fs::write(path(name).join("half"), "").unwrap();
            if name.ends_with("old") {
                let long_ago = std::time::SystemTime::now() - 2 * OLD;
                for path in [path(name).join("half"), path(name)] {
                    File::open(path).unwrap().set_modified(long_ago).unwrap();
                }
            }
        }
        assert!(once::<Error>(&path("it"), |_| Ok(())).unwrap());
        let left = [".it.partial-old", ".it.partial-new", ".other.partial-old"].map(|name| path(name).exists());
        assert_eq!(left, [false, true, true]);
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
