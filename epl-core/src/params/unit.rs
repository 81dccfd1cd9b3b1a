//! Parameters that are reduced, gathered and put away as one flat tensor, and where each of them lies in it.
//!
//! ```text
//! whole   [ a a a a b b b b b b c c ]      all members, one after the other
//! own           [ a b b b b ]              the elements that this rank updates
//! kept    [ … ]                            the elements that this rank keeps between uses: all, or its own
//! ```

use std::ops::Range;

use burn::tensor::{DType, Device, Tensor};

use super::residency::{Home, Residency};
use super::{ParamRecord, Shard};
use crate::topology::cluster::Axis;

/// Parameters whose gradients travel as one flat tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Indices into [`ParamTable::records`](super::ParamTable::records).
    pub members: Vec<usize>,
    /// The axis it is reduced over.
    pub axis: Axis,
    /// The element type of all members.
    pub dtype: DType,
    /// Whether it is one gradient of which only some rows may travel.
    pub sparse: bool,
    /// It starts after the backward of this segment.
    pub after_segment: usize,
    /// Elements of all members together, on the rank that holds the most: the same on every rank, so that all pack alike.
    pub numel: usize,
    /// The elements of its flat tensor that each rank of the axis keeps, one rank's after the other's; none where every
    /// rank keeps all.
    pub shards: Vec<usize>,
    /// Where it lies between its uses.
    pub residency: Residency,
    /// Where its members lie.
    pub slots: Vec<Slot>,
    /// The elements of what this rank updates that are sent to the others, with padding.
    pub sent: usize,
}

/// Where a member lies in the flat tensors of its bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The number of its record.
    pub record: usize,
    /// Its place in the whole.
    pub whole: Range<usize>,
    /// The elements of it that this rank updates.
    pub own: Range<usize>,
    /// The place of those among all that this rank updates.
    pub own_at: Range<usize>,
    /// The elements of it that this rank keeps between uses.
    pub kept: Range<usize>,
    /// The place of those among all that this rank keeps.
    pub kept_at: Range<usize>,
}

impl Bucket {
    /// A bucket of at least one record; all are of one axis and element type. It is [laid out](Self::lay_out) later.
    pub(crate) fn new(members: Vec<usize>, records: &[ParamRecord]) -> Self {
        let (axis, dtype) = (records[members[0]].reduced_over(), records[members[0]].dtype);
        let of = |member: &usize| &records[*member];
        let after_segment = members.iter().map(of).map(ParamRecord::first_segment).min().unwrap_or(0);
        let numel = members.iter().map(of).map(ParamRecord::largest_numel).sum();
        Self {
            members,
            axis,
            dtype,
            sparse: false,
            after_segment,
            numel,
            shards: Vec::new(),
            residency: Residency::REPLICATED,
            slots: Vec::new(),
            sent: 0,
        }
    }

    /// Where its members lie, once it is known how it is divided, and where it lies.
    pub(crate) fn lay_out(&mut self, records: &[ParamRecord], rank: usize, residency: Residency) {
        let (mut own_at, mut kept_at) = (0, 0);
        let slot = |(record, whole): (usize, Range<usize>)| {
            let own = records[record].own_range();
            let kept = if residency.is_sharded() { own.clone() } else { 0..whole.len() };
            let slot = Slot {
                record,
                whole,
                own_at: own_at..own_at + own.len(),
                kept_at: kept_at..kept_at + kept.len(),
                own,
                kept,
            };
            (own_at, kept_at) = (slot.own_at.end, slot.kept_at.end);
            slot
        };
        self.slots = self.wholes(records).map(slot).collect();
        self.sent = self.shards.get(rank).copied().unwrap_or(own_at);
        self.residency = residency;
    }

    /// Where its members lie in the whole, one after the other.
    fn wholes(&self, records: &[ParamRecord]) -> impl Iterator<Item = (usize, Range<usize>)> {
        let mut end = 0;
        self.members.iter().map(move |member| {
            let start = end;
            end += records[*member].numel();
            (*member, start..end)
        })
    }

    /// The bytes of all members together.
    pub fn bytes(&self) -> usize {
        self.numel * self.dtype.size()
    }

