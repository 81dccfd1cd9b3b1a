//! Buffers in host memory: Flex tensors as they are, others copied there and back.

use core::ops::Range;
use std::sync::Arc;

use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::kind::Basic;
use burn::tensor::{Bytes, DType, Device, Shape, Tensor, TensorData};

use crate::buffer::{Buffer, with_kind};
use crate::error::{Error, Result};

/// Contiguous host memory of a buffer, and the way back.
pub(crate) struct StagedBuffer {
    pub(crate) bytes: Arc<Bytes>,
    /// Where in `bytes` the buffer lies.
    pub(crate) range: Range<usize>,
    pub(crate) home: Home,
}

/// What results must be turned into.
pub(crate) struct Home {
    pub(crate) dtype: DType,
    /// None for host memory itself.
    device: Option<Device>,
}

impl StagedBuffer {
    pub(crate) fn new(buffer: Buffer) -> Result<Self> {
        match buffer.into_flex() {
            Ok(tensor) => Ok(Self::from_flex(tensor, None)),
            Err(buffer) => Self::through_host(buffer),
        }
    }

    /// A buffer that nobody looks at: what lies elsewhere stays there.
    pub(crate) fn unseen(buffer: Buffer) -> Self {
        match buffer.into_flex() {
            Ok(tensor) => Self::from_flex(tensor, None),
            Err(buffer) => {
                let (dtype, device) = (buffer.dtype(), buffer.device());
                Self {
                    bytes: Arc::new(Bytes::from_elems(Vec::<u8>::new())),
                    range: 0..0,
                    home: Home { dtype, device: Some(device) },
                }
            }
        }
    }

    fn from_flex(tensor: FlexTensor, device: Option<Device>) -> Self {
        let tensor = if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() };
        let dtype = tensor.dtype();
        let start = tensor.layout().start_offset() * dtype.size();
        let range = start..start + tensor.layout().num_elements() * dtype.size();
        let bytes = tensor.data_arc();
        assert!(range.end <= bytes.len(), "a tensor of bytes {range:?} lies in a memory of {} bytes", bytes.len());
        Self { bytes, range, home: Home { dtype, device } }
    }

    fn through_host(buffer: Buffer) -> Result<Self> {
        let (data, device) =
            with_kind!(buffer.dtype(), K => read(Tensor::<1, K>::from_dispatch(buffer.into_dispatch()))?);
        Ok(Self::from_flex(FlexTensor::from_data(data), Some(device)))
    }

    /// The same memory, covered by the buffer as a whole.
    pub(crate) fn whole(self) -> Self {
        if self.range == (0..self.bytes.len()) {
            return self;
        }
        let len = self.range.len() / self.home.dtype.size();
        let start = self.range.start / self.home.dtype.size();
        let window = Layout::new(Shape::new([len]), vec![1], start);
        Self::from_flex(FlexTensor::from_arc(self.bytes, window, self.home.dtype).to_contiguous(), self.home.device)
    }
}

impl Home {
    /// A flat buffer, on the device the staged one came from.
    pub(crate) fn bring(self, bytes: Arc<Bytes>, range: Range<usize>) -> Buffer {
        let (size, dtype) = (self.dtype.size(), self.dtype);
        let layout = Layout::new(Shape::new([range.len() / size]), vec![1], range.start / size);
        let tensor = FlexTensor::from_arc(bytes, layout, dtype);
        match self.device {
            None => Buffer::from_flex(tensor),
            Some(device) => {
                // Of shared memory without an element Flex makes bytes whose address suits no number: a backend that
                // looks at it panics.
                let data = if range.is_empty() { TensorData::full_dtype([0], 0, dtype) } else { tensor.into_data() };
                with_kind!(dtype, K => Buffer::from_tensor(Tensor::<1, K>::from_data(data, (&device, dtype))))
            }
        }
    }
}

fn read<K: Basic>(tensor: Tensor<1, K>) -> Result<(TensorData, Device)> {
    let device = tensor.device();
    let bytes = tensor.shape().num_elements() * tensor.dtype().size();
    let data = tensor
        .try_into_data()
        .map_err(|error| Error::Staging { message: format!("{bytes} bytes of {device:?}: {error}") })?;
    Ok((data, device))
}

#[cfg(test)]
mod tests {
    use burn::tensor::{BoolStore, Int};

    use super::*;

    #[test]
    fn a_view_is_posted_where_it_lies_and_copied_when_it_must_be_whole() -> Result<()> {
        let x = Tensor::<2>::from_data([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], &Device::flex());
        let rows = StagedBuffer::new(Buffer::from_tensor(x.clone().slice_dim(0, 1..3)))?;
        let size = rows.home.dtype.size();
        assert_eq!((rows.bytes.len(), rows.range.clone()), (6 * size, 2 * size..6 * size));
        let rows = rows.whole();
        assert_eq!((rows.bytes.len(), rows.range.clone()), (4 * size, 0..4 * size));
        let columns = StagedBuffer::new(Buffer::from_tensor(x.swap_dims(0, 1)))?;
        let values = columns.home.bring(columns.bytes, columns.range).into_values::<f64>();
        assert_eq!(values, [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
        Ok(())
    }

    #[test]
    fn an_empty_buffer_whose_memory_others_hold_is_brought() {
        for dtype in [DType::F64, DType::F32, DType::BF16, DType::I64, DType::Bool(BoolStore::Native)] {
            let bytes = Arc::new(Bytes::from_elems(Vec::<u8>::new()));
            let home = Home { dtype, device: Some(Device::flex()) };
            let data = home.bring(bytes.clone(), 0..0).into_flex().map(FlexTensor::into_data);
            let data = data.unwrap_or_else(|_| panic!("a tensor of Flex"));
            assert!(data.bytes().as_ptr().addr().is_multiple_of(dtype.size()), "{dtype:?}");
            drop(bytes);
        }
    }

    /// The way of other backends, walked with tensors of this one.
    #[test]
    fn a_device_buffer_goes_through_the_host_and_back() -> Result<()> {
        for dtype in [DType::F32, DType::F64] {
            let x = Tensor::<2>::from_data([[1.0, 2.0], [3.0, 4.0]], (&Device::flex(), dtype));
            let staged = StagedBuffer::through_host(Buffer::from_tensor(x))?.whole();
            let back = staged.home.bring(staged.bytes, staged.range);
            assert_eq!((back.dtype(), back.into_values::<f64>()), (dtype, vec![1.0, 2.0, 3.0, 4.0]));
        }
        let x = Tensor::<1, Int>::from_data([1, 2, 3], (&Device::flex(), DType::I64));
        let staged = StagedBuffer::through_host(Buffer::from_tensor(x))?;
        let back = staged.home.bring(staged.bytes, staged.range);
        assert_eq!((back.dtype(), back.into_values::<i64>()), (DType::I64, vec![1, 2, 3]));
        Ok(())
    }
}
