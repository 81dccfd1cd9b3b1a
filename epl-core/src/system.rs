//! What systems do in ways of their own, and what only some of them do.
//!
//! | | Linux | macOS | Windows |
//! |---|---|---|---|
//! | a folder whose names are made durable | synced | synced | not needed |
//! | a window of a file that is read ahead | as asked | as asked | as pages are touched |
//! | signals that a program handles or ignores itself | are left to it | are left to it | are taken from it |
//! | memory that a step frees | kept (glibc) | as the allocator does | as the allocator does |
//! | the processor's name, the bytes of memory | told | not told | not told |

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::MmapMut;
use tempfile::TempDir;

/// Makes durable which names are in a folder.
///
/// # Errors
///
/// What the system says.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    // Windows opens no folder as a file, and its renames are durable without.
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

/// A folder of its own name, which begins so, as open to others as every one that is made.
///
/// # Errors
///
/// What the system says.
pub(crate) fn folder_in(parent: &Path, begin: &OsStr) -> io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(begin);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    builder.tempdir_in(parent)
}

/// Asks for a mapped range of a file to be read ahead: a hint, as pages are read when they are touched.
pub(crate) fn read_ahead(map: &MmapMut) {
    #[cfg(unix)]
    let _ = map.advise(memmap2::Advice::WillNeed);
    let _ = map;
}

/// Whether the process neither handles a signal nor ignores it.
#[cfg(unix)]
pub(crate) fn is_left_to_the_system(signal: i32) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: no action is given; the other pointer is to memory that lives as long as the call.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: a call that succeeds has filled it.
    asked == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_DFL
}

/// Nobody can be asked.
#[cfg(not(unix))]
pub(crate) fn is_left_to_the_system(_signal: i32) -> bool {
    true
}

/// Tells the allocator to keep what is freed, in one arena that all threads share and that only grows; another one than glibc's is
/// told nothing.
pub(crate) fn keep_freed_memory() {
    // What is freed at the top of the heap stays: -1 stands for never. Then nothing beside that heap.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, value) in [(libc::M_TRIM_THRESHOLD, -1), (libc::M_MMAP_MAX, 0), (libc::M_ARENA_MAX, 1)] {
        // SAFETY: it takes two numbers, and writes one that others read whole, whenever they do. All versions know these three.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// The bytes of this machine's memory; none where the system does not tell.
pub(crate) fn memory() -> Option<u64> {
    // Nothing is there but on Linux.
    let told = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kilobytes = told.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(1024 * kilobytes.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?)
}

/// The name of this machine's processor; empty where the system does not tell.
pub(crate) fn processor() -> String {
    // Nothing is there but on Linux.
    let told = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = told.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    name.trim_start_matches([' ', '\t', ':']).to_string()
}
