//! A tensor without its number of dims and without a graph: what a transport moves.

use burn::backend::flex::FlexTensor;
use burn::backend::{BackendTensor, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind, TensorMetadata};
use burn::tensor::kind::{Autodiff, Basic};
use burn::tensor::{DType, Device, Element, Float, Int, Shape, Tensor, TensorData};

/// Does something with `K` as the kind of tensor that an element type is of.
macro_rules! with_kind {
    ($dtype:expr, $K:ident => $body:expr) => {
        match $dtype {
            dtype if dtype.is_float() => {
                type $K = burn::tensor::Float;
                $body
            }
            dtype if dtype.is_bool() => {
                type $K = burn::tensor::Bool;
                $body
            }
            _ => {
                type $K = burn::tensor::Int;
                $body
            }
        }
    };
}
pub(crate) use with_kind;

/// A tensor on its device, its rank (number of dims) erased; never part of a graph.
///
/// It is passed on several times on its way, which is why it is one word. A transport takes one and gives one back;
/// what it gives back may be flat, as the group knows the shape.
#[derive(Clone, Debug)]
pub struct Buffer(Box<DispatchTensor>);

impl Buffer {
    /// Takes a tensor without its graph.
    pub fn from_tensor<const D: usize, K: Basic + Autodiff>(tensor: Tensor<D, K>) -> Self {
        Self::from_dispatch(tensor.inner().into_dispatch())
    }

    /// Takes what a tensor on its device without a graph is made of.
    pub(crate) fn from_dispatch(tensor: DispatchTensor) -> Self {
        Self(Box::new(tensor))
    }

    /// The tensor again, in `shape`.
    ///
    /// # Panics
    ///
    /// When the buffer has another number of elements, or another kind of them.
    pub fn into_tensor<const D: usize, K: Basic>(self, shape: [usize; D]) -> Tensor<D, K> {
        if self.with_shape(|own| own.as_slice() == shape) {
            return Tensor::from_dispatch(*self.0);
        }
        let flat = Tensor::<1, K>::from_dispatch(*self.0);
        if shape.contains(&0) {
            // In a reshape, 0 stands for the old extent.
            return Tensor::zeros(shape, (&flat.device(), flat.dtype()));
        }
        flat.reshape(shape)
    }

    /// The tensor again, in a row.
    pub(crate) fn into_flat<K: Basic>(self) -> Tensor<1, K> {
        let elements = self.num_elements();
        self.into_tensor([elements])
    }

    /// A flat buffer of values in host memory.
    pub fn from_values<E: Element>(values: Vec<E>) -> Self {
        let len = values.len();
        Self::from_flex(FlexTensor::from_data(TensorData::new(values, [len])))
    }

    /// The values, read to the host and converted to `E`.
    pub fn into_values<E: Element>(self) -> Vec<E> {
        match self.into_flex() {
            Ok(tensor) => tensor.into_data().iter::<E>().collect(),
            Err(buffer) => with_kind!(buffer.dtype(), K => {
                Tensor::<1, K>::from_dispatch(*buffer.0).into_data().iter::<E>().collect()
            }),
        }
    }

    /// A buffer without elements, for calls that move nothing.
    pub fn empty() -> Self {
        Self::from_values::<f32>(Vec::new())
    }

    /// A buffer without elements, on a device.
    pub(crate) fn empty_on(device: &Device, dtype: DType) -> Self {
        with_kind!(dtype, K => Self::from_tensor(Tensor::<1, K>::zeros([0], (device, dtype))))
    }

    /// The same buffer on a device.
    pub(crate) fn moved(self, device: &Device) -> Self {
        if self.device() == *device {
            return self;
        }
        with_kind!(self.dtype(), K => Self::from_tensor(self.into_flat::<K>().to_device(device)))
    }

    /// The same numbers in another type.
    pub(crate) fn cast(self, dtype: DType) -> Self {
        match self.dtype() {
            own if own == dtype => self,
            own if own.is_float() => Self::from_tensor(self.into_flat::<Float>().cast(dtype)),
            _ => Self::from_tensor(self.into_flat::<Int>().cast(dtype)),
        }
    }

    /// Floats, divided by a number.
    pub(crate) fn divided(self, by: usize) -> Self {
        Self::from_tensor(self.into_flat::<Float>().div_scalar(by as f64))
    }

    /// The device it lies on.
    pub(crate) fn device(&self) -> Device {
        Device::new(self.0.device())
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }

    /// The shape; flat if it comes from a transport.
    pub fn shape(&self) -> Shape {
        self.0.shape()
    }

    /// How many elements there are.
    pub(crate) fn num_elements(&self) -> usize {
        self.with_shape(Shape::num_elements)
    }

    /// Looks at the shape; on the host, without a copy of it.
    fn with_shape<T>(&self, look: impl FnOnce(&Shape) -> T) -> T {
        match self.as_flex() {
            Some(tensor) => look(tensor.layout().shape()),
            None => look(&self.shape()),
        }
    }

    /// Takes the tensor out for a backend's own operations.
    pub fn into_dispatch(self) -> DispatchTensor {
        *self.0
    }

    /// The same values in a row, if they are on the host. To be called on the rank's own thread: Flex copies a large
    /// view in parallel, in the pool of the thread that asks.
    pub(crate) fn contiguous(self) -> Self {
        match self.as_flex() {
            Some(tensor) if !tensor.is_contiguous() => Self::from_flex(tensor.to_contiguous()),
            _ => self,
        }
    }

    /// The host tensor inside, if it lies on Flex.
    fn as_flex(&self) -> Option<&FlexTensor> {
        match &self.0.kind {
            DispatchTensorKind::Flex(
                BackendTensor::Float(tensor) | BackendTensor::Int(tensor) | BackendTensor::Bool(tensor),
            ) => Some(tensor),
            _ => None,
        }
    }

    /// The host tensor inside, without a copy.
    ///
    /// # Errors
    ///
    /// The buffer itself, when it lies on another backend than Flex.
    pub fn into_flex(self) -> Result<FlexTensor, Self> {
        let DispatchTensor { kind, autodiff } = *self.0;
        match kind {
            DispatchTensorKind::Flex(
                BackendTensor::Float(tensor) | BackendTensor::Int(tensor) | BackendTensor::Bool(tensor),
            ) => Ok(tensor),
            kind => Err(Self::from_dispatch(DispatchTensor { kind, autodiff })),
        }
    }

    /// A buffer of a host tensor, without a copy.
    pub fn from_flex(tensor: FlexTensor) -> Self {
        let tensor = match tensor.dtype() {
            dtype if dtype.is_float() => BackendTensor::Float(tensor),
            dtype if dtype.is_bool() => BackendTensor::Bool(tensor),
            _ => BackendTensor::Int(tensor),
        };
        let (kind, autodiff) = (DispatchTensorKind::Flex(tensor), DispatchAutodiffContext::Disabled);
        Self::from_dispatch(DispatchTensor { kind, autodiff })
    }
}
