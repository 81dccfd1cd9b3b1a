//! Blocks on one grid, and what leads to the next.

use burn::module::Module;
use burn::tensor::Tensor;
use epl_core::Place;
use epl_modules::{TransformerInput, TransformerLayer, WindowBias, Windows};

use super::config::SwinConfig;
use super::merging::PatchMerging;

/// Blocks that see one grid.
#[derive(Module, Debug)]
pub struct SwinStage {
    /// In turn over windows as they are, and shifted by half of one.
    pub blocks: Vec<SwinBlock>,
    /// What leads to the next stage, behind the last block; the last stage has none.
    pub merging: Option<PatchMerging>,
}

/// A layer of a transformer over windows.
#[derive(Module, Debug)]
pub struct SwinBlock {
    /// The layer.
    pub layer: TransformerLayer,
    /// The bias of pairs in a window.
    pub bias: WindowBias,
    #[module(skip)]
    windows: Windows,
}

impl SwinStage {
    pub(crate) fn new(config: &SwinConfig, stage: usize, place: &Place) -> Self {
        let (first, blocks) = (config.depths[..stage].iter().sum::<usize>(), place.child("blocks"));
        let block = |at: usize| {
            let (place, windows) = (blocks.child(&at.to_string()), config.windows(stage, at));
            SwinBlock {
                layer: config.layer(stage, first + at).init(&place.child("layer")),
                bias: config.bias(stage, windows.side()).init(&place.child("bias")),
                windows,
            }
        };
        let merging = || PatchMerging::new(config, stage, &place.child("merging"));
        Self {
            blocks: (0..config.depths[stage]).map(block).collect(),
            merging: (stage + 1 < config.depths.len()).then(merging),
        }
    }

    /// Applies a block, behind the last one also what leads to the next stage.
    ///
    /// # Shapes
    ///
    /// - hidden: `[rows, grid * grid, width]`
    /// - output: as hidden, or that of [`PatchMerging::forward`]
    pub fn forward_block(&self, block: usize, hidden: Tensor<3>) -> Tensor<3> {
        let hidden = self.blocks[block].forward(hidden);
        match &self.merging {
            Some(merging) if block + 1 == self.blocks.len() => merging.forward(hidden),
            _ => hidden,
        }
    }
}

impl SwinBlock {
    /// Applies the block.
    ///
    /// # Shapes
    ///
    /// - hidden and output: `[rows, grid * grid, width]`
    pub fn forward(&self, hidden: Tensor<3>) -> Tensor<3> {
        let input = TransformerInput::new(hidden).in_windows(self.windows.clone());
        self.layer.forward(input.with_bias(self.bias.forward(&self.windows))).hidden
    }
}
