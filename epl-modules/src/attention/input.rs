//! What attention attends to, and what it may not see.

use burn::tensor::{Bool, Tensor};

use crate::linear::Operand;

/// The input of [`MultiHeadAttention`](super::MultiHeadAttention).
///
/// Both tensors may be plain or [`Copied`](epl_comm::Copied); a memory that many layers attend to is best copied
/// once, so that its gradient is reduced once.
#[derive(Clone, Debug)]
pub struct AttentionInput {
    /// `[batch_size, queries, d_model]`
    pub(super) query: Operand<3>,
    /// `[batch_size, keys, d_model]`; the query itself if there is none.
    pub(super) memory: Option<Operand<3>>,
    pub(super) padding: Option<Tensor<2, Bool>>,
    pub(super) causal: bool,
    pub(super) bias: Option<Tensor<4>>,
    /// The sequences of a sample.
    pub(super) windows: usize,
}

impl AttentionInput {
    /// Every position attends to every position of the same sequence.
    ///
    /// # Shapes
    ///
    /// - query: `[batch_size, seq_length, d_model]`
    pub fn self_attention(query: impl Into<Operand<3>>) -> Self {
        Self { query: query.into(), memory: None, padding: None, causal: false, bias: None, windows: 1 }
    }

    /// Every position attends to every position of another sequence.
    ///
    /// # Shapes
    ///
    /// - query: `[batch_size, seq_length_1, d_model]`
    /// - memory: `[batch_size, seq_length_2, d_model]`
    pub fn cross_attention(query: impl Into<Operand<3>>, memory: impl Into<Operand<3>>) -> Self {
        Self { memory: Some(memory.into()), ..Self::self_attention(query) }
    }

    /// The key positions that are padding, of all that are attended to (with a cache: the cached ones too).
    /// A query that sees no key at all gets zeros.
    ///
    /// # Shapes
    ///
    /// - padding: `[batch_size, keys]`, true where a key is padding
    #[must_use]
    pub fn with_padding(mut self, padding: Tensor<2, Bool>) -> Self {
        self.padding = Some(padding);
        self
    }

    /// A position does not attend to later ones, and in a layer with a [window](super::MultiHeadAttentionConfig::window) not to
    /// those that are too far before it. The last query stands at the last key, so that with a cache the new positions follow the
    /// cached ones.
    #[must_use]
    pub fn causal(mut self) -> Self {
        self.causal = true;
        self
    }

    /// A bias that is added to the scores of this rank's heads, behind their softcap, such as that of a
    /// [`RelativeBias`](super::RelativeBias).
    ///
    /// # Shapes
    ///
    /// - bias: `[1 or batch_size, local heads, queries, keys]`; of [windows](Self::in_windows) also one for each of a sample's
    #[must_use]
    pub fn with_bias(mut self, bias: Tensor<4>) -> Self {
        self.bias = Some(bias);
        self
    }

    /// The sequences are windows of samples, so many of each, one after the other: see [`Windows`](super::Windows).
    #[must_use]
    pub fn in_windows(mut self, windows: usize) -> Self {
        self.windows = windows;
        self
    }

    /// What it says of keys, without the first so many, which a cache has forgotten.
    pub(super) fn without_first(mut self, forgotten: usize) -> Self {
        if forgotten > 0 {
            self.padding = self.padding.map(|padding| padding.slice_dim(1, forgotten..));
            self.bias = self.bias.map(|bias| bias.slice_dim(3, forgotten..));
        }
        self
    }
}
