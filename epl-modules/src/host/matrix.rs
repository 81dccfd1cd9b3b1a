//! Matrices to read, and to write.

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use super::unwritten::to_write;

/// A matrix to read: element `[row, column]` is at `row * strides[0] + column * strides[1]`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a, T> {
    pub(super) values: &'a [T],
    pub(super) sizes: [usize; 2],
    pub(super) strides: [usize; 2],
}

impl<'a, T> Matrix<'a, T> {
    /// Rows that lie behind each other.
    pub(crate) fn new(values: &'a [T], sizes: [usize; 2]) -> Self {
        assert_eq!(values.len(), sizes[0] * sizes[1], "all elements are the matrix's");
        Self::strided(values, sizes, [sizes[1], 1])
    }

    pub(super) fn strided(values: &'a [T], sizes: [usize; 2], strides: [usize; 2]) -> Self {
        let [rows, columns] = sizes;
        let last = |size: usize, stride: usize| size.saturating_sub(1) * stride;
        let end = last(rows, strides[0]) + last(columns, strides[1]);
        assert!(rows == 0 || columns == 0 || end < values.len(), "a matrix lies in its memory");
        Self { values, sizes, strides }
    }

    /// Rows and columns.
    pub(crate) fn sizes(&self) -> [usize; 2] {
        self.sizes
    }

    pub(crate) fn transposed(self) -> Self {
        let ([rows, columns], [row, column]) = (self.sizes, self.strides);
        Self { values: self.values, sizes: [columns, rows], strides: [column, row] }
    }

    /// `count` rows from the first one.
    pub(crate) fn rows(self, first: usize, count: usize) -> Self {
        self.narrow(0, first, count)
    }

    /// `count` columns from the first one.
    pub(crate) fn columns(self, first: usize, count: usize) -> Self {
        self.narrow(1, first, count)
    }

    /// Whether the elements of a row lie behind each other.
    pub(crate) fn has_rows(&self) -> bool {
        self.strides[1] == 1
    }

    /// A row, where its elements lie behind each other.
    pub(crate) fn row(self, index: usize) -> &'a [T] {
        assert!(self.has_rows(), "the elements of a row lie behind each other");
        &self.values[index * self.strides[0]..][..self.sizes[1]]
    }

    /// The elements of a matrix whose columns lie behind each other, and how far apart columns begin.
    pub(super) fn columns_and_stride(self) -> (&'a [T], usize) {
        (self.values, self.strides[1])
    }

    /// `count` rows (dim 0) or columns (dim 1) from the first one.
    pub(super) fn narrow(self, dim: usize, first: usize, count: usize) -> Self {
        assert!(first + count <= self.sizes[dim], "a part of the matrix");
        let mut sizes = self.sizes;
        sizes[dim] = count;
        let skipped = (first * self.strides[dim]).min(self.values.len());
        Self { values: &self.values[skipped..], sizes, strides: self.strides }
    }

    /// A column, where its elements lie behind each other.
    pub(super) fn column(self, index: usize) -> &'a [T] {
        assert_eq!(self.strides[0], 1, "the elements of a column lie behind each other");
        &self.values[index * self.strides[1]..][..self.sizes[0]]
    }
}

/// A matrix to write, or a part of one: the rows are contiguous.
pub(crate) struct Output<'a, T> {
    pub(super) start: *mut T,
    pub(super) sizes: [usize; 2],
    pub(super) stride: usize,
    memory: PhantomData<&'a mut [MaybeUninit<T>]>,
}

// SAFETY: an output alone reaches the elements that are its own.
unsafe impl<T: Send> Send for Output<'_, T> {}

/// The matrices of `rows` by `columns` that lie interleaved in memory of `[outer, rows, inner, columns]`, such as the heads of
/// what a linear layer gave: for each of `outer` those of `inner`.
pub(crate) fn interleaved<T>(
    memory: &mut [MaybeUninit<T>],
    [outer, rows, inner, columns]: [usize; 4],
) -> Vec<Output<'_, T>> {
    assert_eq!(memory.len(), outer * rows * inner * columns, "all elements are of some matrix");
    let start = memory.as_mut_ptr().cast::<T>();
    let of = |index: usize| Output {
        start: start.wrapping_add((index / inner * rows * inner + index % inner) * columns),
        sizes: [rows, columns],
        stride: inner * columns,
        memory: PhantomData,
    };
    (0..outer * inner).map(of).collect()
}

impl<'a, T> Output<'a, T> {
    /// All of this memory.
    pub(super) fn whole(memory: &'a mut [MaybeUninit<T>], sizes: [usize; 2]) -> Self {
        assert_eq!(memory.len(), sizes[0] * sizes[1], "as many elements as the result has");
        Self { start: memory.as_mut_ptr().cast::<T>(), sizes, stride: sizes[1], memory: PhantomData }
    }

    /// All of what is written already.
    pub(super) fn over(values: &'a mut [T], sizes: [usize; 2]) -> Self {
        // SAFETY: nothing but values is written.
        Self::whole(unsafe { to_write(values) }, sizes)
    }

    /// Sets all elements.
    pub(crate) fn fill(self, value: T)
    where
        T: Copy,
    {
        for row in 0..self.sizes[0] {
            for column in 0..self.sizes[1] {
                // SAFETY: the element is one of this output's, and is only written.
                unsafe { self.start.wrapping_add(row * self.stride + column).write(value) };
            }
        }
    }

    /// `count` rows from the first one.
    pub(crate) fn rows(&mut self, first: usize, count: usize) -> Output<'_, T> {
        assert!(first + count <= self.sizes[0], "a part of the matrix");
        let start = self.start.wrapping_add(first * self.stride);
        Output { start, sizes: [count, self.sizes[1]], stride: self.stride, memory: PhantomData }
    }

    /// The part before `at` of dim 0 or 1, and the rest.
    pub(crate) fn split(self, dim: usize, at: usize) -> [Self; 2] {
        assert!(at <= self.sizes[dim]);
        let [mut before, mut rest] = [self.sizes; 2];
        before[dim] = at;
        rest[dim] -= at;
        let skipped = if dim == 0 { at * self.stride } else { at };
        let start = self.start.wrapping_add(skipped);
        let part = |start, sizes| Self { start, sizes, stride: self.stride, memory: PhantomData };
        [part(self.start, before), part(start, rest)]
    }
}
