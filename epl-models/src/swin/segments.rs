//! The model as a chain of segments, with its loss.

use burn::tensor::Tensor;
use epl_core::{Loss, LossWeights, Model};

use super::model::Swin;
use crate::vision::{ClassLayer, ImageBatch, class_loss, class_weights};

impl<C: ClassLayer> Swin<C> {
    /// The stage and the number in it of a block, of all that of number `index`.
    fn block(&self, index: usize) -> Option<(usize, usize)> {
        let mut left = index;
        for (stage, blocks) in self.stages.iter().map(|stage| stage.blocks.len()).enumerate() {
            if left < blocks {
                return Some((stage, left));
            }
            left -= blocks;
        }
        None
    }

    fn blocks(&self, stages: usize) -> usize {
        self.stages[..stages].iter().map(|stage| stage.blocks.len()).sum()
    }
}

impl<C: ClassLayer> Model for Swin<C> {
    type Batch = ImageBatch;
    /// Hidden states, `[rows, grid * grid, width]`; behind the last segment their mean, normalised, `[rows, 1, features]`.
    type Carry = Tensor<3>;

    fn segments(&self) -> usize {
        self.blocks(self.stages.len()) + 1
    }

    fn segment_name(&self, index: usize) -> String {
        match self.block(index) {
            Some((stage, block)) => format!("stages.{stage}.blocks.{block}"),
            None => "class_layer".to_string(),
        }
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        let parts: Vec<&str> = path.split('.').collect();
        let of_stage = |stage: &str| stage.parse().ok().filter(|stage| *stage < self.stages.len());
        let segment = match parts.as_slice() {
            ["embeddings", ..] => Some(0),
            ["stages", stage, "blocks", block, ..] => {
                let of_block = |stage| Some(self.blocks(stage) + block.parse::<usize>().ok()?);
                of_stage(stage).and_then(of_block)
            }
            ["stages", stage, "merging", ..] => of_stage(stage).map(|stage| self.blocks(stage + 1) - 1),
            ["norm" | "class_layer", ..] => Some(self.blocks(self.stages.len())),
            _ => None,
        };
        segment.into_iter().collect()
    }

    fn forward_segment(&self, index: usize, carry: Option<Tensor<3>>, batch: &ImageBatch) -> Tensor<3> {
        let hidden = carry.unwrap_or_else(|| self.embeddings.forward(batch.pixels.clone()));
        match self.block(index) {
            Some((stage, block)) => self.stages[stage].forward_block(block, hidden),
            None => self.norm.forward(hidden).mean_dim(1),
        }
    }

    fn weights(&self, batch: &ImageBatch) -> LossWeights {
        class_weights(batch)
    }

    fn loss(&self, carry: Tensor<3>, batch: &ImageBatch) -> Loss {
        class_loss(&self.class_layer, carry.flatten(1, 2), batch, (self.config().label_smoothing, self.context()))
    }
}
