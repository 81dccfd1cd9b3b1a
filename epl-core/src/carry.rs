//! What crosses the boundary between two segments.

use burn::tensor::Tensor;

/// The float tensors that cross the boundary between two segments.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::{Carry, CarryMapper};
/// #[derive(Clone)]
/// struct Hidden { states: Tensor<3>, memory: Option<Tensor<3>> }
///
/// impl Carry for Hidden {
///     fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
///         Self { states: mapper.float(self.states), memory: self.memory.map(|memory| mapper.float(memory)) }
///     }
/// }
/// ```
pub trait Carry: Sized + Clone + Send {
    /// Hands every tensor to `mapper`, always in the same order.
    #[must_use]
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self;
}

/// Does something with each tensor of a [`Carry`].
pub trait CarryMapper {
    /// Maps one tensor.
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D>;
}

impl Carry for () {
    fn map<M: CarryMapper>(self, _mapper: &mut M) -> Self {}
}

impl<const D: usize> Carry for Tensor<D> {
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
        mapper.float(self)
    }
}

impl<C: Carry> Carry for Option<C> {
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
        match self {
            Some(carry) => Some(carry.map(mapper)),
            None => None,
        }
    }
}

impl<C: Carry> Carry for Vec<C> {
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
        self.into_iter().map(|carry| Carry::map(carry, mapper)).collect()
    }
}

impl<A: Carry, B: Carry> Carry for (A, B) {
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
        (self.0.map(mapper), self.1.map(mapper))
    }
}

impl<A: Carry, B: Carry, C: Carry> Carry for (A, B, C) {
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
        (self.0.map(mapper), self.1.map(mapper), self.2.map(mapper))
    }
}
