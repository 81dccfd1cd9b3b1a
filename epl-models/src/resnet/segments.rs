//! The model as a chain of segments, with its loss.

use burn::tensor::Tensor;
use epl_core::{Loss, LossWeights, Model};

use super::model::ResNet;
use crate::vision::{ClassLayer, ImageBatch, class_loss, class_weights};

impl<C: ClassLayer> Model for ResNet<C> {
    type Batch = ImageBatch;
    /// Channels of an image, `[rows, channels, height, width]`; behind the last segment its features, of one pixel.
    type Carry = Tensor<4>;

    fn segments(&self) -> usize {
        self.backbone.stages.len() + 2
    }

    fn segment_name(&self, index: usize) -> String {
        match index.checked_sub(1) {
            None => "stem".to_string(),
            Some(stage) if stage < self.backbone.stages.len() => format!("stages.{stage}"),
            Some(_) => "class_layer".to_string(),
        }
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        let stage = |rest: &str| rest.split('.').next().and_then(|index| index.parse::<usize>().ok());
        match path.split_once('.') {
            Some(("class_layer", _)) => vec![self.segments() - 1],
            Some(("backbone", rest)) => match rest.split_once('.') {
                Some(("stem", _)) => vec![0],
                Some(("stages", rest)) => stage(rest).map(|index| index + 1).into_iter().collect(),
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    fn forward_segment(&self, index: usize, carry: Option<Tensor<4>>, batch: &ImageBatch) -> Tensor<4> {
        let Some(hidden) = carry else { return self.backbone.enter(batch.pixels.clone()) };
        match self.backbone.stages.get(index - 1) {
            Some(stage) => stage.forward(hidden),
            None => self.backbone.leave(hidden),
        }
    }

    fn weights(&self, batch: &ImageBatch) -> LossWeights {
        class_weights(batch)
    }

    fn loss(&self, carry: Tensor<4>, batch: &ImageBatch) -> Loss {
        class_loss(&self.class_layer, carry.flatten(1, 3), batch, (self.config().label_smoothing, self.context()))
    }
}
