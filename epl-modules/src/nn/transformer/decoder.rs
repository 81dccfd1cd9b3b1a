//! A transformer decoder.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::Initializer;
use burn::tensor::{Bool, Tensor};
use epl_core::Place;

use super::encoder::Masks;
use super::feed_forward::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
use crate::dropout::{Dropout, DropoutConfig};
use crate::linear::default_initializer;
use crate::nn::activation::ActivationConfig;
use crate::nn::attention::{MhaCache, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use crate::nn::cache::{TensorCache, through};
use crate::norm::{LayerNorm, LayerNormConfig};
use crate::residual;

/// Configuration to create a [`TransformerDecoder`] using the [init function](TransformerDecoderConfig::init).
#[derive(Config, Debug)]
pub struct TransformerDecoderConfig {
    /// The size of the input and output features.
    pub d_model: usize,
    /// The size of the hidden features of the feed-forward networks, over all ranks.
    pub d_ff: usize,
    /// The number of heads, over all ranks.
    pub n_heads: usize,
    /// The number of layers.
    pub n_layers: usize,
    /// The dropout probability of attention weights, of hidden features, and of what every part adds. Default: 0.1
    #[config(default = 0.1)]
    pub dropout: f64,
    /// Whether norms stand before the parts, and not after them. Default: false
    #[config(default = false)]
    pub norm_first: bool,
    /// Whether a query may attend to nothing. Default: false
    #[config(default = false)]
    pub quiet_softmax: bool,
    /// How the parameters get their first values. Default: as Burn's
    #[config(default = "default_initializer()")]
    pub initializer: Initializer,
    /// The function inside the feed-forward networks. Default: GELU
    #[config(default = "ActivationConfig::Gelu")]
    pub activation: ActivationConfig,
    /// A value required for numerical stability of the norms. Default: 1e-5
    #[config(default = 1e-5)]
    pub layer_norm_eps: f64,
}

/// Burn's `TransformerDecoder`: layers of attention to the own positions, attention to a memory, and a feed-forward network, split by heads and
/// features.
///
/// See [Attention is all you need](https://arxiv.org/abs/1706.03762). Should be created with [`TransformerDecoderConfig`].
///
/// ```
/// # use burn::tensor::{Bool, Tensor};
/// # use epl_core::testing;
/// use epl_modules::nn::{attention::generate_autoregressive_mask, transformer::*};
///
/// testing::run((1, 2, 1), |epl| {
///     let device = epl.place().device();
///     let decoder = TransformerDecoderConfig::new(16, 32, 4, 2).init(&epl.place().child("decoder"));
///     let (target, memory) = (Tensor::<3>::ones([2, 5, 16], device), Tensor::<3>::ones([2, 3, 16], device));
///     let padding = Tensor::<2, Bool>::from_data([[false, false, false], [false, false, true]], device);
///     let input = TransformerDecoderInput::new(target, memory)
///         .target_mask_attn(generate_autoregressive_mask(2, 5, device))
///         .memory_mask_pad(padding);
///     assert_eq!(decoder.forward(input).dims(), [2, 5, 16]);
/// #     Ok(())
/// });
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct TransformerDecoder {
    /// The layers.
    pub layers: Vec<TransformerDecoderLayer>,
    /// The size of the input and output features.
    pub d_model: usize,
    /// The size of the hidden features of the feed-forward networks, over all ranks.
    pub d_ff: usize,
    /// The number of heads, over all ranks.
    pub n_heads: usize,
    /// The number of layers.
    pub n_layers: usize,
    /// The dropout probability.
    pub dropout: f64,
    /// Whether norms stand before the parts, and not after them.
    pub norm_first: bool,
    /// Whether a query may attend to nothing.
    pub quiet_softmax: bool,
}

/// The input of a [`TransformerDecoder`].
#[derive(Debug)]
pub struct TransformerDecoderInput {
    target: Tensor<3>,
    target_masks: Masks,
    memory: Tensor<3>,
    memory_masks: Masks,
}

impl TransformerDecoderInput {
    /// Every position sees every position of the same sequence, and of the memory.
    ///
    /// # Shapes
    ///
    /// - target: `[batch_size, seq_length, d_model]`
    /// - memory: `[batch_size, memory_length, d_model]`
    pub fn new(target: Tensor<3>, memory: Tensor<3>) -> Self {
        Self { target, target_masks: (None, None), memory, memory_masks: (None, None) }
    }

    /// The positions of the memory that are padding: `[batch_size, memory_length]`, true at padding.
    #[must_use]
    pub fn memory_mask_pad(mut self, mask_pad: Tensor<2, Bool>) -> Self {
        self.memory_masks.0 = Some(mask_pad);
        self
    }

    /// The pairs of which a position does not see one of the memory: `[batch_size, seq_length, memory_length]`.
    #[must_use]
    pub fn memory_mask_attn(mut self, mask_attn: Tensor<3, Bool>) -> Self {
        self.memory_masks.1 = Some(mask_attn);
        self
    }

    /// The own positions that are padding: `[batch_size, seq_length]`, true at padding.
    #[must_use]
    pub fn target_mask_pad(mut self, mask_pad: Tensor<2, Bool>) -> Self {
        self.target_masks.0 = Some(mask_pad);
        self
    }

    /// The pairs of own positions of which the first does not see the second: `[batch_size, seq_length, seq_length]`.
    #[must_use]
    pub fn target_mask_attn(mut self, mask_attn: Tensor<3, Bool>) -> Self {
        self.target_masks.1 = Some(mask_attn);
        self
    }
}

impl TransformerDecoderConfig {
    /// Initializes a new [`TransformerDecoder`].
    ///
    /// # Errors
    ///
    /// As [`MultiHeadAttentionConfig::init`] and
    /// [`PositionWiseFeedForwardConfig::init`].
    pub fn init(&self, place: &Place) -> TransformerDecoder {
        let place = place.child("layers");
        let layer = |index: usize| TransformerDecoderLayer::new(self, &place.child(&index.to_string()));
        TransformerDecoder {
            layers: (0..self.n_layers).map(layer).collect(),
            d_model: self.d_model,
            d_ff: self.d_ff,
            n_heads: self.n_heads,
            n_layers: self.n_layers,
            dropout: self.dropout,
            norm_first: self.norm_first,
            quiet_softmax: self.quiet_softmax,
        }
    }

    fn heads(&self, place: &Place) -> MultiHeadAttention {
        MultiHeadAttentionConfig::new(self.d_model, self.n_heads)
            .with_initializer(self.initializer.clone())
            .with_dropout(self.dropout)
            .with_quiet_softmax(self.quiet_softmax)
            .init(place)
    }

    fn feed_forward(&self, place: &Place) -> PositionWiseFeedForward {
        PositionWiseFeedForwardConfig::new(self.d_model, self.d_ff)
            .with_initializer(self.initializer.clone())
            .with_dropout(self.dropout)
            .with_activation(self.activation.clone())
            .init(place)
    }

    fn norm(&self, place: &Place) -> LayerNorm {
        LayerNormConfig::new(self.d_model).with_epsilon(self.layer_norm_eps).init(place)
    }
}

impl TransformerDecoder {
    /// Applies the layers.
    ///
    /// # Shapes
    ///
    /// - output: `[batch_size, seq_length, d_model]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a shape is another, or a peer fails.
    pub fn forward(&self, input: TransformerDecoderInput) -> Tensor<3> {
        self.layers.iter().fold(input, |input, layer| layer.forward(input)).target
    }

    /// Applies the layers to a sequence, of which all positions but the last were in earlier calls. The memory is read in the
    /// first one.
    ///
    /// ```
    /// # use burn::tensor::Tensor;
    /// # use epl_core::testing;
    /// # use epl_modules::nn::transformer::{TransformerDecoderConfig, TransformerDecoderInput};
    /// # testing::run((1, 2, 1), |epl| {
    /// #     let device = epl.place().device();
    /// #     let decoder = TransformerDecoderConfig::new(16, 32, 4, 2).init(&epl.place().child("decoder"));
    /// #     let memory = Tensor::<3>::ones([1, 3, 16], device);
    /// let mut written = Tensor::<3>::ones([1, 1, 16], device); // vectors in place of tokens
    /// let mut cache = decoder.new_autoregressive_cache();
    /// for _ in 0..4 {
    ///     let input = TransformerDecoderInput::new(written.clone(), memory.clone());
    ///     let output = decoder.forward_autoregressive_inference(input, &mut cache);
    ///     let next = output.slice_dim(1, -1..); // the last position is what is new
    ///     written = Tensor::cat(vec![written, next], 1);
    /// }
    /// assert_eq!(written.dims(), [1, 5, 16]);
    /// #     Ok(())
    /// # });
    /// ```
    ///
    /// # Shapes
    ///
    /// As [`forward`](Self::forward): the whole sequence.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn forward_autoregressive_inference(
        &self,
        input: TransformerDecoderInput,
        cache: &mut TransformerDecoderAutoregressiveCache,
    ) -> Tensor<3> {
        let layers = self.layers.iter().zip(&mut cache.layers);
        layers.fold(input, |input, (layer, cache)| layer.forward_autoregressive_inference(input, cache)).target
    }

    /// An empty cache of its layers.
    pub fn new_autoregressive_cache(&self) -> TransformerDecoderAutoregressiveCache {
        let layers = self.layers.iter().map(|_| TransformerDecoderLayerAutoregressiveCache::empty());
        TransformerDecoderAutoregressiveCache { layers: layers.collect() }
    }
}

