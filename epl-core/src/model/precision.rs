//! Mixed precision: casts of parameters and carries to 16 bits, and back.
//!
//! ```text
//! parameter f32 ──┬── stays: declared by its layer ──────────▶ the layer computes in f32
//!                 └── leaf in 16 bits ──▶ products ──▶ gradient in 16 bits ──▶ gradient f32
//! carry ─────────────▶ in 16 bits, but for what has one dim: sums for the loss
//! batch ─────────────▶ in 16 bits, where its type is known; the loss gets it as it is
//! ```
//!
//! A segment all of whose parameters stay in f32 computes in f32, and gets its carry and the batch so.
//!
//! Only f32 is cast: who chose f64 wants its digits. What a layer computes in f32 all the same, its crate says.

use burn::tensor::{DType, Tensor};

use crate::config::HalfDtype;
use crate::model::carry::{Carry, CarryMapper};

pub use super::cast::cast;

/// The type in which a sum or a formula over values of `dtype` is computed: f32 at least.
pub fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Computes a formula over a tensor in f32 at least. The result returns to the tensor's type: it is rounded once, and the
/// numbers in the formula not at all.
pub fn in_wide<const D: usize, const E: usize>(
    x: Tensor<D>,
    formula: impl FnOnce(Tensor<D>) -> Tensor<E>,
) -> Tensor<E> {
    let dtype = x.dtype();
    cast(formula(widen(x)), dtype)
}

/// The 16-bit type in which a run computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfPrecision {
    choice: HalfDtype,
    dtype: DType,
}

impl HalfPrecision {
    /// Computes in this type.
    pub fn new(dtype: HalfDtype) -> Self {
        let element = match dtype {
            HalfDtype::F16 => DType::F16,
            HalfDtype::Bf16 => DType::BF16,
        };
        Self { choice: dtype, dtype: element }
    }

    /// What casts a batch to f64 as others cast it to 16 bits: for segments that are compared, and not trained.
    pub(crate) fn in_f64() -> Self {
        Self { dtype: DType::F64, ..Self::new(HalfDtype::Bf16) }
    }

    /// The type as the configuration has it.
    pub fn choice(self) -> HalfDtype {
        self.choice
    }

    /// The element type.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// The carry with its f32 tensors in 16 bits, as operations of the graph that they are in. Tensors of one dim stay:
    /// they are sums on their way to the loss, and would lose digits at every boundary.
    pub fn carry<C: Carry>(self, carry: C) -> C {
        carry.map(&mut Narrow(self.dtype))
    }
}

/// A carry with its 16-bit tensors in f32, as operations of the graph that they are in.
pub(crate) fn widen_carry<C: Carry>(carry: C) -> C {
    carry.map(&mut Widen)
}

/// A tensor, such as the gradient of a leaf in 16 bits, in f32 at least.
pub fn widen<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    let dtype = wide(tensor.dtype());
    cast(tensor, dtype)
}

struct Narrow(DType);

impl CarryMapper for Narrow {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        if D > 1 && tensor.dtype() == DType::F32 { cast(tensor, self.0) } else { tensor }
    }
}

struct Widen;

impl CarryMapper for Widen {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        widen(tensor)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::carry;

    const TYPES: [(HalfDtype, DType); 2] = [(HalfDtype::F16, DType::F16), (HalfDtype::Bf16, DType::BF16)];

    #[derive(Clone, Debug)]
    struct Pass {
        hidden: Tensor<2>,
        bias: Option<Tensor<3>>,
        loss: Tensor<1>,
    }

    carry!(Pass { hidden, bias, loss });

    #[test]
    fn a_carry_is_cast_but_for_its_sums_and_its_gradient_returns_in_its_own_type() {
        let device = Device::default().autodiff();
        for (half, dtype) in TYPES {
            let hidden = Tensor::<2>::ones([2, 2], &device).require_grad();
            let bias = Some(Tensor::ones([1, 1, 2], &device));
            let pass = Pass { hidden: hidden.clone(), bias, loss: Tensor::full([1], 70_001.0, &device) };
            let cast = HalfPrecision::new(half).carry(pass);
            assert_eq!((cast.hidden.dtype(), cast.loss.dtype()), (dtype, DType::F32));
            assert_eq!(cast.loss.clone().into_data().iter::<f64>().collect::<Vec<_>>(), [70_001.0]);
            let back = widen_carry(cast);
            assert_eq!(back.bias.map(|bias| bias.dtype()), Some(DType::F32));
            let gradients = back.hidden.sum().backward();
            assert_eq!(hidden.grad(&gradients).map(|gradient| gradient.dtype()), Some(DType::F32));
        }
    }

    #[test]
    fn sixty_four_bits_stay() {
        let x = Tensor::<2>::ones([1, 1], (&Device::default(), DType::F64));
        assert_eq!(HalfPrecision::new(HalfDtype::F16).carry(x.clone()).dtype(), DType::F64);
        assert_eq!((widen(x).dtype(), wide(DType::BF16)), (DType::F64, DType::F32));
    }
}
