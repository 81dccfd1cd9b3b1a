//! The model as a chain of segments, with its loss.

use epl_core::{Loss, LossWeights, Model};
use epl_modules::TransformerInput;

use super::batch::BertBatch;
use super::carry::BertCarry;
use super::head::BertHead;
use super::model::Bert;

impl<H: BertHead> Model for Bert<H> {
    type Batch = BertBatch<H::Labels>;
    type Carry = BertCarry;

    fn segments(&self) -> usize {
        self.layers.len() + 1
    }

    fn segment_name(&self, index: usize) -> String {
        if index < self.layers.len() { format!("layers.{index}") } else { "head".to_string() }
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        let (first, head) = (0, self.layers.len());
        match path.split_once('.') {
            Some(("embeddings", rest)) if rest.starts_with("words.") && H::USES_WORDS => vec![first, head],
            Some(("embeddings", _)) => vec![first],
            Some(("layers", rest)) => rest.split('.').next().and_then(|index| index.parse().ok()).into_iter().collect(),
            Some(("head", _)) => vec![head],
            _ => Vec::new(),
        }
    }

    fn forward_segment(&self, index: usize, carry: Option<BertCarry>, batch: &BertBatch<H::Labels>) -> BertCarry {
        let hidden = carry.map_or_else(|| self.embeddings.forward(batch), |carry| carry.hidden);
        match self.layers.get(index) {
            Some(layer) => {
                let input = TransformerInput::new(hidden).with_padding(batch.padding.clone());
                BertCarry { hidden: layer.forward(input).hidden, sentence: None }
            }
            None => {
                let words = &self.embeddings.words;
                let sentence = self.head.sentence_logits(hidden.clone(), words);
                BertCarry { hidden: self.head.logits(hidden, words), sentence }
            }
        }
    }

    fn weights(&self, batch: &BertBatch<H::Labels>) -> LossWeights {
        H::weights(&batch.labels)
    }

    fn loss(&self, carry: BertCarry, batch: &BertBatch<H::Labels>) -> Loss {
        self.head.loss(carry, batch)
    }
}
