//! A transformer encoder.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::Initializer;
use burn::tensor::{Bool, Tensor};
use epl_core::Place;

use super::feed_forward::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
use crate::dropout::{Dropout, DropoutConfig};
use crate::linear::default_initializer;
use crate::nn::activation::ActivationConfig;
use crate::nn::attention::{MhaCache, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use crate::nn::cache::{TensorCache, through};
use crate::norm::{LayerNorm, LayerNormConfig};
use crate::residual;

/// Configuration to create a [`TransformerEncoder`] using the [init function](TransformerEncoderConfig::init).
#[derive(Config, Debug)]
pub struct TransformerEncoderConfig {
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

/// Burn's `TransformerEncoder`: layers of attention to the own positions and a feed-forward network, split by heads and features.
///
/// See [Attention is all you need](https://arxiv.org/abs/1706.03762). Should be created with [`TransformerEncoderConfig`].
///
/// ```
/// # use burn::tensor::{Int, Tensor};
/// # use epl_core::testing;
/// use epl_modules::nn::{attention::generate_autoregressive_mask, transformer::*};
///
/// testing::run((1, 2, 1), |epl| {
///     let encoder = TransformerEncoderConfig::new(16, 32, 4, 2).init(&epl.place().child("encoder")); // of two layers
///     let x = Tensor::<1, Int>::arange(0..80, epl.place().device()).float().reshape([1, 5, 16]) / 80.0;
///     let mask = generate_autoregressive_mask(1, 5, epl.place().device());
///     let whole = encoder.forward(TransformerEncoderInput::new(x.clone()).mask_attn(mask));
///
///     // Position by position, which needs no mask: what was computed before has not seen the new one.
///     let mut cache = encoder.new_autoregressive_cache();
///     let so_far = (1..=5).map(|length| TransformerEncoderInput::new(x.clone().narrow(1, 0, length)));
///     let steps = so_far.map(|input| encoder.forward_autoregressive_inference(input, &mut cache)).last().unwrap();
///     assert!(steps.dims() == [1, 5, 16] && testing::relative_error(&steps.into_data(), &whole.into_data()) < 1e-4);
/// #     Ok(())
/// # });
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct TransformerEncoder {
    /// The layers.
    pub layers: Vec<TransformerEncoderLayer>,
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

/// The input of a [`TransformerEncoder`].
#[derive(Debug)]
pub struct TransformerEncoderInput {
    tensor: Tensor<3>,
    masks: Masks,
}

/// What is not seen: padding, and pairs.
pub(super) type Masks = (Option<Tensor<2, Bool>>, Option<Tensor<3, Bool>>);

impl TransformerEncoderInput {
    /// Every position sees every position of the same sequence.
    ///
    /// # Shapes
    ///
    /// - tensor: `[batch_size, seq_length, d_model]`
    pub fn new(tensor: Tensor<3>) -> Self {
        Self { tensor, masks: (None, None) }
    }

    /// The positions that are padding.
    ///
    /// # Shapes
    ///
    /// - mask_pad: `[batch_size, seq_length]`, true at padding
    #[must_use]
    pub fn mask_pad(mut self, mask_pad: Tensor<2, Bool>) -> Self {
        self.masks.0 = Some(mask_pad);
        self
    }

    /// The pairs of which the first position does not see the second.
    ///
    /// # Shapes
    ///
    /// - mask_attn: `[batch_size, seq_length, seq_length]`
    #[must_use]
    pub fn mask_attn(mut self, mask_attn: Tensor<3, Bool>) -> Self {
        self.masks.1 = Some(mask_attn);
        self
    }
}

impl TransformerEncoderConfig {
    /// Initializes a new [`TransformerEncoder`].
    ///
    /// # Errors
    ///
    /// As [`MultiHeadAttentionConfig::init`] and
    /// [`PositionWiseFeedForwardConfig::init`].
    pub fn init(&self, place: &Place) -> TransformerEncoder {
        let place = place.child("layers");
        let layer = |index: usize| TransformerEncoderLayer::new(self, &place.child(&index.to_string()));
        TransformerEncoder {
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

impl TransformerEncoder {
    /// Applies the layers.
    ///
    /// # Shapes
    ///
    /// - input and output: `[batch_size, seq_length, d_model]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a shape is another, or a peer fails.
    pub fn forward(&self, input: TransformerEncoderInput) -> Tensor<3> {
        let TransformerEncoderInput { tensor, masks } = input;
        self.layers.iter().fold(tensor, |x, layer| layer.apply(x, masks.clone(), None))
    }

    /// Applies the layers to a sequence, of which all positions but the last were in earlier calls.
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
        input: TransformerEncoderInput,
        cache: &mut TransformerEncoderAutoregressiveCache,
    ) -> Tensor<3> {
        let TransformerEncoderInput { tensor, masks } = input;
        let layers = self.layers.iter().zip(&mut cache.layers);
        layers.fold(tensor, |x, (layer, cache)| layer.apply(x, masks.clone(), Some(cache)))
    }

    /// An empty cache of its layers.
    pub fn new_autoregressive_cache(&self) -> TransformerEncoderAutoregressiveCache {
        let layers = self.layers.iter().map(|_| TransformerEncoderLayerAutoregressiveCache::empty());
        TransformerEncoderAutoregressiveCache { layers: layers.collect() }
    }
}

/// One layer of a [`TransformerEncoder`].
///
/// ```
/// # use burn::tensor::{Bool, Tensor};
/// # use epl_core::testing;
/// use epl_modules::nn::transformer::{TransformerEncoderConfig, TransformerEncoderLayer};
///
/// testing::run((1, 2, 1), |epl| {
///     let device = epl.place().device();
///     let layer = TransformerEncoderLayer::new(&TransformerEncoderConfig::new(16, 32, 4, 1), &epl.place().child("layer"));
///     let x = Tensor::<3>::ones([1, 3, 16], device);
///     let is_padding = Tensor::<2, Bool>::from_data([[false, false, true]], device);
///     let output = |x| layer.forward(x, Some(is_padding.clone()), None).narrow(1, 0, 2).into_data();
///     // Whatever stands in the place of padding, the positions before it do not see it.
///     assert_eq!(output(x.clone()), output(x.slice_fill([0..1, 2..3], 9.0)));
///     Ok(())
/// });
/// ```
#[derive(Module, Debug)]
pub struct TransformerEncoderLayer {
    /// Attention to the own positions.
    pub mha: MultiHeadAttention,
    /// The feed-forward network.
    pub pwff: PositionWiseFeedForward,
    /// The norm before the feed-forward network.
    pub norm_1: LayerNorm,
    /// The norm before attention, or at the end.
    pub norm_2: LayerNorm,
    /// Dropout of what every part adds.
    pub dropout: Dropout,
    /// Whether norms stand before the parts, and not after them.
    pub norm_first: bool,
}

impl TransformerEncoderLayer {
    /// Initializes a new layer.
    ///
    /// # Errors
    ///
    /// As [`TransformerEncoderConfig::init`].
    pub fn new(config: &TransformerEncoderConfig, place: &Place) -> Self {
        Self {
            mha: config.heads(&place.child("mha")),
            pwff: config.feed_forward(&place.child("pwff")),
            norm_1: config.norm(&place.child("norm_1")),
            norm_2: config.norm(&place.child("norm_2")),
            dropout: DropoutConfig::new(config.dropout).init(place),
            norm_first: config.norm_first,
        }
    }

    /// Applies the layer.
    ///
    /// # Shapes
    ///
    /// - input and output: `[batch_size, seq_length, d_model]`
    /// - mask_pad: `[batch_size, seq_length]`, mask_attn: `[batch_size, seq_length, seq_length]`
    ///
    /// # Errors
    ///
    /// As [`TransformerEncoder::forward`].
    pub fn forward(
        &self,
        input: Tensor<3>,
        mask_pad: Option<Tensor<2, Bool>>,
        mask_attn: Option<Tensor<3, Bool>>,
    ) -> Tensor<3> {
        self.apply(input, (mask_pad, mask_attn), None)
    }

    /// Applies the layer to a sequence, of which all positions but the last were in earlier calls.
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
        input: Tensor<3>,
        mask_pad: Option<Tensor<2, Bool>>,
        mask_attn: Option<Tensor<3, Bool>>,
        cache: &mut TransformerEncoderLayerAutoregressiveCache,
    ) -> Tensor<3> {
        self.apply(input, (mask_pad, mask_attn), Some(cache))
    }

    fn apply(
        &self,
        x: Tensor<3>,
        (mask_pad, mask_attn): Masks,
        cache: Option<&mut TransformerEncoderLayerAutoregressiveCache>,
    ) -> Tensor<3> {
        let (mha, pwff, mut norm_1, mut norm_2) = match cache {
            Some(cache) => {
                (Some(&mut cache.mha), Some(&mut cache.pwff), Some(&mut cache.norm_1), Some(&mut cache.norm_2))
            }
            None => (None, None, None, None),
        };
        let x = residual(x, |x| {
            let entry = match self.norm_first {
                true => through(norm_2.take(), x, |x| self.norm_2.forward(x)),
                false => x,
            };
            self.dropout.forward(self.mha.forward_context(MhaInput::self_attn(entry).masked(mask_pad, mask_attn), mha))
        });
        let mut norm_1 = |x| through(norm_1.take(), x, |x| self.norm_1.forward(x));
        let x = if self.norm_first { x } else { norm_1(x) };
        let x = residual(x, |x| {
            let entry = if self.norm_first { norm_1(x) } else { x };
            self.dropout.forward(through(pwff, entry, |x| self.pwff.forward(x)))
        });
        match self.norm_first {
            true => x,
            false => through(norm_2, x, |x| self.norm_2.forward(x)),
        }
    }
}

/// What one layer keeps between the steps of generation.
pub struct TransformerEncoderLayerAutoregressiveCache {
    /// Of attention.
    pub mha: MhaCache,
    /// Of the feed-forward network.
    pub pwff: TensorCache<3>,
    /// Of the norm before the feed-forward network.
    pub norm_1: TensorCache<3>,
    /// Of the norm before attention, or at the end.
    pub norm_2: TensorCache<3>,
}

impl TransformerEncoderLayerAutoregressiveCache {
    /// An empty cache.
    pub fn empty() -> Self {
        Self {
            mha: MhaCache::autoregressive(),
            pwff: TensorCache::empty(),
            norm_1: TensorCache::empty(),
            norm_2: TensorCache::empty(),
        }
    }
}

/// What the layers of a [`TransformerEncoder`] keep between the steps of generation. Use one a generation.
pub struct TransformerEncoderAutoregressiveCache {
    layers: Vec<TransformerEncoderLayerAutoregressiveCache>,
}

impl ModuleDisplay for TransformerEncoder {
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
