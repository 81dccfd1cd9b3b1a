//! What a T5 writes for a source.

use burn::tensor::{Bool, Device, Int, Tensor};
use epl_comm::Split;
use epl_core::{Engine, Result};
use epl_modules::TokenMask;

use super::batch::{T5Batch, T5Batcher};
use super::carry::T5Carry;
use super::model::T5;
use crate::generation::{GenerationConfig, Generative, PromptRows, generate};

/// The sources of the rows of a batch.
#[derive(Clone, Debug)]
pub struct T5Sources {
    batcher: T5Batcher,
    device: Device,
    lengths: Vec<usize>,
    source: Tensor<2, Int>,
    padding: Tensor<2, Bool>,
}

impl T5 {
    /// The most probable continuation, token by token: what the decoder of an engine's model writes for each source,
    /// without the end token, of at most `longest` tokens. [`generate`] with [`GenerationConfig::new`]. Collective over the world.
    ///
    /// # Errors
    ///
    /// As [`generate`].
    pub fn generate(engine: &Engine<Self>, sources: &[Vec<i64>], longest: usize) -> Result<Vec<Vec<i64>>> {
        generate(engine, sources, &GenerationConfig::new(longest))
    }
}

impl Generative for T5 {
    type Prompts = T5Sources;

    fn vocabulary(&self) -> usize {
        self.config().vocab
    }

    fn ends(&self) -> Vec<i64> {
        self.config().end_tokens()
    }

    fn prompts(&self, sources: &[Vec<i64>], device: &Device) -> T5Sources {
        let batcher = T5Batcher::new(self.config());
        let (source, padding, _) = batcher.source(sources, device);
        T5Sources { batcher, device: device.clone(), lengths: sources.iter().map(Vec::len).collect(), source, padding }
    }

    fn begun(&self, _source: &[i64]) -> Vec<i64> {
        vec![self.config().decoder_start]
    }

    fn last_logits(&self, carry: T5Carry) -> Split<2> {
        let [rows, positions, classes] = carry.hidden.dims();
        self.split(carry.hidden.slice([0..rows, positions - 1..positions]).reshape([rows, classes]))
    }
}

impl PromptRows<T5Batch> for T5Sources {
    fn batch(&self, _step: usize, last: &[Option<i64>]) -> T5Batch {
        let real = TokenMask::from_lengths(&self.lengths, self.source.dims()[1]);
        self.batcher.step((self.source.clone(), self.padding.clone(), real), last, &self.device)
    }

    fn select(&mut self, rows: &[usize]) {
        let ids: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
        let ids = Tensor::<1, Int>::from_data(ids.as_slice(), &self.device);
        self.source = self.source.clone().select(0, ids.clone());
        self.padding = self.padding.clone().select(0, ids);
        self.lengths = rows.iter().map(|row| self.lengths[*row]).collect();
    }
}
