//! The whole model.

use burn::module::Module;
use burn::tensor::{Bool, Int, Tensor};
use epl_comm::{Error, unwind};
use epl_core::{Context, Model, Place};
use epl_modules::{
    LayerNorm, LayerNormConfig, ReplicatedLinear, ReplicatedLinearConfig, SplitLinear, SplitLinearConfig,
    TransformerLayer,
};

use super::config::ViTConfig;
use super::embeddings::PatchEmbeddings;
use crate::vision::{ClassLayer, ImageBatch};

/// A ViT that classifies images.
///
/// Attention and feed-forward networks are split over the tensor axis. Made by [`ViTConfig::init`],
/// [`init_split`](ViTConfig::init_split) or [`init_with`](ViTConfig::init_with).
///
/// ```
/// use burn::{optim::AdamWConfig, tensor::Tensor};
/// use epl_core::{Config, Engine, launch};
/// use epl_models::{ImageBatch, ViTConfig};
///
/// let shape = ViTConfig::new(10).with_image_size(16).with_patch_size(8);
/// let shape = shape.with_d_model(16).with_d_ff(32).with_heads(2).with_layers(1);
/// launch(&Config::new().with("cluster.ranks", 2)?, |epl| {
///     let mut engine = Engine::build(&epl, |at| shape.init(at), &AdamWConfig::new())?;
///     let images = ImageBatch::new(Tensor::ones([4, 3, 16, 16], epl.place().device()), vec![0, 1, 2, 3]);
///     assert!(engine.train_batch(&images, 1e-3)?.loss.is_finite()); // two of the images on each rank
///     Ok(())
/// })?;
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct ViT<C> {
    /// From an image to the first hidden states.
    pub embeddings: PatchEmbeddings,
    /// The encoder.
    pub layers: Vec<TransformerLayer>,
    /// Normalises the last state of the class token.
    pub norm: LayerNorm,
    /// From features to logits.
    pub class_layer: C,
    #[module(skip)]
    config: ViTConfig,
    #[module(skip)]
    context: Context,
}

impl ViTConfig {
    /// Lays out a model whose class layer every rank holds whole; its parameters are drawn later.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a number is impossible or does not fit the mesh, such as heads that the tensor axis does not divide.
    pub fn init(&self, place: &Place) -> ViT<ReplicatedLinear> {
        let layer = ReplicatedLinearConfig::new(self.d_model, self.classes).with_initializer(self.initializer());
        self.init_with(place, |place| layer.with_bias_initializer(Some(burn::nn::Initializer::Zeros)).init(place))
    }

    /// Lays out a model whose classes are split over the tensor axis.
    ///
    /// # Errors
    ///
    /// As [`init`](Self::init); when there are fewer classes than ranks of the tensor axis.
    pub fn init_split(&self, place: &Place) -> ViT<SplitLinear> {
        let layer = SplitLinearConfig::new(self.d_model, self.classes).with_initializer(self.initializer());
        self.init_with(place, |place| layer.with_bias_initializer(Some(burn::nn::Initializer::Zeros)).init(place))
    }

    /// Lays out a model with a class layer of the caller's, from `d_model` features to [`classes`](Self::classes); it is given its
    /// place.
    ///
    /// # Errors
    ///
    /// As [`init`](Self::init).
    pub fn init_with<C>(&self, place: &Place, class_layer: impl FnOnce(&Place) -> C) -> ViT<C> {
        if let Err(error) = self.validate() {
            unwind(Error::invalid(error.to_string()));
        }
        let layers = place.child("layers");
        ViT {
            embeddings: PatchEmbeddings::new(self, &place.child("embeddings")),
            layers: (0..self.layers).map(|index| self.layer().init(&layers.child(&index.to_string()))).collect(),
            norm: LayerNormConfig::new(self.d_model).with_epsilon(self.epsilon).init(&place.child("norm")),
            class_layer: class_layer(&place.child("class_layer")),
            config: self.clone(),
            context: place.context().clone(),
        }
    }
}

impl<C: ClassLayer> ViT<C> {
    /// The shape.
    pub fn config(&self) -> &ViTConfig {
        &self.config
    }

    /// The rank's context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The logits of images. Collective over the tensor axis. With pipeline stages no rank has the whole model: then only the engine
    /// runs it.
    ///
    /// # Shapes
    ///
    /// - output: `[rows, classes]`
    pub fn forward(&self, batch: &ImageBatch) -> Tensor<2> {
        self.logits_of(self.forward_all(batch))
    }

    /// The logits of images, from what the last segment returned. Collective over the tensor axis.
    ///
    /// # Shapes
    ///
    /// - features: `[rows, 1, d_model]`
    /// - output: `[rows, classes]`
    pub fn logits_of(&self, features: Tensor<3>) -> Tensor<2> {
        self.class_layer.logits(features.flatten(1, 2), &self.context)
    }

    /// Whether the label of an image is among its `k` most likely classes, from what the last segment returned. Collective over the
    /// tensor axis.
    ///
    /// # Shapes
    ///
    /// - features: `[rows, 1, d_model]`
    /// - labels and output: `[rows]`
    pub fn in_top_k(&self, features: Tensor<3>, labels: Tensor<1, Int>, k: usize) -> Tensor<1, Bool> {
        self.class_layer.in_top_k(features.flatten(1, 2), labels, k, &self.context)
    }
}
