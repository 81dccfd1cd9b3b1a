//! Mixed precision: casts of parameters and carries to 16 bits, and back.
//!
//! ```text
//! parameter f32 ──┬── stays: declared by its layer ──────────▶ the layer computes in f32
//!                 └── leaf in 16 bits ──▶ products ──▶ gradient in 16 bits ──▶ gradient f32
//! carry ─────────────▶ in 16 bits, but for what has one dim: sums for the loss
//! ```
//!
//! Only f32 is cast: who chose f64 wants its digits. What a layer computes in f32 all the same, its crate says.

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{DType, FloatDType, Tensor};

use crate::carry::{Carry, CarryMapper};
use crate::config::HalfDtype;

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
    formula(widen(x)).cast(dtype)
}

/// The 16-bit type in which a run computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfPrecision(HalfDtype);

impl HalfPrecision {
    /// Computes in this type.
    pub fn new(dtype: HalfDtype) -> Self {
        Self(dtype)
    }

    /// The type as the configuration has it.
    pub fn choice(self) -> HalfDtype {
        self.0
    }

    /// The element type.
    pub fn dtype(self) -> DType {
        match self.0 {
            HalfDtype::F16 => DType::F16,
            HalfDtype::Bf16 => DType::BF16,
        }
    }

    /// The model with leaves in 16 bits in place of its f32 parameters: graphs of their own, with the same identifiers,
    /// which ask for gradients where the parameters do. Those that stay are the model's own leaves.
    ///
    /// It must not be kept beyond the update of the parameters, and the gradients of its leaves are in 16 bits: see
    /// [`widen`]. Running statistics that a layer updates stay its own.
    pub fn model<M: Module>(self, model: &M, stays: impl Fn(ParamId) -> bool) -> M {
        model.clone().map(&mut Leaves { dtype: self.float(), stays, path: Vec::new() })
    }

    /// The carry with its f32 tensors in 16 bits, as operations of the graph that they are in. Tensors of one dim stay:
    /// they are sums on their way to the loss, and would lose digits at every boundary.
    pub fn carry<C: Carry>(self, carry: C) -> C {
        carry.map(&mut Narrow(self.float()))
    }

    fn float(self) -> FloatDType {
        self.dtype().into()
    }
}

/// A carry with its 16-bit tensors in f32, as operations of the graph that they are in.
pub fn widen_carry<C: Carry>(carry: C) -> C {
    carry.map(&mut Widen)
}

/// A tensor, such as the gradient of a leaf in 16 bits, in f32 at least.
pub fn widen<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    let dtype = wide(tensor.dtype());
    tensor.cast(dtype)
}

struct Narrow(FloatDType);

impl CarryMapper for Narrow {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        if D > 1 && tensor.dtype() == DType::F32 { tensor.cast(self.0) } else { tensor }
    }
}

struct Widen;

impl CarryMapper for Widen {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        widen(tensor)
    }
}

/// Puts a leaf in the place of each parameter.
struct Leaves<F> {
    dtype: FloatDType,
    stays: F,
    /// The types of the layers around, and the names of their fields.
    path: Vec<(String, String)>,
}

impl<F> Leaves<F> {
    /// Burn's running statistics. They pass through a mapper like a parameter, but what it returns is written into the
    /// state that clones of the layer share. Of our own layers they are declared to stay.
    fn is_running_state(&self) -> bool {
        let last = self.path.last();
        last.is_some_and(|(container, field)| container == "Struct:BatchNorm" && field.starts_with("running_"))
    }
}

impl<F: Fn(ParamId) -> bool> ModuleMapper for Leaves<F> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.path.push((container_type.to_string(), name.to_string()));
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if (self.stays)(param.id) || self.is_running_state() || param.base().dtype() != DType::F32 {
            return param;
        }
        param.map(|tensor| leaf(tensor, self.dtype))
    }
}

/// A leaf with the values of another, which asks for a gradient if the other does.
fn leaf<const D: usize>(tensor: Tensor<D>, dtype: FloatDType) -> Tensor<D> {
    if !tensor.is_autodiff() {
        return tensor.cast(dtype);
    }
    let asks = tensor.is_require_grad();
    let values = tensor.detach().set_require_grad(false).cast(dtype).detach();
    if asks { values.require_grad() } else { values }
}

#[cfg(test)]
mod tests {
    use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
    use burn::tensor::Device;

    use super::*;
    use crate::carry;

    const TYPES: [(HalfDtype, DType); 2] = [(HalfDtype::F16, DType::F16), (HalfDtype::Bf16, DType::BF16)];

    #[derive(Module, Debug)]
    struct Net {
        first: Linear,
        norm: BatchNorm,
        frozen: Linear,
    }

    impl Net {
        fn new(device: &Device) -> Self {
            let linear = || LinearConfig::new(3, 3).init(device);
            Self { first: linear(), norm: BatchNormConfig::new(3).init(device), frozen: linear().no_grad() }
        }
    }

    #[test]
    fn parameters_become_leaves_of_the_same_names_but_for_those_that_stay() {
        let net = Net::new(&Device::default().autodiff());
        let bias = net.first.bias.as_ref().expect("it has one").id;
        for (half, dtype) in TYPES {
            let cast = HalfPrecision::new(half).model(&net, |id| id == bias);
            let (weight, own) = (&cast.first.weight, &net.first.weight);
            assert_eq!((weight.id, weight.val().dtype(), own.val().dtype()), (own.id, dtype, DType::F32));
            assert_eq!(cast.first.bias.as_ref().map(|bias| bias.val().dtype()), Some(DType::F32));
            assert!(weight.val().is_require_grad() && !cast.frozen.weight.val().is_require_grad());
            assert_eq!(cast.frozen.weight.val().dtype(), dtype);
            // The state is one for both models.
            assert_eq!(cast.norm.running_mean.value().dtype(), DType::F32);
            assert_eq!(net.norm.running_var.value().dtype(), DType::F32);
        }
    }

    #[test]
    fn gradients_come_to_the_leaves_and_to_what_stayed() {
        let device = Device::default().autodiff();
        let net = Net::new(&device);
        let bias = net.first.bias.as_ref().expect("it has one");
        let cast = HalfPrecision::new(HalfDtype::Bf16).model(&net, |id| id == bias.id);
        let (weight, kept) = (cast.first.weight.val(), cast.first.bias.as_ref().expect("it has one").val());
        let x = Tensor::<2>::ones([2, 3], &device).cast(DType::BF16);
        let y = x.matmul(weight.clone()).cast(DType::F32) + kept.unsqueeze();
        let gradients = y.sum().backward();
        let found = weight.grad(&gradients).expect("a leaf has one");
        assert_eq!(found.dtype(), DType::BF16);
        assert_eq!(widen(found).into_data().iter::<f64>().collect::<Vec<_>>(), [2.0; 9]);
        let found = bias.val().grad(&gradients).expect("what stays is the model's own leaf");
        assert_eq!(found.into_data().iter::<f64>().collect::<Vec<_>>(), [2.0; 3]);
        assert!(net.first.weight.val().grad(&gradients).is_none());
    }

    #[test]
    fn without_autodiff_there_is_nothing_to_track() {
        let net = Net::new(&Device::default());
        let cast = HalfPrecision::new(HalfDtype::F16).model(&net, |_| false);
        assert_eq!(cast.first.weight.val().dtype(), DType::F16);
    }

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
