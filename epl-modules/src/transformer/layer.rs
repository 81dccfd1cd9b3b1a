//! The layer: attention, attention to a memory, feed-forward network or experts.

use burn::module::{Content, Module, ModuleDisplay};
use burn::tensor::Tensor;
use epl_core::Place;

use super::attention::AttentionPart;
use super::cache::TransformerCache;
use super::config::TransformerLayerConfig;
use super::feed_forward::FeedForwardPart;
use super::frame::NormOrder;
use super::input::{TransformerInput, routed_tokens};
use crate::invalid::refuse;
use crate::moe::RouterLosses;

/// One layer of an encoder or a decoder.
///
/// As described in [Attention is all you need](https://arxiv.org/abs/1706.03762), or with the norms before the parts
/// ([arXiv:2002.04745](https://arxiv.org/abs/2002.04745)). Heads and hidden features are split over the tensor axis,
/// experts over the expert axis; norms are replicated.
///
/// ```
/// use burn::tensor::Tensor;
/// use epl_core::testing;
/// use epl_modules::{NormKind, TransformerInput, TransformerLayerConfig};
///
/// testing::run((1, 2, 1), |epl| {
///     let shape = TransformerLayerConfig::new(16, 4, 64).with_norm(NormKind::RmsNorm).with_bias(false);
///     let layer = shape.init(&epl.place().child("layer")); // of two heads and 32 hidden features on each rank
///     let hidden = Tensor::<3>::ones([2, 5, 16], epl.place().device());
///     let output = layer.forward(TransformerInput::new(hidden).causal());
///     assert!(output.hidden.dims() == [2, 5, 16] && output.losses.is_none()); // there are no experts
///     Ok(())
/// });
/// ```
///
/// Should be created with [`TransformerLayerConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct TransformerLayer {
    /// Attention to the layer's own positions.
    pub self_attention: AttentionPart,
    /// Attention to a memory.
    pub cross_attention: Option<AttentionPart>,
    /// The feed-forward network, or its experts.
    pub feed_forward: FeedForwardPart,
    #[module(skip)]
    order: NormOrder,
}

/// What a layer gives back.
#[derive(Clone, Debug)]
#[must_use = "without the losses of its router a layer with experts does not learn to balance them"]
pub struct TransformerOutput {
    /// The hidden states. Shape `[batch_size, positions, d_model]`.
    pub hidden: Tensor<3>,
    /// The losses of the router, of a layer with experts: sums over [`groups`](Self::groups) sequences, terms of the
    /// model's loss; with [`Balance::Batch`](crate::Balance::Batch) the balance is what [`RouterLosses::over_batch`] makes a
    /// term of. [`RouterLosses::add`] adds those of several layers.
    pub losses: Option<RouterLosses>,
    /// The weight of the losses: the number of sequences that were routed, 0 in a layer without experts. It is the
    /// number of rows of the batch, so that a model can tell it to [`Weights`](epl_core::LossWeights) beforehand.
    pub groups: usize,
}

impl TransformerLayerConfig {
    /// Initializes a new [`TransformerLayer`].
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the heads, or those of keys and values, do not divide over the tensor axis, or `d_model` over
    /// the heads and no `head_dim` is given, when numbers of rotary positions cannot be, the experts do not divide over the expert axis, or a probability or epsilon is out
    /// of its range.
    pub fn init(&self, place: &Place) -> TransformerLayer {
        if self.output_norm_initializer.is_some() && matches!(self.norm_order, NormOrder::Pre | NormOrder::Post) {
            refuse(format!(
                "{}: an initializer of the norms behind the parts, of which a layer of {:?} has none; leave it out, or take \
                 NormOrder::PostResidual or Sandwich",
                place.path(),
                self.norm_order
            ));
        }
        let cross_attention = || AttentionPart::new(&self.to_memory(), &place.child("cross_attention"));
        TransformerLayer {
            self_attention: AttentionPart::new(self, &place.child("self_attention")),
            cross_attention: self.cross_attention.then(cross_attention),
            feed_forward: FeedForwardPart::new(self, &place.child("feed_forward")),
            order: self.norm_order,
        }
    }
}

impl TransformerLayer {
    /// Applies the layer.
    ///
    /// # Shapes
    ///
    /// - hidden, of input and output: `[batch_size, positions, d_model]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when there is a memory and no cross-attention or the other way round, a memory, mask or
    /// bias has another shape, or a peer fails.
    pub fn forward(&self, input: TransformerInput) -> TransformerOutput {
        self.apply(input, None)
    }

    /// Applies the layer to new positions only, with the keys and values of earlier calls.
    ///
    /// The memory is read in the first call; later ones ignore what it holds.
    ///
    /// # Shapes
    ///
    /// - hidden, of input and output: `[batch_size, new positions, d_model]`
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn forward_cache(&self, input: TransformerInput, cache: &mut TransformerCache) -> TransformerOutput {
        self.apply(input, Some(cache))
    }

    fn apply(&self, input: TransformerInput, cache: Option<&mut TransformerCache>) -> TransformerOutput {
        self.check_memory(&input);
        if input.own.windows.is_some() && (cache.is_some() || input.own.padding.is_some()) {
            refuse(
                "a layer in windows got a cache or padding, which are of whole sequences: give it neither".to_string(),
            );
        }
        let TransformerInput { hidden, own, memory, tokens } = input;
        let [batch_size, positions, _] = hidden.dims();
        let padding = own.padding.clone();
        let (own_cache, memory_cache) = cache.map(|cache| (&mut cache.own, &mut cache.memory)).unzip();
        let windows = own.windows.clone();
        let attend = |states| own.attend_from(states);
        let mut hidden = self.self_attention.forward(hidden, attend, windows.as_ref(), own_cache);
        if let (Some(part), Some(memory)) = (&self.cross_attention, memory) {
            hidden = part.forward(hidden, |states| memory.attend_from(states), None, memory_cache);
        }
        let tokens = || routed_tokens(tokens, padding, [batch_size, positions]);
        let (hidden, losses) = self.feed_forward.forward(hidden, tokens);
        let groups = if losses.is_some() { batch_size } else { 0 };
        TransformerOutput { hidden, losses, groups }
    }

    fn check_memory(&self, input: &TransformerInput) {
        match (&self.cross_attention, &input.memory) {
            (Some(_), None) => refuse(
                "a layer with cross-attention got no memory: give it by `with_memory`, or make the layer with \
                 `cross_attention` false"
                    .to_string(),
            ),
            (None, Some(_)) => refuse(
                "a layer without cross-attention got a memory: make the layer with `cross_attention` true, or leave \
                 out `with_memory`"
                    .to_string(),
            ),
            _ => {}
        }
    }
}

impl ModuleDisplay for TransformerLayer {
    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add_debug_attribute("norm_order", &self.order)
            .add("self_attention", &self.self_attention)
            .add("cross_attention", &self.cross_attention)
            .add("feed_forward", &self.feed_forward)
            .optional()
    }
}
