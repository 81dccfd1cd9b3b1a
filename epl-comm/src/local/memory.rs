//! Host memory of a posted buffer.

use core::ops::Range;
use std::sync::Arc;

use burn::tensor::Bytes;

use super::number::Number;

/// A buffer on the board, as peers see it.
#[derive(Debug)]
pub(super) enum Memory {
    /// Nothing that a peer may look at.
    Hidden,
    /// Read by all, written by nobody. Other handles of it may exist.
    Read { owner: Arc<Bytes>, range: Range<usize> },
    /// Each member reads and writes a part of its own.
    Write(Divided),
}

/// Memory that several threads write, each in a place of its own.
#[derive(Debug)]
pub(super) struct Divided {
    /// The only handle, and not looked through while the memory is on a board.
    owner: Arc<Bytes>,
    start: *mut u8,
    len: usize,
}

// SAFETY: `start` points into memory that `owner` (itself `Send + Sync`) keeps alive and that nobody reaches but
// through this struct; what is done with it is up to the unsafe `part`.
unsafe impl Send for Divided {}
// SAFETY: as above.
unsafe impl Sync for Divided {}

impl Divided {
    /// Takes memory for itself; copies it when it is shared.
    pub(super) fn new(mut owner: Arc<Bytes>) -> Self {
        let bytes: &mut Bytes = Arc::make_mut(&mut owner);
        let (start, len) = (bytes.as_mut_ptr(), bytes.len());
        Self { owner, start, len }
    }

    /// Gives the memory back.
    pub(super) fn into_owner(self) -> Arc<Bytes> {
        self.owner
    }

    /// How many numbers there are.
    pub(super) fn len<N: Number>(&self) -> usize {
        self.len / size_of::<N>()
    }

    /// Some of the numbers, to be written.
    ///
    /// # Safety
    ///
    /// While the slice lives, nobody else reads or writes `range`, and `self` is not given back.
    #[allow(clippy::mut_from_ref, reason = "that is what the type is for; the caller keeps the parts apart")]
    pub(super) unsafe fn part<N: Number>(&self, range: Range<usize>) -> &mut [N] {
        let start = self.start.cast::<N>();
        assert!(range.start <= range.end && range.end <= self.len::<N>(), "{range:?} of {} numbers", self.len::<N>());
        assert!(start.is_aligned(), "memory of a tensor is aligned for its numbers");
        // SAFETY: in bounds and aligned as asserted; initialised, and any bits are a number; alive as `owner` is
        // borrowed with `self`; exclusive by the caller's promise.
        unsafe { core::slice::from_raw_parts_mut(start.add(range.start), range.len()) }
    }
}

impl Memory {
    /// The numbers, to be read.
    ///
    /// # Panics
    ///
    /// When the memory is not there to be read: a fault of this crate.
    pub(super) fn numbers<N: Number>(&self) -> &[N] {
        let Self::Read { owner, range } = self else { panic!("memory posted to be read is read") };
        // SAFETY: any bits are a number.
        let (before, numbers, after) = unsafe { owner[range.clone()].align_to::<N>() };
        assert!(before.is_empty() && after.is_empty(), "memory of a tensor is aligned for its numbers");
        numbers
    }

    /// The memory itself, to be kept: the very same where the buffer is all of it, otherwise a copy. Whoever writes it
    /// later, while others hold it, makes a copy first.
    pub(super) fn shared<N: Number>(&self) -> Arc<Bytes> {
        match self {
            Self::Read { owner, range } if *range == (0..owner.len()) => owner.clone(),
            _ => Arc::new(N::into_bytes(self.numbers::<N>().to_vec())),
        }
    }
}
