//! Greedy generation, token by token, under any layout.
//!
//! Experts exchange tokens between replicas, so every rank makes the same number of steps: after each one the ranks
//! agree whether any row anywhere is unfinished. Finished rows are padding meanwhile: experts do not see them.

use std::hash::{DefaultHasher, Hash, Hasher};

use burn::module::Module;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use epl_comm::ReduceOp;
use epl_core::{Error, Pass, Result};
use epl_modules::{TokenMask, TransformerCache, TransformerInput, TransformerLayer, split_argmax};

use super::batch::T5Batcher;
use super::config::is_token;
use super::model::T5;

impl T5 {
    /// The most probable continuation, token by token: what the decoder writes for each source, without the end
    /// token, of at most `longest` tokens.
    ///
    /// Replicas may have different numbers of sources, or none. Ranks of one tensor group have the same sources.
    /// Collective over the world.
    ///
    /// Of a model with experts, each step routes one token of a sequence. It equals what a forward over the whole
    /// sequence says as long as that forward drops no token: an expert that is full with earlier and later tokens of
    /// the sequence is not full here.
    ///
    /// # Errors
    ///
    /// When a source has no token, a token is not in the vocabulary, ranks of one tensor group have different sources,
    /// `longest` is not the same on every rank, or a peer fails.
    pub fn generate(&self, sources: &[Vec<i64>], longest: usize) -> Result<Vec<Vec<i64>>> {
        self.agree(sources, longest)?;
        let context = self.context();
        context.begin(Pass { step: context.step(), training: false, samples: [].into(), empty: false });
        let model = self.valid();
        let mut generated = epl_comm::catch(|| {
            // A rank without sources goes along with one that is finished from the start and thrown away.
            let stand_in = [vec![self.config().eos]];
            match sources.is_empty() {
                true => Generation::new(&model, &stand_in, None).run(&model, longest),
                false => Generation::new(&model, sources, Some(self.config().decoder_start)).run(&model, longest),
            }
        })??;
        generated.truncate(sources.len());
        Ok(generated)
    }

    /// All ranks go on together, or leave together with an error. Collective.
    fn agree(&self, sources: &[Vec<i64>], longest: usize) -> Result<()> {
        let (tensor, world) = (self.context().tensor(), self.context().world());
        let mut hasher = DefaultHasher::new();
        sources.hash(&mut hasher);
        let hashes = tensor.all_gather_counts(&[hasher.finish() as i64])?;
        let other = hashes.iter().position(|hash| *hash != hashes[0]).map(|member| {
            let (first, other) = (tensor.global(0), tensor.global(member));
            format!("{first} and {other} hold parts of one replica, but were given different sources")
        });
        let fault = self.fault(sources).or(other);
        let asked = world.all_gather_counts(&[i64::from(fault.is_some()), longest as i64])?;
        if let Some(other) = asked.iter().position(|asked| asked[0] != 0) {
            // The rank at fault says why.
            let elsewhere = || format!("{} was given sources that cannot be used", world.global(other));
            return Err(Error::invalid(fault.unwrap_or_else(elsewhere)));
        }
        match asked.iter().position(|other| other[1] != asked[0][1]) {
            None => Ok(()),
            Some(other) => Err(Error::invalid(format!(
                "{} generates at most {} tokens, but {} at most {}: give every rank the same `longest`",
                world.global(0),
                asked[0][1],
                world.global(other),
                asked[other][1]
            ))),
        }
    }

    fn fault(&self, sources: &[Vec<i64>]) -> Option<String> {
        let vocab = self.config().vocab;
        let known = |token: &i64| is_token(*token, vocab);
        let (row, source) = sources.iter().enumerate().find(|(_, row)| row.is_empty() || !row.iter().all(known))?;
        Some(match source.iter().find(|token| !known(token)) {
            Some(token) => format!("source {row} has token {token}; the tokens are 0 to {}", vocab - 1),
            None => format!("source {row} has no token; give it at least the end token"),
        })
    }
}

/// The rows that are still generated, and what all rows have so far.
struct Generation {
    device: Device,
    written: Vec<Vec<i64>>,
    /// The number of each row that is still in the batch.
    rows: Vec<usize>,
    /// What each of them wrote last, or nothing once it is finished.
    last: Vec<Option<i64>>,
    memory: Tensor<3>,
    padding: Tensor<2, Bool>,
    caches: Vec<TransformerCache>,
}

