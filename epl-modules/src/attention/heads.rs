//! What attention is over, and the gradients of it.

use burn::tensor::Tensor;

/// What is attended over. Keys and values may have fewer heads than queries: heads of queries that follow each other share one.
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

    /// How many sequences that follow each other have biases of their own, after which the biases begin anew.
    pub fn biased(&self) -> usize {
        self.bias.as_ref().map_or(1, |bias| bias.dims()[0])
    }

    /// The gradients where there is no query or no key.
    pub fn zeros(&self, asks_bias: bool) -> Gradients {
        let [query, key, value] = [&self.query, &self.key, &self.value].map(Tensor::zeros_like);
        Gradients { query, key, value, bias: self.bias.as_ref().filter(|_| asks_bias).map(Tensor::zeros_like) }
    }

    /// How many heads of queries share one of keys and values.
    pub fn shared(&self) -> usize {
        self.query.dims()[1] / self.key.dims()[1]
    }
}

/// The rows of heads that share keys as those of one head: `[batch_size, heads, queries, n]` to
/// `[batch_size, heads / shared, shared * queries, n]`.
pub(super) fn joined(x: Tensor<4>, shared: usize) -> Tensor<4> {
    let [batch_size, heads, queries, n] = x.dims();
    if shared == 1 { x } else { x.reshape([batch_size, heads / shared, shared * queries, n]) }
}

/// What [`joined`] has joined, apart.
pub(super) fn apart(x: Tensor<4>, shared: usize) -> Tensor<4> {
    let [batch_size, heads, queries, n] = x.dims();
    if shared == 1 { x } else { x.reshape([batch_size, heads * shared, queries / shared, n]) }
}
