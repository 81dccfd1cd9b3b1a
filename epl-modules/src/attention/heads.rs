//! What attention is over, and the gradients of it.

use burn::tensor::Tensor;

/// What is attended over.
pub(super) struct Inputs {
    pub query: Tensor<4>,
    pub key: Tensor<4>,
    pub value: Tensor<4>,
    pub bias: Option<Tensor<4>>,
}

/// The gradients of the inputs; none of the bias where none is asked for.
pub(super) struct Gradients {
    pub query: Tensor<4>,
    pub key: Tensor<4>,
    pub value: Tensor<4>,
    pub bias: Option<Tensor<4>>,
}

impl Inputs {
    /// `[batch_size, heads, queries, keys]`
    pub fn pairs(&self) -> [usize; 4] {
        let ([batch_size, heads, queries, _], [.., keys, _]) = (self.query.dims(), self.key.dims());
        [batch_size, heads, queries, keys]
    }

    /// The numbers of a key, and of a value.
    pub fn widths(&self) -> [usize; 2] {
        [self.key.dims()[3], self.value.dims()[3]]
    }
}