    /// The range of a rank's elements in the flat tensor; all, where every rank keeps all.
    pub fn shard(&self, rank: usize) -> Range<usize> {
        let start = self.shards[..rank.min(self.shards.len())].iter().sum();
        start..self.shards.get(rank).map_or(usize::MAX, |len| start + len)
    }

    /// The shard of every member of a bucket that is cut, as `rank` sees it.
    pub(crate) fn shards_of(&self, records: &[ParamRecord], rank: usize) -> Vec<(usize, Shard)> {
        let ends = self.shards.iter().scan(0, |end, len| {
            *end += len;
            Some(*end - len..*end)
        });
        let (all, own): (Vec<Range<usize>>, Range<usize>) = (ends.collect(), self.shard(rank));
        let shard = |(member, whole): (usize, Range<usize>)| {
            let sizes = all.iter().map(|shard| within(shard, &whole).len()).collect();
            (member, Shard { sizes, range: within(&own, &whole) })
        };
        self.wholes(records).map(shard).collect()
    }

    /// Whether the two may travel together.
    pub(crate) fn matches(&self, other: &Self) -> bool {
        (self.axis, self.dtype) == (other.axis, other.dtype)
    }

    /// The elements that this rank updates.
    pub(crate) fn own_len(&self) -> usize {
        self.slots.last().map_or(0, |slot| slot.own_at.end)
    }

    /// The elements that this rank keeps between uses where the bucket lies flat, with padding.
    pub(crate) fn kept_len(&self) -> usize {
        match self.residency.parameters {
            Home::Flat { is_shard: true, .. } => self.sent,
            _ => self.slots.last().map_or(0, |slot| slot.kept_at.end),
        }
    }

    /// The zeros that are sent behind so many elements of its members: those of the last shard, where each rank gets its
    /// shard alone.
    pub(crate) fn padding(&self, held: usize) -> usize {
        match self.residency.scatters {
            true => self.shards.iter().sum::<usize>().saturating_sub(held),
            false => 0,
        }
    }

    /// Its members, whole, from its whole flat tensor, with the numbers of their records.
    pub(crate) fn split(&self, flat: Tensor<1>) -> impl Iterator<Item = (usize, Tensor<1>)> + '_ {
        self.slots.iter().map(move |slot| (slot.record, flat.clone().slice([slot.whole.clone()])))
    }

    /// This rank's parts of its members, from the flat tensor of what this rank updates.
    pub(crate) fn split_own(&self, own: &Tensor<1>) -> impl Iterator<Item = (usize, Tensor<1>)> + '_ {
        let own = own.clone();
        self.slots.iter().map(move |slot| (slot.record, own.clone().slice([slot.own_at.clone()])))
    }

    /// This rank's parts of its members, from its whole flat tensor.
    pub(crate) fn split_own_of_whole(&self, whole: Tensor<1>) -> impl Iterator<Item = (usize, Tensor<1>)> + '_ {
        let own = move |slot: &Slot| {
            let start = slot.whole.start;
            whole.clone().slice([start + slot.own.start..start + slot.own.end])
        };
        self.slots.iter().map(move |slot| (slot.record, own(slot)))
    }

    /// Parts of its members put together to `len` elements, with padding.
    pub(crate) fn join(&self, mut parts: Vec<Tensor<1>>, len: usize, device: &Device) -> Tensor<1> {
        let held: usize = parts.iter().map(|part| part.dims()[0]).sum();
        match (&*parts, len.saturating_sub(held)) {
            ([_], 0) => parts.remove(0),
            (_, padding) => {
                // Never an empty list.
                parts.push(Tensor::zeros([padding], (device, self.dtype)));
                Tensor::cat(parts, 0)
            }
        }
    }
}

/// What of `whole` lies in `chunk`, counted from the start of `whole`.
fn within(chunk: &Range<usize>, whole: &Range<usize>) -> Range<usize> {
    let (start, end) = (chunk.start.clamp(whole.start, whole.end), chunk.end.clamp(whole.start, whole.end));
    start - whole.start..end - whole.start
}