/// One layer of a [`TransformerDecoder`].
#[derive(Module, Debug)]
pub struct TransformerDecoderLayer {
    /// Attention to the memory.
    pub cross_attn: MultiHeadAttention,
    /// Attention to the own positions.
    pub self_attn: MultiHeadAttention,
    /// The feed-forward network.
    pub pwff: PositionWiseFeedForward,
    /// The norm before attention to the memory.
    pub norm_1: LayerNorm,
    /// The norm before the feed-forward network.
    pub norm_2: LayerNorm,
    /// The norm before attention to the own positions, or at the end.
    pub norm_3: LayerNorm,
    /// Dropout of what every part adds.
    pub dropout: Dropout,
    /// Whether norms stand before the parts, and not after them.
    pub norm_first: bool,
}

impl TransformerDecoderLayer {
    /// Initializes a new layer.
    ///
    /// # Errors
    ///
    /// As [`TransformerDecoderConfig::init`].
    pub fn new(config: &TransformerDecoderConfig, place: &Place) -> Self {
        Self {
            cross_attn: config.heads(&place.child("cross_attn")),
            self_attn: config.heads(&place.child("self_attn")),
            pwff: config.feed_forward(&place.child("pwff")),
            norm_1: config.norm(&place.child("norm_1")),
            norm_2: config.norm(&place.child("norm_2")),
            norm_3: config.norm(&place.child("norm_3")),
            dropout: DropoutConfig::new(config.dropout).init(place),
            norm_first: config.norm_first,
        }
    }

