//! Memory that a step frees and the next one takes again.
//!
//! glibc gives large blocks back to the system when they are freed, and a rank's thread its heap; the system clears every page
//! of them before a step has them again, which is 7 % of a small model's step. An arena that threads share, and that only
//! grows, is faster and, as they use each other's memory, smaller. It is asked for before the ranks start: threads that there
//! were before have arenas of their own.

use crate::system;

/// Tells the allocator of this process to keep what is freed from now on: as far as the main thread's arena goes, which is that of
/// all threads if no other has run before.
///
/// It does nothing where the environment says something of glibc's allocator, and with another allocator.
pub(super) fn keep_freed_memory() {
    if !is_told_by_environment() {
        system::keep_freed_memory();
    }
}

/// Whether `GLIBC_TUNABLES`, or a variable of mallopt(3), says how memory is to be kept.
fn is_told_by_environment() -> bool {
    const OWN: [&str; 6] = [
        "MALLOC_ARENA_MAX",
        "MALLOC_ARENA_TEST",
        "MALLOC_MMAP_MAX_",
        "MALLOC_MMAP_THRESHOLD_",
        "MALLOC_TOP_PAD_",
        "MALLOC_TRIM_THRESHOLD_",
    ];
    let tunables = std::env::var_os("GLIBC_TUNABLES");
    tunables.is_some_and(|tunables| tunables.to_string_lossy().contains("glibc.malloc."))
        || OWN.iter().any(|name| std::env::var_os(name).is_some())
}
