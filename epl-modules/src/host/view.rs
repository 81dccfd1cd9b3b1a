//! The elements of a tensor.

use core::marker::PhantomData;

use burn::backend::{Flex, tensor::FloatTensor};
use burn::tensor::{Device, Tensor, TensorData};

use super::kernel::ProductElement;
use super::matrix::Matrix;
use super::rows::for_blocks;

/// A tensor's elements to read, in row-major order. Nothing is copied if they already lie so.
pub(crate) struct View<T>(FloatTensor<Flex>, PhantomData<T>);

impl<T: ProductElement> View<T> {
    pub(crate) fn new<const D: usize>(x: Tensor<D>) -> Self {
        let tensor = primitive(x);
        let tensor = if in_order::<T>(&tensor).is_some() { tensor } else { tensor.to_contiguous() };
        Self(tensor, PhantomData)
    }

    pub(crate) fn slice(&self) -> &[T] {
        in_order(&self.0).expect("contiguous and of the asked type since `new`")
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
    x.try_into_primitive::<Flex>().expect("it is plain, and lies in host memory: `product_type` was asked before")
}

/// The elements, if they lie in row-major order.
fn in_order<T: ProductElement>(tensor: &FloatTensor<Flex>) -> Option<&[T]> {
    // A part of nothing may begin behind the end of its memory.
    if tensor.layout().shape().contains(&0) { Some(&[]) } else { T::slice(tensor) }
}

/// The strides, if none goes backwards and the matrices that are the last two dims have contiguous rows or columns. A dim of
/// one element, or none, may have any stride: here it has one that does not matter.
fn strides_of_matrices(tensor: &FloatTensor<Flex>) -> Option<Vec<usize>> {
    let shape = &tensor.layout().shape()[..];
    let [.., rows, columns] = *shape else { return None };
    let is_empty = shape.contains(&0);
    let is_free = |size: usize| size <= 1 || is_empty;
    let of_dim =
        |(size, stride): (&usize, &isize)| if is_free(*size) { Some(0) } else { usize::try_from(*stride).ok() };
    let mut strides = shape.iter().zip(tensor.layout().strides()).map(of_dim).collect::<Option<Vec<_>>>()?;
    let [.., row, column] = &mut strides[..] else { return None };
    if is_free(columns) {
        *column = 1;
    }
    if is_free(rows) {
        *row = if *column == 1 { columns } else { 1 };
    }
    let are_contiguous = (*column == 1 && *row >= columns) || (*row == 1 && *column >= rows);
    are_contiguous.then_some(strides)
}

/// A tensor's elements to overwrite, in row-major order. Nothing is copied if no one else holds them.
pub(crate) struct Owned<T>(TensorData, PhantomData<T>);

impl<T: ProductElement> Owned<T> {
    pub(crate) fn take<const D: usize>(x: Tensor<D>) -> Self {
        Self(x.into_data(), PhantomData)
    }

    pub(crate) fn slice_mut(&mut self) -> &mut [T] {
        self.0.as_mut_slice().expect("its type was asked for before")
    }

    pub(crate) fn into_tensor<const D: usize>(self, device: &Device) -> Tensor<D> {
        Tensor::from_data(self.0, (device, T::dtype()))
    }
}

/// `f` of blocks of two tensors of one shape, over the first: over its own memory if nobody else has it.
pub(crate) fn over_first<T: ProductElement, const D: usize>(
    a: Tensor<D>,
    b: Tensor<D>,
    f: impl Fn(&mut [T], &[T]) + Sync,
) -> Tensor<D> {
    /// Elements of a task.
    const BLOCK: usize = 1 << 13;
    let device = a.device();
    let (mut a, b) = (Owned::<T>::take(a), View::<T>::new(b));
    for_blocks(a.slice_mut(), BLOCK, |block, a| f(a, &b.slice()[block * BLOCK..][..a.len()]));
    a.into_tensor(&device)
}

/// A tensor of these elements.
pub(crate) fn tensor<T: ProductElement, const D: usize>(
    values: Vec<T>,
    shape: [usize; D],
    device: &Device,
) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), (device, T::dtype()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::product::product;

    #[test]
    fn a_dim_of_one_element_may_have_any_stride() {
        let x = Tensor::<3>::from_floats([[[1.0, 2.0, 3.0, 4.0, 5.0]]], &Device::flex());
        let pixels = View::of_matrices(x.clone().permute([2, 0, 1]));
        let values = pixels.matrices().flat_map(|pixel| product(pixel, Matrix::new(&[1.0], [1, 1])).values());
        assert_eq!(values.collect::<Vec<f32>>(), [1.0, 2.0, 3.0, 4.0, 5.0]);
        let state = x.clone().reshape([1, 5]).transpose();
        let view = View::<f32>::of_rows(state);
        assert_eq!((0..5).map(|row| view.matrix().row(row)[0]).collect::<Vec<_>>(), [1.0, 2.0, 3.0, 4.0, 5.0]);
        let steps = x.reshape([1, 5]).slice_dim(1, burn::tensor::Slice::new(0, Some(5), 4));
        let view = View::<f32>::of_rows(steps);
        assert_eq!(view.matrix().row(0), [1.0, 5.0]);
    }

    #[test]
    fn a_part_of_nothing_is_empty() {
        let x = Tensor::<2>::zeros([0, 6], &Device::flex()).slice_dim(1, 2..5);
        assert!(View::<f32>::new(x.clone()).slice().is_empty());
        assert_eq!(View::<f32>::of_rows(x.clone().flip([1])).matrix().sizes(), [0, 3]);
        assert_eq!(View::<f32>::of_matrices(x.transpose()).matrix().sizes(), [3, 0]);
    }
}
