//! The elements of a tensor.

use core::marker::PhantomData;

use burn::backend::{Flex, tensor::FloatTensor};
use burn::tensor::{Device, Tensor, TensorData};

use super::product::Matrix;
use super::real::Real;

/// A tensor's elements to read, in row-major order. Nothing is copied if they already lie so.
pub(crate) struct View<T>(FloatTensor<Flex>, PhantomData<T>);

impl<T: Real> View<T> {
    pub(crate) fn new<const D: usize>(x: Tensor<D>) -> Self {
        let tensor = x.try_into_primitive::<Flex>().expect("asked `host_float` before");
        let tensor = if T::slice(&tensor).is_some() { tensor } else { tensor.to_contiguous() };
        Self(tensor, PhantomData)
    }

    pub(crate) fn slice(&self) -> &[T] {
        T::slice(&self.0).expect("contiguous and of the asked type since `new`")
    }

    /// Of a matrix whose rows or columns may lie as they do: nothing is copied if either are contiguous.
    pub(crate) fn of_matrix(x: Tensor<2>) -> Self {
        let tensor = x.try_into_primitive::<Flex>().expect("asked `host_float` before");
        let tensor = if strides_of_matrix(&tensor).is_some() { tensor } else { tensor.to_contiguous() };
        Self(tensor, PhantomData)
    }

    /// What [`of_matrix`](Self::of_matrix) has taken.
    pub(crate) fn matrix(&self) -> Matrix<'_, T> {
        let (sizes, strides) = strides_of_matrix(&self.0).expect("seen by `of_matrix`");
        Matrix::strided(&T::storage(&self.0)[self.0.layout().start_offset()..], sizes, strides)
    }
}

/// Sizes and strides of the matrices that are a tensor's last two dims, if their rows or columns are contiguous.
pub(super) fn strides_of_matrix(tensor: &FloatTensor<Flex>) -> Option<([usize; 2], [usize; 2])> {
    let layout = tensor.layout();
    let first = layout.num_dims() - 2;
    let sizes: [usize; 2] = core::array::from_fn(|dim| layout.shape()[first + dim]);
    let [row, column] = core::array::from_fn(|dim| usize::try_from(layout.strides()[first + dim]).ok());
    let strides = [row?, column?];
    let is_row_major = strides[1] == 1 && strides[0] >= sizes[1];
    let is_transposed = strides[0] == 1 && strides[1] >= sizes[0];
    (is_row_major || is_transposed).then_some((sizes, strides))
}

/// A tensor's elements to overwrite, in row-major order. Nothing is copied if no one else holds them.
pub(crate) struct Owned<T>(TensorData, PhantomData<T>);

impl<T: Real> Owned<T> {
    pub(crate) fn take<const D: usize>(x: Tensor<D>) -> Self {
        Self(x.into_data(), PhantomData)
    }

    pub(crate) fn slice_mut(&mut self) -> &mut [T] {
        self.0.as_mut_slice().expect("asked `host_float` before")
    }

    pub(crate) fn into_tensor<const D: usize>(self, device: &Device) -> Tensor<D> {
        Tensor::from_data(self.0, (device, T::dtype()))
    }
}

/// A tensor of these elements.
pub(crate) fn tensor<T: Real, const D: usize>(values: Vec<T>, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), (device, T::dtype()))
}