    /// Applies the layer: the result is the input of the next one.
    ///
    /// # Errors
    ///
    /// As [`TransformerDecoder::forward`].
    pub fn forward(&self, input: TransformerDecoderInput) -> TransformerDecoderInput {
        self.apply(input, None)
    }

    /// Applies the layer to a sequence, of which all positions but the last were in earlier calls.
    ///
    /// # Errors
    ///
    /// As [`TransformerDecoder::forward`].
    pub fn forward_autoregressive_inference(
        &self,
        input: TransformerDecoderInput,
        cache: &mut TransformerDecoderLayerAutoregressiveCache,
    ) -> TransformerDecoderInput {
        self.apply(input, Some(cache))
    }

    fn apply(
        &self,
        input: TransformerDecoderInput,
        cache: Option<&mut TransformerDecoderLayerAutoregressiveCache>,
    ) -> TransformerDecoderInput {
        let ((own, memory), pwff, [mut norm_1, mut norm_2, mut norm_3]) = match cache {
            Some(cache) => (
                (Some(&mut cache.self_attn), Some(&mut cache.cross_attn)),
                Some(&mut cache.pwff),
                [&mut cache.norm_1, &mut cache.norm_2, &mut cache.norm_3].map(Some),
            ),
            None => ((None, None), None, [None, None, None]),
        };
        let (mask_pad, mask_attn) = input.target_masks.clone();
        let x = residual(input.target.clone(), |x| {
            let entry = match self.norm_first {
                true => through(norm_3.take(), x, |x| self.norm_3.forward(x)),
                false => x,
            };
            let input = MhaInput::self_attn(entry).masked(mask_pad, mask_attn);
            self.dropout.forward(self.self_attn.forward_context(input, own))
        });
        let mut norm_1 = |x| through(norm_1.take(), x, |x| self.norm_1.forward(x));
        let x = if self.norm_first { x } else { norm_1(x) };
        let (mask_pad, mask_attn) = input.memory_masks.clone();
        let x = residual(x, |x| {
            let entry = if self.norm_first { norm_1(x) } else { x };
            let cross = MhaInput::cross_attn(entry, input.memory.clone()).masked(mask_pad, mask_attn);
            self.dropout.forward(self.cross_attn.forward_context(cross, memory))
        });
        let mut norm_2 = |x| through(norm_2.take(), x, |x| self.norm_2.forward(x));
        let x = if self.norm_first { x } else { norm_2(x) };
        let x = residual(x, |x| {
            let entry = if self.norm_first { norm_2(x) } else { x };
            self.dropout.forward(through(pwff, entry, |x| self.pwff.forward(x)))
        });
        let target = match self.norm_first {
            true => x,
            false => through(norm_3, x, |x| self.norm_3.forward(x)),
        };
        TransformerDecoderInput { target, ..input }
    }
}

