//! The model as a chain of segments, with its loss.

use epl_core::{Loss, LossWeights, Model};
use epl_modules::{SplitCrossEntropyConfig, TransformerInput};

use super::batch::DecoderBatch;
use super::carry::DecoderCarry;
use super::model::Decoder;
use crate::rows::IGNORED;

/// The loss of the next tokens.
const CROSS_ENTROPY: &str = "cross_entropy";

/// What a segment runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecoderSegment {
    Embeddings,
    Layer(usize),
    Head,
}

impl Decoder {
    /// What a segment runs.
    pub(super) fn part(&self, segment: usize) -> DecoderSegment {
        match segment {
            0 => DecoderSegment::Embeddings,
            index if index <= self.layers.len() => DecoderSegment::Layer(index - 1),
            _ => DecoderSegment::Head,
        }
    }
}

impl Model for Decoder {
    type Batch = DecoderBatch;
    type Carry = DecoderCarry;

    fn segments(&self) -> usize {
        self.layers.len() + 2
    }

    fn segment_name(&self, index: usize) -> String {
        match self.part(index) {
            DecoderSegment::Embeddings => "embeddings".to_string(),
            DecoderSegment::Layer(layer) => format!("layers.{layer}"),
            DecoderSegment::Head => "head".to_string(),
        }
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        let head = self.layers.len() + 1;
        let layer = |rest: &str| rest.split('.').next().and_then(|index| index.parse::<usize>().ok());
        match path.split_once('.') {
            Some(("embeddings", rest)) if rest.starts_with("tokens.") && self.head.is_none() => vec![0, head],
            Some(("embeddings", _)) => vec![0],
            Some(("layers", rest)) => layer(rest).map(|layer| layer + 1).into_iter().collect(),
            Some(("final_norm" | "head", _)) => vec![head],
            _ => Vec::new(),
        }
    }

    fn forward_segment(&self, index: usize, carry: Option<DecoderCarry>, batch: &DecoderBatch) -> DecoderCarry {
        let entered = |carry: Option<DecoderCarry>| carry.expect("a segment behind the first one gets a carry").hidden;
        let hidden = match self.part(index) {
            DecoderSegment::Embeddings => self.embeddings.forward(batch.ids.clone()),
            // Padding stands behind all real tokens, where no real one looks.
            DecoderSegment::Layer(layer) => {
                self.layers[layer].forward(TransformerInput::new(entered(carry)).causal()).hidden
            }
            DecoderSegment::Head => self.logits(entered(carry)).local(),
        };
        DecoderCarry { hidden }
    }

    fn weights(&self, batch: &DecoderBatch) -> LossWeights {
        LossWeights::new().with(CROSS_ENTROPY, batch.counted as f64)
    }

    fn loss(&self, carry: DecoderCarry, batch: &DecoderBatch) -> Loss {
        let [rows, length, classes] = carry.hidden.dims();
        let logits = self.split(carry.hidden.reshape([rows * length, classes]));
        let criterion = SplitCrossEntropyConfig::new().with_ignore_index(IGNORED).init(self.context());
        let targets = batch.targets.clone().reshape([rows * length]);
        Loss::new().with(CROSS_ENTROPY, criterion.forward(logits, targets), 1.0)
    }
}
