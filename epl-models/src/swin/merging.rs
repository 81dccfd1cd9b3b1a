//! From one stage to the next.

use burn::module::Module;
use burn::tensor::Tensor;
use epl_core::Place;
use epl_modules::{LayerNorm, LayerNormConfig, ReplicatedLinear, ReplicatedLinearConfig};

use super::config::{SwinConfig, SwinVersion};

/// Makes one position of two times two, with twice as many features; zeros fill up a grid with an odd side. V1 normalises before the
/// product, V2 behind it.
#[derive(Module, Debug)]
pub struct PatchMerging {
    /// Normalises what enters the product, or what leaves it.
    pub norm: LayerNorm,
    /// From `4 width` to `2 width`, without a bias.
    pub reduction: ReplicatedLinear,
    #[module(skip)]
    version: SwinVersion,
    /// The positions along a side of the grid.
    pub grid: usize,
}

impl PatchMerging {
    pub(crate) fn new(config: &SwinConfig, stage: usize, place: &Place) -> Self {
        let width = config.width(stage);
        let normed = match config.version {
            SwinVersion::V1 => 4 * width,
            SwinVersion::V2 => 2 * width,
        };
        Self {
            norm: LayerNormConfig::new(normed).init(&place.child("norm")),
            reduction: ReplicatedLinearConfig::new(4 * width, 2 * width)
                .with_bias(false)
                .with_initializer(config.initializer())
                .init(&place.child("reduction")),
            version: config.version,
            grid: config.grids()[stage],
        }
    }

    /// Merges patches.
    ///
    /// # Shapes
    ///
    /// - hidden: `[rows, grid * grid, width]`
    /// - output: `[rows, half * half, 2 width]`, half of the grid rounded up
    pub fn forward(&self, hidden: Tensor<3>) -> Tensor<3> {
        let ([rows, _, width], half) = (hidden.dims(), self.grid.div_ceil(2));
        let hidden = hidden.reshape([rows, self.grid, self.grid, width]);
        let hidden = match self.grid % 2 {
            0 => hidden,
            _ => {
                let options = (&hidden.device(), hidden.dtype());
                let below = Tensor::zeros([rows, 1, self.grid, width], options);
                let beside = Tensor::zeros([rows, 2 * half, 1, width], options);
                Tensor::cat(vec![Tensor::cat(vec![hidden, below], 1), beside], 2)
            }
        };
        // Features of the four positions in order of columns.
        let apart = hidden.reshape([rows, half, 2, half, 2, width]).permute([0, 1, 3, 4, 2, 5]);
        let merged = apart.reshape([rows, half * half, 4 * width]);
        match self.version {
            SwinVersion::V1 => self.reduction.forward(self.norm.forward(merged)),
            SwinVersion::V2 => self.norm.forward(self.reduction.forward(merged)),
        }
    }
}
