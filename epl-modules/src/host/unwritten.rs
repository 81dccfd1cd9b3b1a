//! Memory that has no values yet: what is used again is not filled with zeros first, by one thread, for others to write over. What
//! is added to is filled by the thread that adds, block by block, while the block is in the cache.

use core::mem::MaybeUninit;

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

/// The values in memory.
///
/// # Safety
///
/// All of it has been written.
pub(crate) unsafe fn written<T>(memory: &mut [MaybeUninit<T>]) -> &mut [T] {
    // SAFETY: the caller's promise.
    unsafe { memory.assume_init_mut() }
}

/// Memory that a thread keeps for what it needs for a while, again and again.
pub(super) struct Scratch<T>(Vec<Vec<T>>);

/// Elements of the largest memory that is kept: those of an image of a ResNet, as the columns of a convolution.
const KEPT: usize = 1 << 21;

impl<T> Scratch<T> {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Room for so many elements.
    pub(super) fn take(&mut self, length: usize) -> Vec<T> {
        match self.0.pop() {
            Some(memory) if memory.capacity() >= length => return memory,
            // The larger one will not be kept in its place.
            Some(small) if length > KEPT => self.0.push(small),
            Some(small) => drop(small),
            None => {}
        }
        Vec::with_capacity(length)
    }

    /// Keeps it, if it is not too large.
    pub(super) fn give_back(&mut self, memory: Vec<T>) {
        if memory.capacity() <= KEPT {
            self.0.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_to_be_kept_takes_no_ones_place() {
        let mut scratch = Scratch::<f32>::new();
        let small = scratch.take(100);
        assert!(small.capacity() >= 100 && small.is_empty());
        scratch.give_back(small);
        let large = scratch.take(KEPT + 1);
        assert!(large.capacity() > KEPT);
        assert_eq!(scratch.0.len(), 1, "the small one stays");
        scratch.give_back(large);
        assert_eq!(scratch.0.len(), 1, "the large one does not");
        let grown = scratch.take(KEPT);
        assert!(grown.capacity() >= KEPT && scratch.0.is_empty(), "in the place of the small one");
        scratch.give_back(grown);
        assert!(scratch.take(7).capacity() >= KEPT, "it is used again");
    }
}
