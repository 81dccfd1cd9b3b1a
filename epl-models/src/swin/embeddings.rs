//! From an image to the first hidden states.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_core::{Context, Place};
use epl_modules::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig, ReplicatedConv2d, ReplicatedConv2dConfig};

use super::config::SwinConfig;
use crate::vision::patches;

/// A vector for each patch, normalised.
///
/// ```
/// use burn::tensor::Tensor;
/// use epl_core::{Config, launch};
/// use epl_models::SwinConfig;
///
/// let shape = SwinConfig::shapes(4); // of images of 32×32 pixels in patches of 2×2
/// launch(&Config::new().with("cluster.ranks", 1)?, |epl| {
///     let embeddings = shape.init(epl.place()).embeddings;
///     let pixels = Tensor::ones([1, 3, 32, 32], epl.place().device());
///     assert_eq!(embeddings.forward(pixels).dims(), [1, 16 * 16, shape.embedding_size]);
///     Ok(())
/// })?;
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct SwinEmbeddings {
    /// The product of a patch: a convolution that moves by a patch.
    pub projection: ReplicatedConv2d,
    /// Normalises the vectors.
    pub norm: LayerNorm,
    /// The vectors of the positions, where there are any. Shape `[1, patches, embedding_size]`.
    pub positions: Option<Param<Tensor<3>>>,
    /// Dropout of the sum.
    pub dropout: Dropout,
    #[module(skip)]
    image: [usize; 3],
    #[module(skip)]
    context: Context,
}

impl SwinEmbeddings {
    pub(crate) fn new(config: &SwinConfig, place: &Place) -> Self {
        let (width, patch) = (config.embedding_size, [config.patch_size; 2]);
        let patches = (config.image_size / config.patch_size).pow(2);
        Self {
            projection: ReplicatedConv2dConfig::new([config.channels, width], patch)
                .with_stride(patch)
                .with_initializer(config.initializer())
                .with_bias_initializer(Some(Initializer::Zeros))
                .init(&place.child("projection")),
            norm: LayerNormConfig::new(width).init(&place.child("norm")),
            positions: config.absolute_positions.then(|| place.param([1, patches, width], config.initializer())),
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
    /// - output: `[rows, patches, embedding_size]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when images have another size: grids and windows are of one.
    pub fn forward(&self, pixels: Tensor<4>) -> Tensor<3> {
        let hidden = self.norm.forward(patches(&self.projection, pixels, self.image));
        self.dropout.forward(match &self.positions {
            Some(positions) => {
                self.context.count_flops(Some(positions.id), 0.0);
                hidden + positions.val()
            }
            None => hidden,
        })
    }
}
