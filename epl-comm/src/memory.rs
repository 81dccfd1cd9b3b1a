//! The system's allocator, and how many bytes are allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering};

/// Counts the bytes that are allocated and not yet freed, now and at most: by the process, and by each thread, which is
/// a rank where ranks are threads.
///
/// A program that wants to know installs it:
///
/// ```
/// use epl_comm::CountingAllocator;
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator = CountingAllocator::new();
///
/// fn main() {
///     let before = ALLOCATOR.live();
///     let bytes = vec![0_u8; 1000];
///     assert!(ALLOCATOR.live() - before >= 1000);
///     drop(bytes);
/// }
/// ```
#[derive(Debug, Default)]
pub struct CountingAllocator {
    live: AtomicI64,
    most: AtomicI64,
}

/// Bytes that a thread has allocated, less those that it has freed, whoever allocated them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadMemory {
    /// Now.
    pub live: i64,
    /// At most, since [`look_anew`](Self::look_anew).
    pub most: i64,
}

thread_local! {
    /// Without a destructor, so that an allocator may use it at any time.
    static OF_THREAD: Cell<Option<ThreadMemory>> = const { Cell::new(None) };
}

impl ThreadMemory {
    /// Of the current thread; none where no [`CountingAllocator`] is installed.
    pub fn now() -> Option<Self> {
        OF_THREAD.get()
    }

    /// Forgets how many there were at most.
    pub fn look_anew() {
        OF_THREAD.set(OF_THREAD.get().map(|Self { live, .. }| Self { live, most: live }));
    }

    /// Runs `f`, and tells how many bytes more this thread has behind it than before, or fewer, and at most in between; none
    /// where nothing counts. What [`most`](Self::most) says of the thread goes on as if nobody had asked.
    pub fn of<T>(f: impl FnOnce() -> T) -> (T, Option<Self>) {
        let before = Self::now();
        Self::look_anew();
        let value = f();
        let Some((before, after)) = before.zip(Self::now()) else { return (value, None) };
        OF_THREAD.set(Some(Self { live: after.live, most: before.most.max(after.most) }));
        (value, Some(Self { live: after.live - before.live, most: after.most - before.live }))
    }

    fn add(bytes: i64) {
        let Self { live, most } = OF_THREAD.get().unwrap_or(Self { live: 0, most: 0 });
        let live = live + bytes;
        OF_THREAD.set(Some(Self { live, most: most.max(live) }));
    }
}

impl CountingAllocator {
    /// One that has counted nothing.
    pub const fn new() -> Self {
        Self { live: AtomicI64::new(0), most: AtomicI64::new(0) }
    }

    /// The bytes that the process has allocated and not yet freed.
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

    fn add(&self, bytes: i64) {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most.fetch_max(live, Ordering::Relaxed);
        ThreadMemory::add(bytes);
    }
}

// SAFETY: every call goes to the system's allocator as it came; the counts beside it touch no memory of theirs, and
// allocate nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.add(size as i64 - layout.size() as i64);
        // SAFETY: the caller keeps the contract of `realloc`, and `pointer` came from `System`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.add(-(layout.size() as i64));
        // SAFETY: the caller keeps the contract of `dealloc`, and `pointer` came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_part_takes_is_told_and_the_whole_still_knows_its_most() {
        // Some test programs have an allocator that counts.
        let before = ThreadMemory::now();
        let nothing = before.map(|_| ThreadMemory { live: 0, most: 0 });
        assert_eq!(ThreadMemory::of(|| 3), (3, nothing));
        let add = ThreadMemory::add;
        add(100);
        add(-60);
        let (inner, outer) = ThreadMemory::of(|| {
            add(30);
            let inner = ThreadMemory::of(|| {
                add(9);
                add(-14);
            });
            add(-1);
            inner.1
        });
        assert_eq!(inner, Some(ThreadMemory { live: -5, most: 9 }));
        assert_eq!(outer, Some(ThreadMemory { live: 24, most: 39 }));
        let (live, now) = (before.map_or(0, |memory| memory.live), ThreadMemory::now().unwrap());
        assert!(now.live == live + 64 && now.most >= live + 100, "{now:?}");
    }
}
