//! One array's way through a pass: its window, and the next one, which the system reads ahead.
//!
//! ```text
//!            current        next
//!   ....... [ worked on ] [ read ahead ] ..........      advance: flush, unmap, the next becomes current
//! ```

use core::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;

use super::array::{ArrayMemory, FlatArray};
use super::file::{ArrayFile, MappedRange};
use super::folder::OffloadFolder;
use crate::error::{Error, Result};

/// An array in a pass; `H` is the slice of an array in host memory, `&[E]` or `&mut [E]`.
pub(super) enum Lane<'a, H> {
    Host(H),
    File { file: &'a ArrayFile, size: usize, current: Option<MappedRange>, next: Option<MappedRange> },
}

/// What passes through windows together.
pub(super) trait Lanes {
    /// Maps the window that comes next.
    fn look_ahead(&mut self, window: &Range<usize>) -> Result<()>;
    /// Makes the next window the current one.
    fn advance(&mut self);
    /// Writes what has changed in the current window.
    fn flush(&self) -> Result<()>;
}

/// Runs `work` on one window after another.
pub(super) fn each_window<L: Lanes>(
    lanes: &mut L,
    windows: &[Range<usize>],
    mut work: impl FnMut(&mut L, &Range<usize>) -> Result<()>,
) -> Result<()> {
    if let Some(first) = windows.first() {
        lanes.look_ahead(first)?;
    }
    for (index, window) in windows.iter().enumerate() {
        lanes.advance();
        if let Some(next) = windows.get(index + 1) {
            lanes.look_ahead(next)?;
        }
        work(lanes, window)?;
        lanes.flush()?;
    }
    Ok(())
}

/// A range in windows of so many elements.
pub(super) fn windows(range: Range<usize>, elements: usize) -> Vec<Range<usize>> {
    let end = range.end;
    range.step_by(elements).map(|start| start..end.min(start.saturating_add(elements))).collect()
}

/// The folder of those arrays that lie in files. They share one bound.
pub(super) fn folder_of(arrays: &[&FlatArray]) -> Result<Option<Arc<OffloadFolder>>> {
    let mut folders = arrays.iter().filter_map(|array| match &array.memory {
        ArrayMemory::Host { .. } => None,
        ArrayMemory::File(file) => Some(&file.folder),
    });
    let Some(first) = folders.next() else {
        return Ok(None);
    };
    match folders.find(|folder| !Arc::ptr_eq(folder, first)) {
        Some(other) => Err(Error::invalid(format!(
            "arrays of one update lie in two storages, with files in {} and in {}; make them in one, which has one bound",
            first.path.display(),
            other.path.display()
        ))),
        None => Ok(Some(first.clone())),
    }
}

/// How many elements a window has when these arrays pass together; all of them in host memory need no windows.
pub(super) fn window_elements(arrays: &[&FlatArray], folder: Option<&Arc<OffloadFolder>>) -> usize {
    let in_files = arrays.iter().filter(|array| matches!(array.memory, ArrayMemory::File(_)));
    let size = arrays.iter().map(|array| array.dtype.size()).max().unwrap_or(1);
    folder.map_or(usize::MAX, |folder| folder.window(in_files.count(), size))
}

impl<'a, E: Pod> Lane<'a, &'a [E]> {
    pub(super) fn read(array: &'a FlatArray) -> Self {
        match &array.memory {
            ArrayMemory::Host { words, .. } => Self::Host(&bytemuck::cast_slice(words)[..array.len]),
            ArrayMemory::File(file) => Self::File { file, size: size_of::<E>(), current: None, next: None },
        }
    }

    /// The elements of the current window.
    pub(super) fn slice(&self, window: &Range<usize>) -> &[E] {
        match self {
            Self::Host(slice) => &slice[window.clone()],
            Self::File { current, .. } => current.as_ref().map_or(&[], MappedRange::slice),
        }
    }
}

impl<'a, E: Pod> Lane<'a, &'a mut [E]> {
    pub(super) fn change(array: &'a mut FlatArray) -> Self {
        match &mut array.memory {
            ArrayMemory::Host { words, .. } => Self::Host(&mut bytemuck::cast_slice_mut(words)[..array.len]),
            ArrayMemory::File(file) => Self::File { file, size: size_of::<E>(), current: None, next: None },
        }
    }

    /// The elements of the current window.
    pub(super) fn slice_mut(&mut self, window: &Range<usize>) -> &mut [E] {
        match self {
            Self::Host(slice) => &mut slice[window.clone()],
            Self::File { current, .. } => current.as_mut().map_or(&mut [], MappedRange::slice_mut),
        }
    }
}

impl<H> Lanes for Lane<'_, H> {
    fn look_ahead(&mut self, window: &Range<usize>) -> Result<()> {
        if let Self::File { file, size, next, .. } = self {
            let region = file.map(window.start * *size..window.end * *size)?;
            region.will_need();
            *next = Some(region);
        }
        Ok(())
    }

    fn advance(&mut self) {
        if let Self::File { current, next, .. } = self {
            *current = next.take();
        }
    }

    fn flush(&self) -> Result<()> {
        match self {
            Self::File { current: Some(region), .. } => region.flush(),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_a_range_once() {
        assert_eq!(windows(3..10, 4), [3..7, 7..10]);
        assert_eq!(windows(3..10, usize::MAX), [3..10]);
        assert!(windows(3..3, 4).is_empty());
    }
}
