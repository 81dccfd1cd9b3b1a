//! Buffers that notice who looks at them: a look that is not over before the memory is freed or written is a race.

use std::sync::Arc;

use super::sync::UnsafeCell;
use crate::host::number::Number;

/// The memory of one post, which outlives it: what is freed is only marked.
#[derive(Debug)]
pub(super) struct Buffer {
    numbers: [u64; 1],
    is_freed: UnsafeCell<bool>,
    /// A part for each member to write.
    parts: Vec<UnsafeCell<u64>>,
}

// SAFETY: cells are reached as the board allows, which is what is tested: loom ends the run where two do at once.
unsafe impl Sync for Buffer {}
// SAFETY: as above.
unsafe impl Send for Buffer {}

impl Buffer {
    pub(super) fn new(number: u64, members: usize) -> Arc<Self> {
        let parts = (0..members).map(|_| UnsafeCell::new(0)).collect();
        Arc::new(Self { numbers: [number], is_freed: UnsafeCell::new(false), parts })
    }

    fn look(&self) {
        // SAFETY: see `Sync`.
        self.is_freed.with(|is_freed| assert!(!unsafe { *is_freed }, "memory is read that was freed"));
    }

    /// Writes a part.
    pub(super) fn write(&self, part: usize, number: u64) {
        self.look();
        // SAFETY: see `Sync`.
        self.parts[part].with_mut(|place| unsafe { *place = number });
    }

    /// What was written to all parts.
    pub(super) fn parts(&self) -> Vec<u64> {
        self.look();
        // SAFETY: see `Sync`.
        self.parts.iter().map(|part| part.with(|place| unsafe { *place })).collect()
    }
}

/// What a member posts.
#[derive(Debug)]
pub(super) enum Memory {
    Hidden,
    Read(Arc<Buffer>),
    Write(Arc<Buffer>),
}

impl Memory {
    pub(super) fn window(&self) -> Window {
        match self {
            Self::Read(buffer) => Window(Arc::as_ptr(buffer)),
            Self::Hidden | Self::Write(_) => Window::NONE,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Self::Read(buffer) | Self::Write(buffer) = self {
            // SAFETY: see `Sync`.
            buffer.is_freed.with_mut(|is_freed| unsafe { *is_freed = true });
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Window(*const Buffer);

// SAFETY: a place only.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    pub(super) const NONE: Self = Self(core::ptr::null());

    pub(super) fn is_none(self) -> bool {
        self.0.is_null()
    }

    /// # Safety
    ///
    /// The buffer is alive: a model keeps all of them to its end.
    pub(super) unsafe fn numbers<'a, N: Number>(self) -> &'a [N] {
        // SAFETY: the caller's promise.
        let buffer = unsafe { &*self.0 };
        buffer.look();
        N::of(&buffer.numbers)
    }
}
