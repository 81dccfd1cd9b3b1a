//! Whether ranks were given the batches that they are to have in common.
//!
//! Ranks that hold slices of the same layers run the same rows, as all stages of a replica do; a batch that the engine itself
//! cuts is the same on every rank. With others nothing would fail: what does not belong together would be summed. So the sums
//! that are made in every step, before anything is updated, have a few numbers more:
//!
//! ```text
//! over the replicas    Σ of a number for each sample            the same in every slice and stage
//! over all ranks       Σ c and Σ c² of a digest c of these      n · Σ c² = (Σ c)²  where all c are equal
//! ```
//!
//! All of them are whole numbers below 2⁵³, so that sums are exact in any order. Only where the last equation does not hold do
//! ranks tell each other what they have.

use epl_comm::ProcessGroup;

use super::micro_batch::MicroBatch;
use crate::error::{Error, Result};
use crate::model::context::Context;
use crate::simulate::protocol::{OVER_ALL, OVER_REPLICAS};
use crate::stable_hash::stable_hash;
use crate::topology::cluster::Axis;

/// Into how many parts of 16 bits a digest is cut: squares of 2²⁰ ranks' parts are exact in a sum.
const PARTS: usize = OVER_ALL / 2;
const PART_BITS: u32 = 16;
/// Of the number for a sample: 2²⁹ of them are exact in a sum.
const SAMPLE_BITS: u32 = 24;

/// What a rank is given for a step or an evaluation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    /// The rows and the digest of a batch that every rank has whole.
    whole: Option<(usize, u64)>,
    /// How many samples this rank runs, and two numbers for them, without an order; stand-ins are none.
    samples: usize,
    own: [u64; OVER_REPLICAS],
    /// The same numbers of all replicas.
    all: [u64; OVER_REPLICAS],
}

impl Given {
    /// A batch of so many rows, which every rank has whole, with a digest of its values.
    pub fn whole(rows: usize, digest: u64) -> Self {
        Self { whole: Some((rows, digest)), ..Self::default() }
    }

    /// Adds what this rank runs.
    pub fn add<B>(&mut self, micro_batches: &[MicroBatch<B>]) {
        for sample in micro_batches.iter().filter(|batch| !batch.empty).flat_map(|batch| &*batch.samples) {
            let hash = stable_hash(sample);
            self.samples += 1;
            for (number, sum) in self.own.iter_mut().enumerate() {
                *sum += bits(hash, number, SAMPLE_BITS);
            }
        }
    }

    /// What is summed over the replicas.
    pub fn over_replicas(&self) -> [f64; OVER_REPLICAS] {
        self.own.map(|number| number as f64)
    }

    /// Takes that sum.
    pub fn summed(&mut self, sums: &[f64]) {
        self.all.iter_mut().zip(sums).for_each(|(own, sum)| *own = *sum as u64);
    }

    /// What is summed over all ranks.
    pub fn over_all(&self) -> [f64; OVER_ALL] {
        let digest = stable_hash(&[u64::from(self.whole.is_some()), self.digest(), self.all[0], self.all[1]][..]);
        let part = |index: usize| bits(digest, index, PART_BITS) as f64;
        core::array::from_fn(|index| if index < PARTS { part(index) } else { part(index - PARTS).powi(2) })
    }

    /// Takes that sum, which all ranks have alike. Collective where the ranks have something else.
    ///
    /// # Errors
    ///
    /// When they do: who, and how much.
    pub fn check(&self, sums: &[f64], world: &ProcessGroup, context: &Context) -> Result<()> {
        let (parts, squares) = sums.split_at(PARTS);
        let is_same = |(part, square): (&f64, &f64)| world.size() as u128 * *square as u128 == (*part as u128).pow(2);
        match parts.iter().zip(squares).all(is_same) {
            true => Ok(()),
            false => Err(Error::invalid(self.difference(world, context)?)),
        }
    }

    fn digest(&self) -> u64 {
        self.whole.map_or(0, |(rows, digest)| stable_hash(&(rows as u64, digest)))
    }

    /// Who has what. Collective.
    fn difference(&self, world: &ProcessGroup, context: &Context) -> Result<String> {
        let rows = self.whole.map_or(-1, |(rows, _)| rows as i64);
        let own = stable_hash(&self.own[..]).cast_signed();
        let told = world.all_gather_counts(&[rows, self.digest().cast_signed(), self.samples as i64, own])?;
        let rank = |member: usize| world.global(member);
        if let Some(other) = (1..told.len()).find(|other| told[*other][..2] != told[0][..2]) {
            return Ok(match (told[0][0], told[other][0]) {
                (-1, _) | (_, -1) => format!(
                    "{} and {} do not both call `train_batch`; make the same calls on every rank",
                    rank(0),
                    rank(other)
                ),
                (first, second) if first == second => format!(
                    "{} and {} gave different batches of {first} rows to `train_batch`, as their bits say; give every rank \
                     the same whole batch, of which each runs its own rows",
                    rank(0),
                    rank(other)
                ),
                (first, second) => format!(
                    "{} gave a batch of {first} rows to `train_batch`, and {} one of {second}; give every rank the same whole \
                     batch, of which each runs its own rows",
                    rank(0),
                    rank(other)
                ),
            });
        }
        let remedy = "divide the samples by `BatchShard::of`, not by the rank in the world";
        let first = |member: usize| context.mesh().group(Axis::Tensor, member)[0];
        Ok(match (0..told.len()).find(|member| told[*member][2..] != told[first(*member)][2..]) {
            Some(other) => format!(
                "{} and {} hold slices of the same layers, and run other samples ({} and {} samples); {remedy}",
                rank(first(other)),
                rank(other),
                told[first(other)][2],
                told[other][2]
            ),
            None => format!("the stages of the replicas run other samples than each other; {remedy}"),
        })
    }
}

/// One of the numbers of so many bits of which a hash is made.
fn bits(hash: u64, number: usize, bits: u32) -> u64 {
    (hash >> (number as u32 * bits)) & ((1 << bits) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(samples: &[&[u64]], whole: Option<(usize, u64)>) -> Given {
        let mut given = Given { whole, ..Given::default() };
        given.add(&samples.iter().map(|samples| MicroBatch::new((), samples.to_vec())).collect::<Vec<_>>());
        given.summed(&given.over_replicas());
        given
    }

    #[test]
    fn what_is_told_depends_on_the_samples_and_not_on_how_they_are_cut() {
        let one = given(&[&[3, 1, 4]], None);
        assert_eq!(one.over_all(), given(&[&[4], &[1, 3]], None).over_all());
        assert_ne!(one.over_all(), given(&[&[3, 1, 5]], None).over_all());
        assert_ne!(one.over_all(), given(&[&[3, 1, 4]], Some((3, 0))).over_all());
        assert_ne!(given(&[], Some((3, 7))).over_all(), given(&[], Some((4, 7))).over_all());
        let mut stand_in = one.clone();
        stand_in.add(&[MicroBatch::stand_in((), [9])]);
        assert_eq!((stand_in.own, stand_in.samples), (one.own, 3));
    }

    #[test]
    fn sums_over_the_largest_world_are_exact() {
        let most = ((1_u64 << PART_BITS) - 1).pow(2) * crate::config::MOST_RANKS as u64;
        assert!(most < 1 << f64::MANTISSA_DIGITS, "{most}");
    }
}