impl Generation {
    /// Runs the encoder. The decoder starts with `start`; without one, all rows are finished already.
    fn new(model: &T5, sources: &[Vec<i64>], start: Option<i64>) -> Self {
        let device = model.device();
        let (source, padding, real) = T5Batcher::new(model.config()).source(sources, &device);
        let length = source.dims()[1];
        let bias = model.encoder.bias.forward(length, length, 0);
        let hidden = model.encoder.enter(model.embed(&source));
        let block = |hidden, block: &TransformerLayer| {
            let input = TransformerInput::new(hidden).with_padding(padding.clone()).with_bias(bias.clone());
            block.forward(input.with_tokens(real.clone())).hidden
        };
        let memory = model.encoder.leave(model.encoder.blocks.iter().fold(hidden, block));
        Self {
            written: vec![Vec::new(); sources.len()],
            rows: (0..sources.len()).collect(),
            last: vec![start; sources.len()],
            caches: vec![TransformerCache::new(); model.decoder.blocks.len()],
            memory,
            padding,
            device,
        }
    }

    /// Steps until every row of every rank is finished, or has `longest` tokens.
    fn run(mut self, model: &T5, longest: usize) -> Result<Vec<Vec<i64>>> {
        let world = model.context().world();
        for position in 0..longest {
            let unfinished = f64::from(u8::from(self.last.iter().any(Option::is_some)));
            if world.all_reduce_values(&[unfinished], ReduceOp::Max)?[0] == 0.0 {
                break;
            }
            self.forget_finished();
            let next = self.step(model, position);
            self.write(&next, model.config().eos);
        }
        Ok(self.written)
    }

    /// The next token of every row in the batch.
    fn step(&mut self, model: &T5, position: usize) -> Vec<i64> {
        let rows = self.rows.len();
        let tokens: Vec<i64> = self.last.iter().map(|token| token.unwrap_or(model.config().pad)).collect();
        let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [rows, 1]), &self.device);
        let lengths: Vec<usize> = self.last.iter().map(|token| usize::from(token.is_some())).collect();
        let bias = model.decoder.bias.forward(1, position + 1, position);
        let real = TokenMask::from_lengths(&lengths, 1);
        let mut hidden = model.decoder.enter(model.embed(&tokens));
        for (block, cache) in model.decoder.blocks.iter().zip(&mut self.caches) {
            let input = TransformerInput::new(hidden)
                .causal()
                .with_bias(bias.clone())
                .with_memory(self.memory.clone(), Some(self.padding.clone()))
                .with_tokens(real.clone());
            hidden = block.forward_cache(input, cache).hidden;
        }
        let logits = model.logits(hidden).local();
        let classes = logits.dims()[2];
        split_argmax(model.split(logits.reshape([rows, classes]))).into_data().iter::<i64>().collect()
    }

    fn write(&mut self, next: &[i64], eos: i64) {
        for ((last, row), token) in self.last.iter_mut().zip(&self.rows).zip(next) {
            *last = last.and(Some(*token)).filter(|token| *token != eos);
            self.written[*row].extend(*last);
        }
    }

    /// Takes finished rows out of the batch when they are the half of it; one row stays, so that this rank goes
    /// along with the others.
    fn forget_finished(&mut self) {
        let mut kept: Vec<usize> = (0..self.rows.len()).filter(|row| self.last[*row].is_some()).collect();
        if 2 * kept.len() > self.rows.len() || self.rows.len() == 1 {
            return;
        }
        if kept.is_empty() {
            kept.push(0);
        }
        let ids: Vec<i64> = kept.iter().map(|row| *row as i64).collect();
        let ids = Tensor::<1, Int>::from_data(ids.as_slice(), &self.device);
        self.memory = self.memory.clone().select(0, ids.clone());
        self.padding = self.padding.clone().select(0, ids.clone());
        self.caches = core::mem::take(&mut self.caches).into_iter().map(|cache| cache.select(ids.clone())).collect();
        self.rows = kept.iter().map(|row| self.rows[*row]).collect();
        self.last = kept.iter().map(|row| self.last[*row]).collect();
    }
}
