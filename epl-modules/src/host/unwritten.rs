//! Memory that has no values yet: what is used again is not filled with zeros first, by one thread, for others to write over. What
//! is added to is filled by the thread that adds, block by block, while the block is in the cache.

use core::mem::MaybeUninit;

use super::real::Real;

/// Memory of so many elements, which are not written yet.
pub(crate) struct Unwritten<T> {
    values: Vec<T>,
    count: usize,
}

impl<T> Unwritten<T> {
    pub(crate) fn new(count: usize) -> Self {
        Self { values: Vec::with_capacity(count), count }
    }

    pub(crate) fn memory(&mut self) -> &mut [MaybeUninit<T>] {
        &mut self.values.spare_capacity_mut()[..self.count]
    }

    /// # Safety
    ///
    /// All of it has been written.
    pub(crate) unsafe fn written(mut self) -> Vec<T> {
        // SAFETY: the caller's promise; there is room for as many.
        unsafe { self.values.set_len(self.count) };
        self.values
    }
}

/// Memory that has values, as memory to write.
///
/// # Safety
///
/// Nothing but values is put there.
pub(crate) unsafe fn to_write<T>(values: &mut [T]) -> &mut [MaybeUninit<T>] {
    let (start, length) = (values.as_mut_ptr().cast(), values.len());
    // SAFETY: the same memory, which stays written, as the caller promises.
    unsafe { core::slice::from_raw_parts_mut(start, length) }
}

/// Memory filled with zeros.
pub(crate) fn zeroed<T: Real>(memory: &mut [MaybeUninit<T>]) -> &mut [T] {
    memory.fill(MaybeUninit::new(T::ZERO));
    let (start, length) = (memory.as_mut_ptr().cast(), memory.len());
    // SAFETY: the same memory, all of which was written.
    unsafe { core::slice::from_raw_parts_mut(start, length) }
}
