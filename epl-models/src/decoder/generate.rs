//! What a decoder writes behind a prompt.
//!
//! Prompts of a batch are padded on their left, so that all end together and each step adds one column: no real token looks
//! at padding. Rotary positions count padding too: what queries see of keys depends on how far these are before them, so that
//! in exact arithmetic padding changes nothing. Angles are f32, and grow less exact with the position: at 8,000 columns of
//! padding logits are off by up to 1e-3. Who needs a row's logits as they are without the others gives prompts of one length
//! together. Learned positions are those of each row. Windows are of
//! columns, too: padding stands before all that is real, and takes no place from it.

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use epl_comm::Split;
use epl_core::Incremental;
use epl_modules::{TokenMask, TransformerCache};

use super::batch::{DecoderBatch, DecoderStep};
use super::carry::DecoderCarry;
use super::model::Decoder;
use crate::generation::{Generative, PromptRows};

/// The prompts of the rows of a batch.
#[derive(Clone, Debug)]
pub struct DecoderPrompts {
    device: Device,
    pad: i64,
    prompts: Vec<Vec<i64>>,
    /// Columns that the longest prompt takes.
    width: usize,
}

impl Incremental for Decoder {
    type State = TransformerCache;

    fn forward_step(
        &self,
        index: usize,
        carry: Option<DecoderCarry>,
        batch: &DecoderBatch,
        cache: &mut TransformerCache,
    ) -> DecoderCarry {
        self.run(index, carry, batch, Some(cache))
    }
}

impl Generative for Decoder {
    type Prompts = DecoderPrompts;

    fn vocabulary(&self) -> usize {
        self.config().vocab
    }

    fn ends(&self) -> Vec<i64> {
        self.config().ends.clone()
    }

    fn longest_text(&self) -> Option<usize> {
        Some(self.config().positions)
    }

    fn prompts(&self, prompts: &[Vec<i64>], device: &Device) -> DecoderPrompts {
        DecoderPrompts {
            device: device.clone(),
            pad: self.config().pad.unwrap_or(0),
            prompts: prompts.to_vec(),
            width: prompts.iter().map(Vec::len).max().unwrap_or(1),
        }
    }

    fn begun(&self, prompt: &[i64]) -> Vec<i64> {
        prompt.to_vec()
    }

    fn last_logits(&self, carry: DecoderCarry) -> Split<2> {
        let [rows, _, classes] = carry.hidden.dims();
        self.split(carry.hidden.reshape([rows, classes]))
    }
}

impl DecoderPrompts {
    /// By row, its columns of padding.
    fn before(&self, row: usize) -> usize {
        self.width - self.prompts[row].len()
    }

    fn ints(&self, rows: Vec<i64>) -> Tensor<2, Int> {
        let count = self.prompts.len();
        let width = rows.len() / count;
        Tensor::from_data(TensorData::new(rows, [count, width]), &self.device)
    }
}

impl PromptRows<DecoderBatch> for DecoderPrompts {
    fn batch(&self, step: usize, last: &[Option<i64>]) -> DecoderBatch {
        let rows = 0..self.prompts.len();
        let (ids, positions): (Vec<i64>, Vec<i64>) = match step {
            0 => {
                let row = |row: usize| {
                    let padding = (0..self.before(row)).map(|_| (self.pad, 0));
                    let tokens = self.prompts[row].iter().enumerate();
                    padding.chain(tokens.map(|(position, token)| (*token, position as i64))).collect::<Vec<_>>()
                };
                rows.clone().flat_map(row).unzip()
            }
            _ => {
                let position = |row: usize| (self.prompts[row].len() + step - 1) as i64;
                rows.clone().map(|row| (last[row].unwrap_or(self.pad), position(row))).unzip()
            }
        };
        let columns = self.width + step;
        let padding: Vec<bool> =
            rows.clone().flat_map(|row| (0..columns).map(move |column| column < self.before(row))).collect();
        let real = match step {
            0 => TokenMask::new(padding.iter().map(|padding| !padding).collect(), columns),
            _ => TokenMask::all(rows.len(), 1),
        };
        let padding = padding.contains(&true).then(|| {
            Tensor::<2, Bool>::from_data(TensorData::new(padding, [self.prompts.len(), columns]), &self.device)
        });
        let ids = self.ints(ids);
        DecoderBatch {
            real,
            targets: ids.full_like(super::IGNORED),
            ids,
            counted: 0,
            step: Some(DecoderStep { positions: Some(self.ints(positions)), padding }),
        }
    }

    fn select(&mut self, rows: &[usize]) {
        self.prompts = rows.iter().map(|row| self.prompts[*row].clone()).collect();
    }
}
