//! The whole model.

use burn::module::Module;
use burn::nn::Initializer;
use burn::tensor::{Bool, Int, Tensor};
use epl_comm::{Error, unwind};
use epl_core::{Context, Model, Place};
use epl_modules::{ReplicatedConv2d, ReplicatedConv2dConfig, ReplicatedLinear, SplitLinear, SplitLinearConfig};

use super::affine::Affine;
use super::config::ResMlpConfig;
use super::layer::ResMlpLayer;
use crate::vision::{ClassLayer, ImageBatch, patches};

/// A ResMLP that classifies images.
///
/// The feed-forward parts are split over the tensor axis; the product across patches, a small share of a layer's work, is whole on each
/// rank. Made by [`ResMlpConfig::init`], [`init_split`](ResMlpConfig::init_split) or [`init_with`](ResMlpConfig::init_with).
///
/// ```
/// # use burn::{optim::SgdConfig, tensor::Tensor};
/// use epl_core::{Config, Engine, MicroBatch, launch};
/// # use epl_models::{ImageBatch, ResMlpConfig};
///
/// # let shape = ResMlpConfig::new(4).with_image_size(8).with_patch_size(4).with_d_model(8).with_d_ff(16).with_layers(1);
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
pub struct ResMlp<C> {
    /// The product of a patch: a convolution that moves by a patch.
    pub stem: ReplicatedConv2d,
    /// The layers.
    pub layers: Vec<ResMlpLayer>,
    /// Behind the last layer.
    pub norm: Affine,
    /// From features to logits.
    pub class_layer: C,
    #[module(skip)]
    config: ResMlpConfig,
    #[module(skip)]
    context: Context,
}

impl ResMlpConfig {
    /// Lays out a model whose class layer every rank holds whole; its parameters are drawn later.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a number is impossible or does not fit the mesh, such as fewer hidden features than ranks of the
    /// tensor axis.
    pub fn init(&self, place: &Place) -> ResMlp<ReplicatedLinear> {
        self.init_with(place, |place| self.linear(self.d_model, self.classes).init(place))
    }

    /// Lays out a model whose classes are split over the tensor axis.
    ///
    /// # Errors
    ///
    /// As [`init`](Self::init); when there are fewer classes than ranks of the tensor axis.
    pub fn init_split(&self, place: &Place) -> ResMlp<SplitLinear> {
        let layer = SplitLinearConfig::new(self.d_model, self.classes).with_initializer(self.initializer());
        self.init_with(place, |place| layer.with_bias_initializer(Some(Initializer::Zeros)).init(place))
    }

    /// Lays out a model with a class layer of the caller's, from `d_model` features to [`classes`](Self::classes); it is given its
    /// place.
    ///
    /// # Errors
    ///
    /// As [`init`](Self::init).
    pub fn init_with<C>(&self, place: &Place, class_layer: impl FnOnce(&Place) -> C) -> ResMlp<C> {
        if let Err(error) = self.validate() {
            unwind(Error::invalid(error.to_string()));
        }
        let (layers, patch) = (place.child("layers"), [self.patch_size; 2]);
        let stem = ReplicatedConv2dConfig::new([self.channels, self.d_model], patch)
            .with_stride(patch)
            .with_initializer(self.initializer())
            .with_bias_initializer(Some(Initializer::Zeros));
        ResMlp {
            stem: stem.init(&place.child("stem")),
            layers: (0..self.layers).map(|index| ResMlpLayer::new(self, &layers.child(&index.to_string()))).collect(),
            norm: Affine::new(self.d_model, &place.child("norm")),
            class_layer: class_layer(&place.child("class_layer")),
            config: self.clone(),
            context: place.context().clone(),
        }
    }
}

impl<C: ClassLayer> ResMlp<C> {
    /// The shape.
    pub fn config(&self) -> &ResMlpConfig {
        &self.config
    }

    /// The rank's context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The vectors of the patches of images.
    pub(super) fn enter(&self, pixels: Tensor<4>) -> Tensor<3> {
        let size = self.config.image_size;
        patches(&self.stem, pixels, [self.config.channels, size, size])
    }

    /// The logits of images. Collective over the tensor axis. With pipeline stages no rank has the whole model: then only the engine
    /// runs it.
    ///
    /// # Shapes
    ///
    /// - output: `[rows, classes]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when images have another size: the products across patches are of one.
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
