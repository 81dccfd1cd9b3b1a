//! The whole model.

use burn::module::Module;
use burn::nn::Initializer;
use burn::tensor::{Bool, Int, Tensor};
use epl_comm::{Error, unwind};
use epl_core::{Context, Model, Place};
use epl_modules::{
    LayerNorm, LayerNormConfig, ReplicatedLinear, ReplicatedLinearConfig, SplitLinear, SplitLinearConfig,
};

use super::config::SwinConfig;
use super::embeddings::SwinEmbeddings;
use super::stage::SwinStage;
use crate::vision::{ClassLayer, ImageBatch};

/// A Swin transformer that classifies images.
///
/// Attention and feed-forward networks are split over the tensor axis. Made by [`SwinConfig::init`],
/// [`init_split`](SwinConfig::init_split) or [`init_with`](SwinConfig::init_with).
///
/// ```
/// # use burn::{optim::SgdConfig, tensor::Tensor};
/// use epl_core::{Config, Engine, MicroBatch, launch};
/// # use epl_models::{ImageBatch, SwinConfig};
///
/// # let shape = SwinConfig::new(4).with_image_size(8).with_patch_size(2).with_window(2).with_embedding_size(8);
/// # let shape = shape.with_depths(vec![1, 1]).with_heads(vec![2, 4]);
/// launch(&Config::new().with("cluster.ranks", 1)?, |epl| {
///     let engine = Engine::build(&epl, |at| shape.init(at), &SgdConfig::new())?;
///     let images = ImageBatch::new(Tensor::ones([4, 3, 8, 8], epl.place().device()), vec![0, 1, 2, 3]);
///     engine.forward([Ok(MicroBatch::new(images, [0, 1, 2, 3]))], |model, features, images| {
///         assert_eq!(model.logits_of(features.clone()).dims(), [4, 4]);
///         // Of images that are alike one class is the likeliest: of the four labels it is one.
///         let hits = model.in_top_k(features, images.batch.labels.clone(), 1);
///         assert_eq!(hits.int().sum().into_scalar::<i64>(), 1);
///         Ok(())
///     })
/// })?;
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct Swin<C> {
    /// From an image to the first hidden states.
    pub embeddings: SwinEmbeddings,
    /// The stages, each with half of the positions along a side.
    pub stages: Vec<SwinStage>,
    /// Normalises the last states.
    pub norm: LayerNorm,
    /// From features to logits.
    pub class_layer: C,
    #[module(skip)]
    config: SwinConfig,
    #[module(skip)]
    context: Context,
}

impl SwinConfig {
    /// Lays out a model whose class layer every rank holds whole; its parameters are drawn later.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a number is impossible or does not fit the mesh, such as heads of a stage that the tensor axis does
    /// not divide.
    pub fn init(&self, place: &Place) -> Swin<ReplicatedLinear> {
        let layer = ReplicatedLinearConfig::new(self.features(), self.classes).with_initializer(self.initializer());
        self.init_with(place, |place| layer.with_bias_initializer(Some(Initializer::Zeros)).init(place))
    }

    /// Lays out a model whose classes are split over the tensor axis.
    ///
    /// # Errors
    ///
    /// As [`init`](Self::init); when there are fewer classes than ranks of the tensor axis.
    pub fn init_split(&self, place: &Place) -> Swin<SplitLinear> {
        let layer = SplitLinearConfig::new(self.features(), self.classes).with_initializer(self.initializer());
        self.init_with(place, |place| layer.with_bias_initializer(Some(Initializer::Zeros)).init(place))
    }

    /// Lays out a model with a class layer of the caller's, from [`features`](Self::features) to [`classes`](Self::classes); it is
    /// given its place.
    ///
    /// # Errors
    ///
    /// As [`init`](Self::init).
    pub fn init_with<C>(&self, place: &Place, class_layer: impl FnOnce(&Place) -> C) -> Swin<C> {
        if let Err(error) = self.validate() {
            unwind(Error::invalid(error.to_string()));
        }
        let stages = place.child("stages");
        let stage = |index: usize| SwinStage::new(self, index, &stages.child(&index.to_string()));
        Swin {
            embeddings: SwinEmbeddings::new(self, &place.child("embeddings")),
            stages: (0..self.depths.len()).map(stage).collect(),
            norm: LayerNormConfig::new(self.features()).with_epsilon(self.epsilon).init(&place.child("norm")),
            class_layer: class_layer(&place.child("class_layer")),
            config: self.clone(),
            context: place.context().clone(),
        }
    }
}

impl<C: ClassLayer> Swin<C> {
    /// The shape.
    pub fn config(&self) -> &SwinConfig {
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
    /// - features: `[rows, 1, features]`
    /// - output: `[rows, classes]`
    pub fn logits_of(&self, features: Tensor<3>) -> Tensor<2> {
        self.class_layer.logits(features.flatten(1, 2), &self.context)
    }

    /// Whether the label of an image is among its `k` most likely classes, from what the last segment returned. Collective over the
    /// tensor axis.
    ///
    /// # Shapes
    ///
    /// - features: `[rows, 1, features]`
    /// - labels and output: `[rows]`
    pub fn in_top_k(&self, features: Tensor<3>, labels: Tensor<1, Int>, k: usize) -> Tensor<1, Bool> {
        self.class_layer.in_top_k(features.flatten(1, 2), labels, k, &self.context)
    }
}
