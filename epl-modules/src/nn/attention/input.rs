//! What attention attends to, what it may not see, and what it gives.

use burn::tensor::{Bool, Tensor};

/// The input of [`MultiHeadAttention`](super::MultiHeadAttention).
#[derive(Debug, Clone)]
pub struct MhaInput {
    /// `[batch_size, seq_length_1, d_model]`
    pub(super) query: Tensor<3>,
    /// `[batch_size, seq_length_2, d_model]`; the query if there is none.
    pub(super) key: Option<Tensor<3>>,
    /// `[batch_size, seq_length_2, d_model]`; the key if there is none.
    pub(super) value: Option<Tensor<3>>,
    pub(super) mask_pad: Option<Tensor<2, Bool>>,
    pub(super) mask_attn: Option<Tensor<3, Bool>>,
}

impl MhaInput {
    /// Every position attends to every position of the same sequence.
    ///
    /// # Shapes
    ///
    /// - tensor: `[batch_size, seq_length, d_model]`
    pub fn self_attn(tensor: Tensor<3>) -> Self {
        Self { query: tensor, key: None, value: None, mask_pad: None, mask_attn: None }
    }

    /// Every query attends to every key.
    ///
    /// # Shapes
    ///
    /// - query: `[batch_size, seq_length_1, d_model]`
    /// - key, value: `[batch_size, seq_length_2, d_model]`
    pub fn new(query: Tensor<3>, key: Tensor<3>, value: Tensor<3>) -> Self {
        Self { key: Some(key), value: Some(value), ..Self::self_attn(query) }
    }

    /// Every position attends to every position of a memory, whose gradient over ranks is then reduced once.
    ///
    /// # Shapes
    ///
    /// - query: `[batch_size, seq_length_1, d_model]`
    /// - memory: `[batch_size, seq_length_2, d_model]`
    pub fn cross_attn(query: Tensor<3>, memory: Tensor<3>) -> Self {
        Self { key: Some(memory), ..Self::self_attn(query) }
    }

    /// The keys that are padding.
    ///
    /// # Shapes
    ///
    /// - mask_pad: `[batch_size, seq_length_2]`, true at padding
    #[must_use]
    pub fn mask_pad(mut self, mask_pad: Tensor<2, Bool>) -> Self {
        self.mask_pad = Some(mask_pad);
        self
    }

    /// The pairs of which the query does not see the key.
    ///
    /// # Shapes
    ///
    /// - mask_attn: `[batch_size, seq_length_1, seq_length_2]`
    #[must_use]
    pub fn mask_attn(mut self, mask_attn: Tensor<3, Bool>) -> Self {
        self.mask_attn = Some(mask_attn);
        self
    }

    /// With these masks, where there are any.
    pub(in crate::nn) fn masked(self, mask_pad: Option<Tensor<2, Bool>>, mask_attn: Option<Tensor<3, Bool>>) -> Self {
        Self { mask_pad, mask_attn, ..self }
    }
}

/// What [`MultiHeadAttention`](super::MultiHeadAttention) gives.
#[derive(Debug, Clone)]
pub struct MhaOutput {
    /// The weights of all heads, after dropout: `[batch_size, n_heads, seq_length_1, seq_length_2]`
    pub weights: Tensor<4>,
    /// `[batch_size, seq_length_1, d_model]`
    pub context: Tensor<3>,
}
