//! Greedy generation, token by token, under any layout.
//!
//! Every rank makes the same number of steps, as experts exchange tokens between replicas, and parameters are gathered over
//! them: after each step the ranks agree whether any row anywhere is unfinished. Finished rows are padding meanwhile: experts
//! do not see them.

use std::hash::{DefaultHasher, Hash, Hasher};

use burn::tensor::{Bool, Device, Int, Tensor};
use epl_comm::{ProcessGroup, ReduceOp};
use epl_core::{Axis, Context, Decoding, Engine, Error, Result};
use epl_modules::{TokenMask, split_argmax};

use super::batch::{T5Batch, T5Batcher};
use super::carry::T5Carry;
use super::config::T5Config;
use super::model::T5;
use crate::rows::is_token;

impl T5 {
    /// The most probable continuation, token by token: what the decoder of an engine's model writes for each source,
    /// without the end token, of at most `longest` tokens.
    ///
    /// It goes through the stages, with parameters gathered segment by segment, as in training. Replicas may have different
    /// numbers of sources, or none. Ranks of one replica have the same sources. Collective over the world.
    ///
    /// Of a model with experts, each step routes one token of a sequence. It equals what a forward over the whole
    /// sequence says as long as that forward drops no token: an expert that is full with earlier and later tokens of
    /// the sequence is not full here.
    ///
    /// # Errors
    ///
    /// When a source has no token, a token is not in the vocabulary, ranks of one replica have different sources,
    /// `longest` is not the same on every rank, stages have different widths, or a peer fails.
    pub fn generate(engine: &Engine<Self>, sources: &[Vec<i64>], longest: usize) -> Result<Vec<Vec<i64>>> {
        let (config, device) = (engine.model().config(), engine.device().clone().without_autodiff());
        agree(config, engine.context(), sources, longest)?;
        // A rank without sources goes along with one that is finished from the start and thrown away.
        let stand_in = [vec![config.eos]];
        let mut generated = match sources.is_empty() {
            true => Generation::new(config, &device, &stand_in, None).run(engine, longest),
            false => Generation::new(config, &device, sources, Some(config.decoder_start)).run(engine, longest),
        }?;
        generated.truncate(sources.len());
        Ok(generated)
    }

    /// The most probable token of the last position of every row, from what the last segment returned.
    fn most_probable(&self, carry: T5Carry) -> Vec<i64> {
        let [rows, positions, classes] = carry.hidden.dims();
        let last = carry.hidden.slice([0..rows, positions - 1..positions]).reshape([rows, classes]);
        split_argmax(self.split(last)).into_data().iter::<i64>().collect()
    }
}

/// All ranks go on together, or leave together with an error. Collective.
fn agree(config: &T5Config, context: &Context, sources: &[Vec<i64>], longest: usize) -> Result<()> {
    let world = context.world();
    let others = [context.tensor(), context.axis(Axis::Pipeline)].map(|group| other_sources(group, sources));
    let [in_slices, in_stages] = others;
    let fault = fault(config, sources).or(in_slices?).or(in_stages?);
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

/// What is wrong if ranks that hold parts of one replica have different sources. Collective over them.
fn other_sources(group: &ProcessGroup, sources: &[Vec<i64>]) -> Result<Option<String>> {
    let mut hasher = DefaultHasher::new();
    sources.hash(&mut hasher);
    let hashes = group.all_gather_counts(&[hasher.finish() as i64])?;
    let other = hashes.iter().position(|hash| *hash != hashes[0]);
    Ok(other.map(|member| {
        let (first, other) = (group.global(0), group.global(member));
        format!("{first} and {other} hold parts of one replica, but were given different sources")
    }))
}

/// What is wrong with this rank's sources.
fn fault(config: &T5Config, sources: &[Vec<i64>]) -> Option<String> {
    let known = |token: &i64| is_token(*token, config.vocab);
    let (row, source) = sources.iter().enumerate().find(|(_, row)| row.is_empty() || !row.iter().all(known))?;
    Some(match source.iter().find(|token| !known(token)) {
        Some(token) => format!("source {row} has token {token}; the tokens are 0 to {}", config.vocab - 1),
        None => format!("source {row} has no token; give it at least the end token"),
    })
}

/// The rows that are still generated, and what all rows have so far.
struct Generation<'a> {
    config: &'a T5Config,
    device: &'a Device,
    sources: &'a [Vec<i64>],
    /// The sources of the rows that are in the batch, and where they are padded.
    source: Tensor<2, Int>,
    padding: Tensor<2, Bool>,
    written: Vec<Vec<i64>>,
    /// The number of each row that is still in the batch.
    rows: Vec<usize>,
    /// What each of them wrote last, or nothing once it is finished.
    last: Vec<Option<i64>>,
}

impl<'a> Generation<'a> {
    /// The decoder starts with `start`; without one, all rows are finished already.
    fn new(config: &'a T5Config, device: &'a Device, sources: &'a [Vec<i64>], start: Option<i64>) -> Self {
        let (source, padding, _) = T5Batcher::new(config).source(sources, device);
        Self {
            config,
            device,
            sources,
            source,
            padding,
            written: vec![Vec::new(); sources.len()],
            rows: (0..sources.len()).collect(),
            last: vec![start; sources.len()],
        }
    }

    /// Steps until every row of every rank is finished, or has `longest` tokens.
    fn run(mut self, engine: &Engine<T5>, longest: usize) -> Result<Vec<Vec<i64>>> {
        let (mut decoding, world) = (engine.decoding()?, engine.context().world());
        for _ in 0..longest {
            let unfinished = f64::from(u8::from(self.last.iter().any(Option::is_some)));
            if world.all_reduce_values(&[unfinished], ReduceOp::Max)?[0] == 0.0 {
                break;
            }
            self.forget_finished(&mut decoding);
            let next = decoding.step(self.rows.len(), self.batch(), |model, carry| Ok(model.most_probable(carry)))?;
            self.write(&next);
        }
        Ok(self.written)
    }

    /// What the next step reads.
    fn batch(&self) -> T5Batch {
        let lengths: Vec<usize> = self.rows.iter().map(|row| self.sources[*row].len()).collect();
        let real = TokenMask::from_lengths(&lengths, self.source.dims()[1]);
        T5Batcher::new(self.config).step((self.source.clone(), self.padding.clone(), real), &self.last, self.device)
    }

    fn write(&mut self, next: &[i64]) {
        for ((last, row), token) in self.last.iter_mut().zip(&self.rows).zip(next) {
            *last = last.and(Some(*token)).filter(|token| *token != self.config.eos);
            self.written[*row].extend(*last);
        }
    }

    /// Takes finished rows out of the batch when they are the half of it; one row stays, so that this rank goes
    /// along with the others.
    fn forget_finished(&mut self, decoding: &mut Decoding<'_, T5>) {
        let mut kept: Vec<usize> = (0..self.rows.len()).filter(|row| self.last[*row].is_some()).collect();
        if 2 * kept.len() > self.rows.len() || self.rows.len() == 1 {
            return;
        }
        if kept.is_empty() {
            kept.push(0);
        }
        let ids: Vec<i64> = kept.iter().map(|row| *row as i64).collect();
        let ids = Tensor::<1, Int>::from_data(ids.as_slice(), self.device);
        self.source = self.source.clone().select(0, ids.clone());
        self.padding = self.padding.clone().select(0, ids);
        decoding.select(&kept);
        self.rows = kept.iter().map(|row| self.rows[*row]).collect();
        self.last = kept.iter().map(|row| self.last[*row]).collect();
    }
}
