//! For tests: several ranks with one call, and an allocator that counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

use crate::error::Error;
use crate::local;
use crate::process_group::ProcessGroup;

/// Runs `f` on each of `ranks` ranks and returns what each returned.
///
/// # Panics
///
/// When a rank panics or unwinds; the message names it.
pub fn run_ranks<T: Send>(ranks: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    local::run(ranks, |group| Ok::<T, Error>(f(group))).unwrap_or_else(|(rank, error)| panic!("{rank}: {error}"))
}

/// The system's allocator, and how many bytes are allocated and not yet freed, now and at most: for tests of memory, as
/// a `#[global_allocator]`.
#[derive(Debug, Default)]
pub struct CountingAllocator {
    live: AtomicI64,
    most: AtomicI64,
}

impl CountingAllocator {
    /// One that has counted nothing.
    pub const fn new() -> Self {
        Self { live: AtomicI64::new(0), most: AtomicI64::new(0) }
    }

    /// The bytes that are allocated and not yet freed.
    pub fn live(&self) -> i64 {
        self.live.load(Ordering::SeqCst)
    }

    /// The most bytes that were at once since [`look_anew`](Self::look_anew).
    pub fn most(&self) -> i64 {
        self.most.load(Ordering::SeqCst)
    }

    /// Forgets how many there were at most.
    pub fn look_anew(&self) {
        self.most.store(self.live(), Ordering::SeqCst);
    }
}

// SAFETY: every call goes to the system's allocator as it came; the count beside it touches no memory of theirs.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = self.live.fetch_add(layout.size() as i64, Ordering::Relaxed) + layout.size() as i64;
        self.most.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.live.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, and `pointer` came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
