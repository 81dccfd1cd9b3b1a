//! The model as a chain of segments, with its loss.

use burn::tensor::Tensor;
use epl_comm::{Error, unwind};
use epl_core::model::precision::widen;
use epl_core::{Loss, LossWeights, Model};

use super::batch::MocoBatch;
use super::contrast::contrast;
use super::model::Moco;

/// The loss: of each view's queries against the other one's keys.
const CONTRAST: &str = "contrast";

/// What both encoders make of one view: hidden states, `[rows, patches + 1, d_model]`; behind the last segment a query and a key,
/// `[rows, 1, dim]`.
#[derive(Clone, Debug)]
pub struct ViewStates {
    /// Of the encoder.
    pub query: Tensor<3>,
    /// Of the momentum encoder, without a graph.
    pub key: Tensor<3>,
}

epl_core::carry!(ViewStates { query, key });

/// Without a graph: what crosses a boundary of segments is tracked behind it.
fn untracked(x: Tensor<3>) -> Tensor<3> {
    if x.is_autodiff() { x.detach().set_require_grad(false) } else { x }
}

impl Moco {
    fn enter(&self, pixels: &Tensor<4>) -> ViewStates {
        let embed = |encoder: &super::MocoEncoder| encoder.embeddings.forward(pixels.clone());
        ViewStates { query: embed(&self.encoder), key: embed(&self.momentum_encoder) }
    }

    fn forward_view(&self, index: usize, ViewStates { query, key }: ViewStates) -> ViewStates {
        let key = untracked(key);
        if index < self.encoder.layers.len() {
            return ViewStates {
                query: self.encoder.layer(index, query),
                key: self.momentum_encoder.layer(index, key),
            };
        }
        let query = self.predictor.forward(self.encoder.project(query));
        ViewStates { query: query.unsqueeze_dim(1), key: self.momentum_encoder.project(key).unsqueeze_dim(1) }
    }
}

impl Model for Moco {
    type Batch = MocoBatch;
    /// Of each view.
    type Carry = (ViewStates, ViewStates);

    fn segments(&self) -> usize {
        self.encoder.layers.len() + 1
    }

    fn segment_name(&self, index: usize) -> String {
        if index < self.encoder.layers.len() { format!("layers.{index}") } else { "heads".to_string() }
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        let inside = path.split_once('.').map_or("", |(_, inside)| inside);
        match inside.split_once('.') {
            Some(("embeddings", _)) => vec![0],
            Some(("layers", rest)) => rest.split('.').next().and_then(|index| index.parse().ok()).into_iter().collect(),
            _ => vec![self.encoder.layers.len()],
        }
    }

    fn forward_segment(&self, index: usize, carry: Option<Self::Carry>, batch: &MocoBatch) -> Self::Carry {
        let (first, second) = carry.unwrap_or_else(|| (self.enter(&batch.first), self.enter(&batch.second)));
        (self.forward_view(index, first), self.forward_view(index, second))
    }

    fn weights(&self, batch: &MocoBatch) -> LossWeights {
        let [rows, others] = [&batch.first, &batch.second].map(|view| view.dims()[0]);
        if rows != others {
            unwind(Error::invalid(format!(
                "{rows} first views and {others} second ones; give two views of each image"
            )));
        }
        LossWeights::new().with(CONTRAST, rows as f64)
    }

    fn loss(&self, (first, second): Self::Carry, _: &MocoBatch) -> Loss {
        let flat = |x: Tensor<3>| widen(x).flatten::<2>(1, 2);
        let keys = [first.key, second.key].map(|key| flat(untracked(key)));
        let temperature = self.config().temperature;
        let sum = contrast([first.query, second.query].map(flat), keys, (temperature, self.context()));
        Loss::new().with(CONTRAST, sum, 2.0 * temperature)
    }
}
