//! The model as a chain of segments, with its loss.

use burn::tensor::Tensor;
use epl_core::{Loss, LossWeights, Model};

use super::model::ResMlp;
use crate::vision::{ClassLayer, ImageBatch, class_loss, class_weights};

impl<C: ClassLayer> Model for ResMlp<C> {
    type Batch = ImageBatch;
    /// Hidden states, `[rows, patches, d_model]`; behind the last segment their mean over the patches, `[rows, 1, d_model]`.
    type Carry = Tensor<3>;

    fn segments(&self) -> usize {
        self.layers.len() + 1
    }

    fn segment_name(&self, index: usize) -> String {
        if index < self.layers.len() { format!("layers.{index}") } else { "class_layer".to_string() }
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        match path.split_once('.') {
            Some(("stem", _)) => vec![0],
            Some(("layers", rest)) => rest.split('.').next().and_then(|index| index.parse().ok()).into_iter().collect(),
            Some(("norm" | "class_layer", _)) => vec![self.layers.len()],
            _ => Vec::new(),
        }
    }

    fn forward_segment(&self, index: usize, carry: Option<Tensor<3>>, batch: &ImageBatch) -> Tensor<3> {
        let hidden = carry.unwrap_or_else(|| self.enter(batch.pixels.clone()));
        match self.layers.get(index) {
            Some(layer) => layer.forward(hidden),
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
