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
        let tensor = primitive(x);
        let tensor = if T::slice(&tensor).is_some() { tensor } else { tensor.to_contiguous() };
        Self(tensor, PhantomData)
    }

    pub(crate) fn slice(&self) -> &[T] {
        T::slice(&self.0).expect("contiguous and of the asked type since `new`")
    }

    /// Of the matrices that are the last two dims: nothing is copied if their rows or columns are contiguous.
    pub(crate) fn of_matrices<const D: usize>(x: Tensor<D>) -> Self {
        let tensor = primitive(x);
        let tensor = if strides_of_matrices(&tensor).is_some() { tensor } else { tensor.to_contiguous() };
        Self(tensor, PhantomData)
    }

    /// Of a matrix whose rows are contiguous: nothing is copied if they are.
    pub(crate) fn of_rows(x: Tensor<2>) -> Self {
        let view = Self::of_matrices(x);
        if view.matrix().has_rows() { view } else { Self(view.0.to_contiguous(), PhantomData) }
    }

    /// What [`of_matrices`](Self::of_matrices) has taken, in the order of the dims before the last two.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = Matrix<'_, T>> {
        let (layout, values) = (self.0.layout(), T::storage(&self.0));
        let strides = strides_of_matrices(&self.0).expect("seen by `of_matrices`");
        let (outer, last) = strides.split_at(strides.len() - 2);
        let (outer_sizes, sizes) = layout.shape().split_at(outer.len());
        let (sizes, last) = ([sizes[0], sizes[1]], [last[0], last[1]]);
        let (outer, outer_sizes, start) = (outer.to_vec(), outer_sizes.to_vec(), layout.start_offset());
        (0..outer_sizes.iter().product()).map(move |mut index| {
            let mut first = start;
            for (size, stride) in outer_sizes.iter().zip(&outer).rev() {
                first += index % size * stride;
                index /= size;
            }
            // Empty matrices may have no memory.
            Matrix::strided(&values[first.min(values.len())..], sizes, last)
        })
    }

    /// The only one of [`matrices`](Self::matrices).
    pub(crate) fn matrix(&self) -> Matrix<'_, T> {
        self.matrices().next().expect("a tensor of two dims is a matrix")
    }
}

fn primitive<const D: usize>(x: Tensor<D>) -> FloatTensor<Flex> {
    x.try_into_primitive::<Flex>().expect("it is plain, and was asked `host_float` before")
}

/// The strides, if none goes backwards and the matrices that are the last two dims have contiguous rows or columns.
fn strides_of_matrices(tensor: &FloatTensor<Flex>) -> Option<Vec<usize>> {
    let strides: Option<Vec<usize>> =
        tensor.layout().strides().iter().map(|stride| (*stride).try_into().ok()).collect();
    let strides = strides?;
    let ([.., rows, columns], [.., row, column]) = (&tensor.layout().shape()[..], &strides[..]) else { return None };
    let are_contiguous = (*column == 1 && row >= columns) || (*row == 1 && column >= rows);
    are_contiguous.then_some(strides)
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