/// What one layer keeps between the steps of generation.
pub struct TransformerDecoderLayerAutoregressiveCache {
    /// Of attention to the memory.
    pub cross_attn: MhaCache,
    /// Of attention to the own positions.
    pub self_attn: MhaCache,
    /// Of the feed-forward network.
    pub pwff: TensorCache<3>,
    /// Of the norm before attention to the memory.
    pub norm_1: TensorCache<3>,
    /// Of the norm before the feed-forward network.
    pub norm_2: TensorCache<3>,
    /// Of the norm before attention to the own positions, or at the end.
    pub norm_3: TensorCache<3>,
}

impl TransformerDecoderLayerAutoregressiveCache {
    /// An empty cache.
    pub fn empty() -> Self {
        Self {
            cross_attn: MhaCache::autoregressive_cross_attention(),
            self_attn: MhaCache::autoregressive(),
            pwff: TensorCache::empty(),
            norm_1: TensorCache::empty(),
            norm_2: TensorCache::empty(),
            norm_3: TensorCache::empty(),
        }
    }
}

/// What the layers of a [`TransformerDecoder`] keep between the steps of generation. Use one a generation.
pub struct TransformerDecoderAutoregressiveCache {
    layers: Vec<TransformerDecoderLayerAutoregressiveCache>,
}

impl ModuleDisplay for TransformerDecoder {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_model", &self.d_model)
            .add("d_ff", &self.d_ff)
            .add("n_heads", &self.n_heads)
            .add("n_layers", &self.n_layers)
            .add("dropout", &self.dropout)
            .add("norm_first", &self.norm_first)
            .add("quiet_softmax", &self.quiet_softmax)
            .optional()
    }
}
