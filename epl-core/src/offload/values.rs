//! A tensor's values in host memory, in place where they are there already.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Device, Element, Tensor, TensorData};
use bytemuck::Pod;

use crate::error::{Error, Result};

/// The contiguous values of a flat tensor.
#[derive(Debug)]
pub(super) enum FlatValues {
    Flex(FlexTensor),
    Data(TensorData),
}

impl FlatValues {
    pub(super) fn of(tensor: &Tensor<1>) -> Result<Self> {
        match tensor.clone().try_into_primitive::<Flex>() {
            Ok(flex) => Ok(Self::Flex(contiguous(flex))),
            Err(_) => {
                let data = tensor.clone().try_into_data();
                data.map(Self::Data).map_err(|error| Error::invalid(format!("a tensor cannot be read: {error}")))
            }
        }
    }

    pub(super) fn dtype(&self) -> DType {
        match self {
            Self::Flex(flex) => flex.dtype(),
            Self::Data(data) => data.dtype(),
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Flex(flex) => {
                let (size, layout) = (flex.dtype().size(), flex.layout());
                &flex.bytes()[layout.start_offset() * size..][..layout.num_elements() * size]
            }
            Self::Data(data) => data.as_bytes(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes().len() / self.dtype().size()
    }

    /// The values; `E` is the tensor's type, which was compared.
    pub(super) fn slice<E: Element + Pod>(&self) -> &[E] {
        assert_eq!(E::dtype(), self.dtype(), "the element types were compared before");
        bytemuck::cast_slice(self.bytes())
    }

    /// Refuses values of another type.
    pub(super) fn expect_dtype(&self, what: &str, dtype: DType) -> Result<()> {
        if self.dtype() != dtype {
            return Err(Error::invalid(format!(
                "{what} has elements of {}, and the array has {}; cast one of them",
                self.dtype().name(),
                dtype.name()
            )));
        }
        Ok(())
    }
}

/// Whether a device's memory is the host's, with autodiff or without: then a tensor of it is of [`Flex`].
pub fn is_host(device: &Device) -> bool {
    device.clone().without_autodiff() == Device::flex()
}

/// The tensor times a factor. On a device also times one: else whether a norm is clipped would change the operations of a step,
/// whose kernels would be compiled anew.
pub(crate) fn scaled<const D: usize>(tensor: Tensor<D>, factor: f64) -> Tensor<D> {
    if factor == 1.0 && is_host(&tensor.device()) { tensor } else { tensor * factor }
}

/// A tensor whose elements lie in order: a view of part of a buffer is not copied, as `to_contiguous` would.
pub(crate) fn contiguous(flex: FlexTensor) -> FlexTensor {
    if flex.is_contiguous() { flex } else { flex.to_contiguous() }
}
