//! The whole model.

use burn::module::Module;
use burn::tensor::{Bool, Device, Int, Tensor};
use epl_comm::{Error, unwind};
use epl_core::{Context, Place, Strategy};
use epl_modules::{
    ReplicatedLinear, ReplicatedLinearConfig, SplitClassifier, SplitClassifierConfig, SplitLinear, SplitLinearConfig,
};

use super::backbone::Backbone;
use super::config::ResNetConfig;
use crate::vision::ClassLayer;

/// A ResNet that classifies images.
///
/// Every rank holds the backbone whole. Made by [`ResNetConfig::init`], [`init_split`](ResNetConfig::init_split) or
/// [`init_with`](ResNetConfig::init_with).
///
/// ```
/// # use burn::{optim::SgdConfig, tensor::Tensor};
/// use epl_core::{Config, Engine, MicroBatch, launch};
/// # use epl_models::{ImageBatch, ResNetConfig};
///
/// # let shape = ResNetConfig::tiny(4).with_embedding_size(4).with_hidden_sizes(vec![4, 8, 8]);
/// launch(&Config::new().with("cluster.ranks", 1)?, |epl| {
///     let engine = Engine::build(&epl, |at| shape.init(at), &SgdConfig::new())?;
///     let images = ImageBatch::new(Tensor::ones([4, 3, 16, 16], epl.place().device()), vec![0, 1, 2, 3]);
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
pub struct ResNet<C> {
    /// From an image to its features.
    pub backbone: Backbone,
    /// From features to logits.
    pub class_layer: C,
    #[module(skip)]
    config: ResNetConfig,
    #[module(skip)]
    context: Context,
}

impl ResNetConfig {
    /// Lays out a model whose class layer every rank holds whole; its parameters are drawn later.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a number is impossible.
    pub fn init(&self, place: &Place) -> ResNet<ReplicatedLinear> {
        self.init_with(place, |place| ReplicatedLinearConfig::new(self.features(), self.classes).init(place))
    }

    /// Lays out a model whose classes are split over the tensor axis.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a number is impossible, or there are fewer classes than ranks of the tensor axis.
    pub fn init_split(&self, place: &Place) -> ResNet<SplitLinear> {
        self.init_with(place, |place| SplitLinearConfig::new(self.features(), self.classes).init(place))
    }

    /// Lays out a model for so many classes that no rank is to hold all of them: on each of `devices` ranks the whole
    /// backbone, for rows of its own, and a part of the classes, for the rows of all. With
    /// `cluster.colocate_split_and_replicate` these are the same ranks; without, as many others, a stage of their own.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a number is impossible, or there are fewer classes than devices.
    pub fn init_colocated(&self, devices: usize, place: &Place) -> ResNet<SplitClassifier> {
        let (backbone, classes) =
            (Strategy::replicate(devices).named("backbone"), Strategy::split(devices).named("classes"));
        let layer = SplitClassifierConfig::new(self.features(), self.classes);
        place.default_strategy(backbone, |place| {
            self.init_with(place, |place| place.scope(classes, |place| layer.init(place)))
        })
    }

    /// Lays out a model with a class layer of the caller's, from [`features`](Self::features) to
    /// [`classes`](Self::classes); it is given its place.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a number is impossible.
    pub fn init_with<C>(&self, place: &Place, class_layer: impl FnOnce(&Place) -> C) -> ResNet<C> {
        if let Err(error) = self.validate() {
            unwind(Error::invalid(error.to_string()));
        }
        ResNet {
            backbone: Backbone::new(self, &place.child("backbone")),
            class_layer: class_layer(&place.child("class_layer")),
            config: self.clone(),
            // Its rows are those of its own rank, in a `split` scope too.
            context: place.on_mesh().context().clone(),
        }
    }
}

impl<C: ClassLayer> ResNet<C> {
    /// The shape.
    pub fn config(&self) -> &ResNetConfig {
        &self.config
    }

    /// The rank's context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The device of the parameters.
    pub fn device(&self) -> Device {
        self.backbone.stem.convolution.weight.lazy_device()
    }

    /// The logits of images. Collective over the tensor axis, and in training over the data axis.
    ///
    /// # Shapes
    ///
    /// - pixels: `[rows, channels, height, width]`
    /// - output: `[rows, classes]`
    pub fn forward(&self, pixels: Tensor<4>) -> Tensor<2> {
        self.class_layer.logits(self.backbone.forward(pixels), &self.context)
    }

    /// The logits of images, from the features that the last segment returned. Collective over the ranks that share the
    /// classes.
    ///
    /// # Shapes
    ///
    /// - features: `[rows, features, 1, 1]`
    /// - output: `[rows, classes]`
    pub fn logits_of(&self, features: Tensor<4>) -> Tensor<2> {
        self.class_layer.logits(features.flatten(1, 3), &self.context)
    }

    /// Whether the label of an image is among its `k` most likely classes, from the features that the last segment
    /// returned. Collective as [`logits_of`](Self::logits_of).
    ///
    /// # Shapes
    ///
    /// - features: `[rows, features, 1, 1]`
    /// - labels and output: `[rows]`
    pub fn in_top_k(&self, features: Tensor<4>, labels: Tensor<1, Int>, k: usize) -> Tensor<1, Bool> {
        self.class_layer.in_top_k(features.flatten(1, 3), labels, k, &self.context)
    }
}
