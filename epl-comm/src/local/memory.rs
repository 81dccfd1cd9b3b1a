//! Host memory of a posted buffer.

use core::ops::Range;
use std::sync::Arc;

use burn::tensor::Bytes;

use crate::host::number::Number;

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

/// Where memory that may be read lies: all that a peer needs to know of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    start: *const u8,
    len: usize,
}

// SAFETY: a place only; reading there is up to the unsafe `numbers`.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Nothing to be read.
    pub(super) const NONE: Self = Self { start: core::ptr::null(), len: 0 };

    pub(super) fn is_none(self) -> bool {
        self.start.is_null()
    }

    /// The numbers there.
    ///
    /// # Panics
    ///
    /// When there is nothing to be read: a fault of this crate.
    ///
    /// # Safety
    ///
    /// While the slice lives, the memory does, and nobody writes it.
    pub(super) unsafe fn numbers<'a, N: Number>(self) -> &'a [N] {
        let start = self.start.cast::<N>();
        assert!(
            !self.is_none() && start.is_aligned(),
            "memory posted to be read is there, and aligned for its numbers"
        );
        // SAFETY: in bounds and initialised, as it was a slice of bytes; aligned as asserted; any bits are a number;
        // alive and unchanged by the caller's promise.
        unsafe { core::slice::from_raw_parts(start, self.len / size_of::<N>()) }
    }
}

impl Memory {
    /// Where it lies, if it may be read.
    pub(super) fn window(&self) -> Window {
        let Self::Read { owner, range } = self else { return Window::NONE };
        let bytes: &[u8] = &owner[range.clone()];
        Window { start: bytes.as_ptr(), len: bytes.len() }
    }

    /// The memory itself, to be kept, where the buffer is all of it. Whoever writes it later, while others hold it,
    /// makes a copy first.
    pub(super) fn shared(&self) -> Option<Arc<Bytes>> {
        match self {
            Self::Read { owner, range } if *range == (0..owner.len()) => Some(owner.clone()),
            _ => None,
        }
    }
}
