//! From an image to the first hidden states.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_core::{Context, Place};
use epl_modules::{Dropout, DropoutConfig, ReplicatedConv2d, ReplicatedConv2dConfig};

use super::config::ViTConfig;
use super::positions::sine_cosine;
use crate::vision::patches;

/// A vector for each patch and one that stands for the class, each with that of its position.
///
/// ```
/// use burn::tensor::Tensor;
/// use epl_core::{Config, launch};
/// use epl_models::ViTConfig;
///
/// # let shape = ViTConfig::new(2).with_image_size(8).with_patch_size(4).with_d_model(16).with_d_ff(16).with_heads(2);
/// launch(&Config::new().with("cluster.ranks", 1)?, |epl| {
///     let embeddings = shape.init(epl.place()).embeddings; // of images of 8×8 pixels in patches of 4×4
///     let pixels = Tensor::ones([3, 3, 8, 8], epl.place().device());
///     let [class_token, patches] = embeddings.parts(pixels.clone()).map(|part| part.dims());
///     assert_eq!((class_token, patches), ([3, 1, 16], [3, 4, 16]));
///     assert_eq!(embeddings.forward(pixels).dims(), [3, 5, 16]); // both, the class token in front
///     Ok(())
/// })?;
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct PatchEmbeddings {
    /// The product of a patch: a convolution that moves by a patch.
    pub projection: ReplicatedConv2d,
    /// The vector in front, from whose last state the class is read. Shape `[1, 1, d_model]`.
    pub class_token: Param<Tensor<3>>,
    /// The vectors of the positions, frozen where they are not learned. Shape `[1, patches + 1, d_model]`.
    pub positions: Param<Tensor<3>>,
    /// Dropout of the sum.
    pub dropout: Dropout,
    #[module(skip)]
    image: [usize; 3],
    #[module(skip)]
    context: Context,
}

impl PatchEmbeddings {
    pub(crate) fn new(config: &ViTConfig, place: &Place) -> Self {
        let (d_model, patch) = (config.d_model, [config.patch_size; 2]);
        let positions = match config.fixed_positions {
            true => sine_cosine(config, place),
            false => place.param([1, config.patches() + 1, d_model], config.initializer()),
        };
        Self {
            projection: ReplicatedConv2dConfig::new([config.channels, d_model], patch)
                .with_stride(patch)
                .with_initializer(config.initializer())
                .with_bias_initializer(Some(Initializer::Zeros))
                .init(&place.child("projection")),
            class_token: place.param([1, 1, d_model], config.initializer()),
            positions,
            dropout: DropoutConfig::new(config.dropout).init(&place.child("dropout")),
            image: [config.channels, config.image_size, config.image_size],
            context: place.context().clone(),
        }
    }

    /// The vectors of images.
    ///
    /// # Shapes
    ///
    /// - pixels: `[rows, channels, image_size, image_size]`
    /// - output: `[rows, patches + 1, d_model]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when images have another size: the positions are of one.
    pub fn forward(&self, pixels: Tensor<4>) -> Tensor<3> {
        self.dropout.forward(Tensor::cat(self.parts(pixels).to_vec(), 1))
    }

    /// The vectors of the class token and those of the patches, of which nothing is dropped yet.
    ///
    /// # Shapes
    ///
    /// - pixels: `[rows, channels, image_size, image_size]`
    /// - output: `[rows, 1, d_model]` and `[rows, patches, d_model]`
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn parts(&self, pixels: Tensor<4>) -> [Tensor<3>; 2] {
        let patches = patches(&self.projection, pixels, self.image);
        let class_token = self.class_token.val();
        let [rows, count, d_model] = patches.dims();
        self.context.count_flops(Some(self.positions.id), 0.0);
        let positions = self.positions.val();
        let class_token = class_token + positions.clone().narrow(1, 0, 1);
        [class_token.expand([rows, 1, d_model]), patches + positions.narrow(1, 1, count)]
    }
}
