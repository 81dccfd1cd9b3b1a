//! A flat array of floats in host memory or in a file.

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut, Range};

use burn::tensor::{DType, Device, Element, Tensor, TensorData, bf16, f16};
use bytemuck::Pod;
use rayon::prelude::*;

use super::file::{ArrayFile, MappedRange};
use super::ledger::Counted;
use super::values::FlatValues;
use crate::error::{Error, Result};
use crate::memory::Tier;

/// Bytes that one thread copies at a time.
const COPIED: usize = 1 << 20;

/// A flat array of one float type, made by [`Storage::zeros`](super::Storage::zeros).
///
/// f16 and bf16 can be stored and read; sums and updates take f32 and f64.
pub struct FlatArray {
    pub(super) dtype: DType,
    pub(super) len: usize,
    pub(super) memory: ArrayMemory,
}

pub(super) enum ArrayMemory {
    /// Words, so that every element type is aligned.
    Host {
        words: Vec<u64>,
        _counted: Counted,
    },
    File(ArrayFile),
}

impl FlatArray {
    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        (self.len * self.dtype.size()) as u64
    }

    /// Where it is.
    pub fn tier(&self) -> Tier {
        match self.memory {
            ArrayMemory::Host { .. } => Tier::Host,
            ArrayMemory::File(_) => Tier::Disk,
        }
    }

    /// Writes a tensor's elements to the range that begins at `start`. A Flex tensor is copied once.
    ///
    /// # Errors
    ///
    /// When the tensor has another element type, does not fit, or the file cannot be written.
    pub fn write(&mut self, start: usize, tensor: &Tensor<1>) -> Result<()> {
        self.put(start, &FlatValues::of(tensor)?)
    }

    /// As [`write`](Self::write), from data on the host.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn set(&mut self, start: usize, data: TensorData) -> Result<()> {
        self.put(start, &FlatValues::Data(data))
    }

    fn put(&mut self, start: usize, values: &FlatValues) -> Result<()> {
        values.expect_dtype("a tensor", self.dtype)?;
        let range = self.range(start..start.saturating_add(values.len()))?;
        match &mut self.memory {
            ArrayMemory::Host { words, .. } => {
                copy(&mut bytemuck::cast_slice_mut(words)[range.start..range.end], values.bytes());
                Ok(())
            }
            ArrayMemory::File(file) => {
                let folder = file.folder.clone();
                let _turn = folder.turn();
                file.write(range.start, values.bytes())
            }
        }
    }

    /// The elements of a range as a new tensor on a device.
    ///
    /// # Errors
    ///
    /// When the range does not fit, or the file cannot be read.
    pub fn read(&self, range: Range<usize>, device: &Device) -> Result<Tensor<1>> {
        Ok(Tensor::from_data(self.data(range)?, (device, self.dtype)))
    }

    /// The elements of a range, as [`read`](Self::read), on the host.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn data(&self, range: Range<usize>) -> Result<TensorData> {
        match self.dtype {
            DType::F64 => self.typed_data::<f64>(range),
            DType::F32 => self.typed_data::<f32>(range),
            DType::F16 => self.typed_data::<f16>(range),
            _ => self.typed_data::<bf16>(range),
        }
    }

    fn typed_data<E: Element + Pod>(&self, range: Range<usize>) -> Result<TensorData> {
        let bytes = self.range(range.clone())?;
        let mut values = vec![E::zeroed(); range.len()];
        let into: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        match &self.memory {
            ArrayMemory::Host { words, .. } => copy(into, &bytemuck::cast_slice(words)[bytes]),
            ArrayMemory::File(file) => {
                let _turn = file.folder.turn();
                file.read(bytes.start, into)?;
            }
        }
        Ok(TensorData::new(values, [range.len()]))
    }

    /// The elements of a range: of an array in a file the range is mapped.
    ///
    /// # Errors
    ///
    /// When `E` is not the element type, the range does not fit, or the bound of what is mapped would be passed.
    pub fn window<E: Element + Pod>(&self, range: Range<usize>) -> Result<Window<'_, E>> {
        let bytes = self.typed_range::<E>(range.clone())?;
        Ok(Window(match &self.memory {
            ArrayMemory::Host { words, .. } => ArrayView::ArrayMemory(&bytemuck::cast_slice(words)[range]),
            ArrayMemory::File(file) => ArrayView::Mapped(file.map(bytes)?, PhantomData),
        }))
    }

    /// As [`window`](Self::window), to be changed.
    ///
    /// # Errors
    ///
    /// As [`window`](Self::window).
    pub fn window_mut<E: Element + Pod>(&mut self, range: Range<usize>) -> Result<WindowMut<'_, E>> {
        let bytes = self.typed_range::<E>(range.clone())?;
        Ok(WindowMut(match &mut self.memory {
            ArrayMemory::Host { words, .. } => ArrayView::ArrayMemory(&mut bytemuck::cast_slice_mut(words)[range]),
            ArrayMemory::File(file) => ArrayView::Mapped(file.map(bytes)?, PhantomData),
        }))
    }

    fn typed_range<E: Element>(&self, range: Range<usize>) -> Result<Range<usize>> {
        if E::dtype() != self.dtype {
            return Err(Error::invalid(format!(
                "an array of {} was asked for a window of {}",
                self.dtype.name(),
                E::dtype().name()
            )));
        }
        self.range(range)
    }

    /// The bytes of a range of elements.
    pub(super) fn range(&self, range: Range<usize>) -> Result<Range<usize>> {
        if range.start > range.end || range.end > self.len {
            return Err(Error::invalid(format!(
                "elements {}..{} of an array that has {}",
                range.start, range.end, self.len
            )));
        }
        Ok(range.start * self.dtype.size()..range.end * self.dtype.size())
    }
}

impl fmt::Debug for FlatArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlatArray({} {}, {:?})", self.len, self.dtype.name(), self.tier())
    }
}

fn copy(to: &mut [u8], from: &[u8]) {
    match to.len() {
        0..=COPIED => to.copy_from_slice(from),
        _ => to.par_chunks_mut(COPIED).zip(from.par_chunks(COPIED)).for_each(|(to, from)| to.copy_from_slice(from)),
    }
}

enum ArrayView<H, E> {
    ArrayMemory(H),
    Mapped(MappedRange, PhantomData<E>),
}

/// Elements of an array, to be read.
pub struct Window<'a, E: Pod>(ArrayView<&'a [E], E>);

/// Elements of an array, to be changed; [`finish`](Self::finish) tells when a file could not be written.
pub struct WindowMut<'a, E: Pod>(ArrayView<&'a mut [E], E>);

impl<E: Pod> WindowMut<'_, E> {
    /// Writes what has changed to the file, and unmaps it.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn finish(self) -> Result<()> {
        match self.0 {
            ArrayView::ArrayMemory(_) => Ok(()),
            ArrayView::Mapped(region, _) => region.flush(),
        }
    }
}

impl<E: Pod> Deref for Window<'_, E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        match &self.0 {
            ArrayView::ArrayMemory(slice) => slice,
            ArrayView::Mapped(region, _) => region.slice(),
        }
    }
}

impl<E: Pod> Deref for WindowMut<'_, E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        match &self.0 {
            ArrayView::ArrayMemory(slice) => slice,
            ArrayView::Mapped(region, _) => region.slice(),
        }
    }
}

impl<E: Pod> DerefMut for WindowMut<'_, E> {
    fn deref_mut(&mut self) -> &mut [E] {
        match &mut self.0 {
            ArrayView::ArrayMemory(slice) => slice,
            ArrayView::Mapped(region, _) => region.slice_mut(),
        }
    }
}
