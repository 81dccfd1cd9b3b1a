//! Memory for large results, used again for the next one when a result is dropped.
//!
//! The system clears memory before it hands it out, page by page: for a large result that takes longer than the
//! collective that fills it, and an allocator gives such memory back to the system at once.

use core::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use burn::tensor::Bytes;
use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty};

use crate::host::number::Number;

/// Smaller results are left to the allocator, which keeps their memory itself.
const LEAST: usize = 64 << 10;
/// Memory that nobody has wanted for so long goes back with the next call.
const IDLE: Duration = Duration::from_secs(10);

/// Memory of dropped results: never more than results were alive at once a moment ago.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    store: Mutex<Store>,
    /// Whether anything is kept, to be asked without the lock.
    keeps: AtomicBool,
}

#[derive(Debug, Default)]
struct Store {
    idle: Vec<Idle>,
    /// The bytes of results that are alive.
    alive: usize,
    /// The most that were, and when.
    most: usize,
    most_at: Option<Instant>,
}

#[derive(Debug)]
struct Idle {
    bytes: Bytes,
    since: Instant,
}

impl Arena {
    /// An empty list with room for so many numbers.
    pub(crate) fn vec<N: Number>(&self, capacity: usize) -> Vec<N> {
        let wanted = capacity * size_of::<N>();
        let found = if wanted < LEAST { None } else { self.store().take(wanted, align_of::<N>()) };
        match found.and_then(N::from_bytes) {
            Some(mut numbers) => {
                numbers.clear();
                numbers
            }
            None => Vec::with_capacity(capacity),
        }
    }

    /// The bytes of a list made by [`vec`](Self::vec), which come back here.
    pub(crate) fn bytes<N: Number>(self: &Arc<Self>, numbers: Vec<N>) -> Bytes {
        let len = size_of_val(&*numbers);
        let bytes = N::into_bytes(numbers);
        if len < LEAST {
            return bytes;
        }
        self.store().lease(len);
        let lease = Lease { bytes: Some(bytes), arena: Arc::downgrade(self) };
        // SAFETY: all `len` bytes of it are initialised, as they were in a list.
        unsafe { Bytes::from_controller(Box::new(lease), len) }
    }

    /// Gives back what has not been wanted for long. To be called now and then.
    pub(crate) fn tick(&self) {
        if self.keeps.load(Ordering::Relaxed) {
            self.change(Store::prune);
        }
    }

    /// Gives back all that nobody uses.
    pub(crate) fn trim(&self) {
        self.change(|store| store.idle.clear());
    }

    fn give(&self, bytes: Bytes) {
        self.change(|store| store.give(bytes));
    }

    /// Changes what is kept.
    fn change(&self, change: impl FnOnce(&mut Store)) {
        let mut store = self.store();
        change(&mut store);
        self.keeps.store(!store.idle.is_empty(), Ordering::Relaxed);
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    /// Memory of at least `wanted` bytes and not many more.
    fn take(&mut self, wanted: usize, align: usize) -> Option<Bytes> {
        let fits = |bytes: &Bytes| bytes.align() == align && (wanted..=wanted + wanted / 4).contains(&bytes.len());
        let candidates = self.idle.iter().enumerate().filter(|(_, idle)| fits(&idle.bytes));
        let (index, _) = candidates.min_by_key(|(_, idle)| idle.bytes.len())?;
        Some(self.idle.remove(index).bytes)
    }

    fn lease(&mut self, len: usize) {
        self.alive += len;
        if self.alive >= self.most || self.most_at.is_none_or(|at| at.elapsed() >= IDLE) {
            (self.most, self.most_at) = (self.alive, Some(Instant::now()));
        }
    }

    fn give(&mut self, bytes: Bytes) {
        self.alive = self.alive.saturating_sub(bytes.len());
        self.idle.push(Idle { bytes, since: Instant::now() });
        self.prune();
        let mut kept: usize = self.idle.iter().map(|idle| idle.bytes.len()).sum();
        // The oldest first.
        while kept > self.most && !self.idle.is_empty() {
            kept -= self.idle.remove(0).bytes.len();
        }
    }

    fn prune(&mut self) {
        self.idle.retain(|idle| idle.since.elapsed() < IDLE);
    }
}

/// Memory that goes back to its arena.
struct Lease {
    bytes: Option<Bytes>,
    arena: Weak<Arena>,
}

impl Lease {
    fn own(&self) -> &Bytes {
        self.bytes.as_ref().expect("a lease has its memory until it is dropped")
    }
}

impl AllocationController for Lease {
    fn alloc_align(&self) -> usize {
        self.own().align()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    fn memory(&self, _policy: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let bytes: &[u8] = self.own();
        // SAFETY: the same layout; what is initialised may be taken for what need not be.
        Ok(unsafe { core::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) })
    }

    unsafe fn memory_mut(&mut self, _policy: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let bytes: &mut [u8] = self.bytes.as_mut().expect("a lease has its memory until it is dropped");
        // SAFETY: the same layout; the caller promises to write what is initialised only.
        Ok(unsafe { core::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len()) })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let (Some(bytes), Some(arena)) = (self.bytes.take(), self.arena.upgrade()) {
            arena.give(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(bytes: &Bytes) -> usize {
        bytes.as_ptr() as usize
    }

    fn filled<N: Number>(arena: &Arc<Arena>, number: N, len: usize) -> Bytes {
        let mut numbers = arena.vec(len);
        numbers.resize(len, number);
        arena.bytes(numbers)
    }

    #[test]
    fn memory_is_used_again_for_what_is_as_large() {
        let arena = Arc::new(Arena::default());
        let mut first = filled(&arena, 1.5_f32, 20_000);
        assert_eq!((first.len(), first[..4].to_vec()), (80_000, 1.5_f32.to_ne_bytes().to_vec()));
        first[0] = 7;
        assert_eq!(first[0], 7);
        let (old, copy) = (place(&first), first.clone());
        assert_eq!(copy[..], first[..]);
        drop(first);
        let larger = filled(&arena, 2.0_f32, 40_000);
        let other = filled(&arena, 2.0_f64, 10_000);
        assert!(place(&larger) != old && place(&other) != old);
        let again = filled(&arena, 3_i32, 18_000);
        assert_eq!((place(&again), again.len()), (old, 72_000));
        assert!(again.chunks(4).all(|number| number == 3_i32.to_ne_bytes()));
    }

    /// As when every parameter is gathered in turn.
    #[test]
    fn no_more_is_kept_than_was_alive_at_once() {
        let arena = Arc::new(Arena::default());
        for len in 1..20 {
            drop(filled(&arena, 1_u8, len * 100_000));
            let kept: usize = arena.store().idle.iter().map(|idle| idle.bytes.len()).sum();
            assert!(kept <= len * 100_000, "{kept}");
        }
        assert_eq!(arena.store().alive, 0);
    }

    #[test]
    fn what_is_kept_can_be_given_back() {
        let arena = Arc::new(Arena::default());
        let alive = filled(&arena, 1_u8, LEAST);
        drop(filled(&arena, 2_u8, LEAST));
        arena.trim();
        assert!(arena.store().idle.is_empty() && alive[0] == 1);
    }

    #[test]
    fn what_outlives_the_arena_is_freed_and_small_memory_is_not_kept() {
        let arena = Arc::new(Arena::default());
        drop(filled(&arena, 1_u8, LEAST - 1));
        assert!(arena.store().idle.is_empty());
        let bytes = filled(&arena, 1_u8, LEAST);
        drop(arena);
        assert_eq!(bytes[LEAST - 1], 1);
    }
}
