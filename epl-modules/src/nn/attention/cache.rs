//! What attention keeps between the steps of generation.

use burn::tensor::Tensor;

use crate::nn::cache::TensorCache;

/// The projections of one [`MultiHeadAttention`](super::MultiHeadAttention), of this rank's heads, and its output. Use one
/// cache a layer and a generation.
pub struct MhaCache {
    pub(super) query: LinearCache<4>,
    pub(super) key: LinearCache<4>,
    pub(super) value: LinearCache<4>,
    pub(super) output: LinearCache<3>,
}

/// The result of one linear layer.
pub(super) enum LinearCache<const D: usize> {
    /// Of positions that grow along this dim.
    Growing(TensorCache<D>, usize),
    /// Of a memory.
    Fixed(TensorCache<D>),
}

impl MhaCache {
    /// Of attention to the own positions.
    pub fn autoregressive() -> Self {
        Self {
            query: LinearCache::Growing(TensorCache::empty(), 2),
            key: LinearCache::Growing(TensorCache::empty(), 2),
            value: LinearCache::Growing(TensorCache::empty(), 2),
            output: LinearCache::Growing(TensorCache::empty(), 1),
        }
    }

    /// Of attention to a memory, which stays the same.
    pub fn autoregressive_cross_attention() -> Self {
        Self {
            key: LinearCache::Fixed(TensorCache::empty()),
            value: LinearCache::Fixed(TensorCache::empty()),
            ..Self::autoregressive()
        }
    }
}

impl<const D: usize> LinearCache<D> {
    pub(super) fn forward(&mut self, x: Tensor<3>, layer: impl Fn(Tensor<3>) -> Tensor<D>) -> Tensor<D> {
        match self {
            Self::Growing(cache, dim) => cache.forward_autoregressive(x, *dim, layer),
            Self::Fixed(cache) => cache.forward_full(x, layer),
        }
    }
}
