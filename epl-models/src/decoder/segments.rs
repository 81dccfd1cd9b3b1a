//! The model as a chain of segments, with its loss.

use epl_core::{Loss, LossWeights, Model};
use epl_modules::{
    Balance, RouterLosses, SplitCrossEntropyConfig, TransformerCache, TransformerInput, TransformerOutput,
};

use super::batch::DecoderBatch;
use super::carry::DecoderCarry;
use super::model::Decoder;
use crate::rows::IGNORED;

/// The loss of the next tokens.
const CROSS_ENTROPY: &str = "cross_entropy";
/// The load-balancing loss of the experts.
const AUXILIARY: &str = "auxiliary";
/// The routers' z loss.
const Z: &str = "z";

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

    /// One segment; with the state of earlier steps one of a step of generation, whose head looks at the last token only.
    pub(super) fn run(
        &self,
        index: usize,
        carry: Option<DecoderCarry>,
        batch: &DecoderBatch,
        cache: Option<&mut TransformerCache>,
    ) -> DecoderCarry {
        let entered = |carry: Option<DecoderCarry>| carry.expect("a segment behind the first one gets a carry");
        let step = batch.step.clone().unwrap_or_default();
        match self.part(index) {
            DecoderSegment::Embeddings => {
                let hidden = self.embeddings.forward_at(batch.ids.clone(), step.positions);
                DecoderCarry { hidden, losses: None }
            }
            DecoderSegment::Layer(layer) => {
                let DecoderCarry { hidden, losses } = entered(carry);
                // In training padding stands behind all real tokens, where no real one looks.
                let input = TransformerInput::new(hidden).causal().with_tokens(batch.real.clone());
                let input = match step.padding {
                    Some(padding) => input.with_padding(padding),
                    None => input,
                };
                let TransformerOutput { hidden, losses: more, .. } = match cache {
                    Some(cache) => self.layers[layer].forward_cache(input, cache),
                    None => self.layers[layer].forward(input),
                };
                DecoderCarry { hidden, losses: RouterLosses::add(losses, more) }
            }
            DecoderSegment::Head => {
                let DecoderCarry { hidden, losses } = entered(carry);
                let hidden = match cache {
                    Some(_) => hidden.clone().narrow(1, hidden.dims()[1] - 1, 1),
                    None => hidden,
                };
                DecoderCarry { hidden: self.logits(hidden).local(), losses }
            }
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
        self.run(index, carry, batch, None)
    }

    fn weights(&self, batch: &DecoderBatch) -> LossWeights {
        let weights = LossWeights::new().with(CROSS_ENTROPY, batch.counted as f64);
        let Some(experts) = self.config().experts.as_ref() else { return weights };
        let rows = batch.real.groups() as f64;
        let weights = match experts.balance {
            _ if experts.auxiliary == 0.0 => weights,
            Balance::Sequences => weights.with(AUXILIARY, rows),
            Balance::Batch => {
                let layers = (0..self.layers.len()).filter(|layer| experts.are_in(*layer)).count();
                let tokens: usize = batch.real.real_tokens().iter().sum();
                weights.with(AUXILIARY, (layers * tokens) as f64)
            }
        };
        if experts.z == 0.0 { weights } else { weights.with(Z, rows) }
    }

    fn loss(&self, carry: DecoderCarry, batch: &DecoderBatch) -> Loss {
        let [rows, length, classes] = carry.hidden.dims();
        let logits = self.split(carry.hidden.reshape([rows * length, classes]));
        let criterion = SplitCrossEntropyConfig::new().with_ignore_index(IGNORED).init(self.context());
        let targets = batch.targets.clone().reshape([rows * length]);
        let loss = Loss::new().with(CROSS_ENTROPY, criterion.forward(logits, targets), 1.0);
        let (Some(experts), Some(losses)) = (self.config().experts.as_ref(), carry.losses) else { return loss };
        let loss = match experts.balance {
            _ if experts.auxiliary == 0.0 => loss,
            Balance::Sequences => loss.with(AUXILIARY, losses.auxiliary.clone(), experts.auxiliary),
            Balance::Batch => loss.with(AUXILIARY, losses.over_batch(self.context()), experts.auxiliary),
        };
        if experts.z == 0.0 { loss } else { loss.with(Z, losses.z, experts.z) }
    }
}
