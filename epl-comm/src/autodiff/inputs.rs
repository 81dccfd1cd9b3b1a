//! The inputs of a custom operation: tuples of one to four tensors, each of its own number of dims.

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;

mod sealed {
    pub trait Sealed {}
}

/// A tuple of `N` float tensors, each with its own number of dims. Implemented for tuples of one to four.
pub trait VjpInputs<const N: usize>: sealed::Sealed + Sized {
    /// An optional tensor for each input.
    type Gradients;

    #[doc(hidden)]
    fn into_array(self) -> [DispatchTensor; N];

    #[doc(hidden)]
    fn from_array(tensors: [DispatchTensor; N]) -> Self;

    #[doc(hidden)]
    fn gradients(gradients: Self::Gradients) -> [Option<DispatchTensor>; N];
}

macro_rules! inputs {
    ($count:literal: $($dims:ident $tensor:ident),+) => {
        impl<$(const $dims: usize),+> sealed::Sealed for ($(Tensor<$dims>,)+) {}

        impl<$(const $dims: usize),+> VjpInputs<$count> for ($(Tensor<$dims>,)+) {
            type Gradients = ($(Option<Tensor<$dims>>,)+);

            fn into_array(self) -> [DispatchTensor; $count] {
                let ($($tensor,)+) = self;
                [$($tensor.into_dispatch()),+]
            }

            fn from_array(tensors: [DispatchTensor; $count]) -> Self {
                let [$($tensor),+] = tensors;
                ($(Tensor::from_dispatch($tensor),)+)
            }

            fn gradients(gradients: Self::Gradients) -> [Option<DispatchTensor>; $count] {
                let ($($tensor,)+) = gradients;
                [$($tensor.map(|gradient| gradient.inner().into_dispatch())),+]
            }
        }
    };
}

inputs!(1: A a);
inputs!(2: A a, B b);
inputs!(3: A a, B b, C c);
inputs!(4: A a, B b, C c, D d);
