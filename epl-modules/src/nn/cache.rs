//! What layers keep between the steps of generation: `burn::nn::cache`.

use burn::tensor::Tensor;

/// The result of a layer for the positions of a sequence so far, or for a memory.
pub struct TensorCache<const D: usize> {
    state: Option<Tensor<D>>,
}

impl<const D: usize> TensorCache<D> {
    /// An empty cache.
    pub fn empty() -> Self {
        Self { state: None }
    }

    /// `layer` of a sequence, of which it held all positions but the last, or none. They lie along `dim` of the result.
    pub(super) fn forward_autoregressive(
        &mut self,
        x: Tensor<3>,
        dim: usize,
        layer: impl Fn(Tensor<3>) -> Tensor<D>,
    ) -> Tensor<D> {
        let all = match self.state.take() {
            Some(old) => {
                let last = x.dims()[1] - 1;
                Tensor::cat(vec![old, layer(x.narrow(1, last, 1))], dim)
            }
            None => layer(x),
        };
        self.state.insert(all).clone()
    }

    /// `layer` of what stays the same, computed once.
    pub(super) fn forward_full(&mut self, x: Tensor<3>, layer: impl Fn(Tensor<3>) -> Tensor<D>) -> Tensor<D> {
        self.state.get_or_insert_with(|| layer(x)).clone()
    }
}

/// A layer of all positions, with its cache where there is one.
pub(super) fn through(
    cache: Option<&mut TensorCache<3>>,
    x: Tensor<3>,
    layer: impl Fn(Tensor<3>) -> Tensor<3>,
) -> Tensor<3> {
    match cache {
        Some(cache) => cache.forward_autoregressive(x, 1, layer),
        None => layer(x),
    }
}
