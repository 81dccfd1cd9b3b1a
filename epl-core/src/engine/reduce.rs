//! Sums gradients over replicas, bucket by bucket, while backward goes on.
//!
//! ```text
//! backward         [segment 3][segment 2][segment 1][segment 0]
//! communicator 0               [bucket 0        ][bucket 2   ]
//! communicator 1                         [bucket 1      ][bucket 3]
//! ```
//!
//! A bucket is started as soon as the backward of its first segment is over; a helper thread of its communicator
//! reduces it while this thread goes on. The order, and which communicator takes a bucket, are the plan's on every
//! rank. What has no gradient is sent as zeros.
//!
//! Where each replica clips its own gradient of the step, buckets start when that is known: after the last backward.
//!
//! Of a bucket that is sharded each rank gets the sum, of which it uses its shard (ZeRO v0), or its shard alone (v1), in
//! every micro-batch (v2, v3).

use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::{DType, Device, Tensor};
use epl_comm::{Pending, ProcessGroup, ReduceOp};

use super::away::AwayGradients;
use super::communicators::Communicators;
use super::compress::{decode, encode};
use super::gradients::GradientStore;
use super::local_clip::LocalClip;
use super::meter::{Lease, Meter, bytes};
use super::rank::Engine;
use super::sparse::{SparseRows, SparseSum};
use crate::error::Result;
use crate::model::context::Context;
use crate::model::segment::Model;
use crate::params::Bucket;
use crate::plan::{Plan, bucket};
use crate::simulate::{FLATTENS, START_BUCKET, START_ROWS, WAIT_BUCKET};

/// The reductions of one step.
pub(crate) struct Reducer<'a> {
    plan: &'a Plan,
    context: &'a Context,
    communicators: &'a Communicators,
    device: Device,
    /// Whether gradients are reduced in every micro-batch, and not once in a step.
    each: bool,
    /// Whether they wait for the last backward of all segments.
    clips: bool,
    /// Whether what is gathered for segments takes memory beside them.
    gathers: bool,
    /// The bucket that starts next.
    next: usize,
    started: BTreeMap<usize, (Started, Lease)>,
    reduced: GradientStore,
    /// This rank's shards of buckets, of the micro-batches so far.
    shards: BTreeMap<usize, (Tensor<1>, Lease)>,
    /// Where gradients lie away from the device.
    away: Option<RefMut<'a, AwayGradients>>,
    meter: Meter,
    /// Of what is on its way.
    sent: Meter,
    /// Of the parameters that were reduced, by the numbers of their records: those that had a gradient in a micro-batch, and those
    /// that had none in some.
    had: BTreeSet<usize>,
    lacked: BTreeSet<usize>,
}

/// What the reductions of a step leave.
pub(crate) struct Reduced {
    /// Of what is scattered this rank's shard.
    pub store: GradientStore,
    /// Where each replica clips its own gradient: the mean of their norms.
    pub own_norm: Option<f64>,
    /// The parameters that had no gradient on this rank in any micro-batch, by the numbers of their records.
    pub without: BTreeSet<usize>,
}

/// A bucket on its way. There are a few in a step: no box is worth its while.
#[expect(clippy::large_enum_variant)]
enum Started {
    /// This rank has no replica: its gradients are the sums, together as they go away from the device or were clipped so.
    Alone(Tensor<1>),
    Whole(Pending<Tensor<1>>),
    SparseRows(SparseSum),
    /// This rank's shard.
    Shard(Pending<Tensor<1>>),
}

impl<'a> Reducer<'a> {
    /// The reductions of one step of an engine's.
    pub fn new<M: Model>(engine: &'a Engine<M>) -> Self {
        let Engine { plan, context, communicators, device, state, diagnostics, .. } = engine;
        let mut away = state.away.as_ref().map(RefCell::borrow_mut);
        if let Some(away) = &mut away {
            away.begin();
        }
        Self {
            plan,
            context,
            communicators,
            device: device.clone().without_autodiff(),
            each: communicators.each,
            clips: plan.local_clip_norm().is_some(),
            gathers: plan.params.gathers(),
            next: 0,
            started: BTreeMap::new(),
            reduced: GradientStore::new(&diagnostics.meters.gradients),
            shards: BTreeMap::new(),
            away,
            meter: diagnostics.meters.gradients.clone(),
            sent: diagnostics.meters.buckets.clone(),
            had: BTreeSet::new(),
            lacked: BTreeSet::new(),
        }
    }

    /// Starts the buckets whose gradients are final now that a backward of `segment` is over: those of the step, after its
    /// last one, or, where they are reduced in every micro-batch, of this one.
    pub fn after_backward(&mut self, segment: usize, is_last: bool, store: &mut GradientStore) -> Result<()> {
        if self.clips || (!is_last && !self.each) {
            return Ok(());
        }
        for index in bucket::ready(&self.plan.params.buckets, self.each, self.next, segment) {
            let bucket = &self.plan.params.buckets[index];
            if self.each {
                self.settle_all()?;
            }
            self.next = index + 1;
            if self.communicators.pool(bucket.axis).ranks() == 1 && self.away.is_none() {
                self.take_as_sums(bucket, store);
                continue;
            }
            let flat = self.take_flat(bucket, store);
            let started = self.start(index, flat)?;
            self.started.insert(index, started);
        }
        Ok(())
    }

    /// Without a replica the gradients of a bucket are the sums: where they lie.
    fn take_as_sums(&mut self, bucket: &Bucket, store: &mut GradientStore) {
        self.fill_missing(bucket, store);
        for id in bucket.members.iter().map(|member| self.plan.params.records[*member].id) {
            if let Some(gradient) = store.remove(id) {
                self.reduced.add(id, gradient);
            }
        }
    }

    /// Waits for every bucket. Where each replica clips its own gradient, that is done now.
    pub fn finish(mut self, mut store: GradientStore, clip: Option<LocalClip<'_>>) -> Result<Reduced> {
        let own_norm = match clip {
            Some(clip) => Some(self.reduce_clipped(&mut store, &clip)?),
            None => {
                self.reduce_tied(&mut store)?;
                None
            }
        };
        self.settle_all()?;
        for (index, (sum, _)) in core::mem::take(&mut self.shards) {
            self.keep(index, sum, true)?;
        }
        Ok(Reduced { store: self.reduced, own_norm, without: &self.lacked - &self.had })
    }

    /// Clips the gradient of this rank's replica, and starts all buckets; then reduces what other stages hold, too.
    fn reduce_clipped(&mut self, store: &mut GradientStore, clip: &LocalClip<'_>) -> Result<f64> {
        let (table, count) = (&self.plan.params, self.plan.params.buckets.len());
        let mut shares = Vec::new();
        for (unit, bucket) in table.trained().enumerate() {
            let share = match unit < count {
                true => self.take_flat(bucket, store),
                false => self.sum_over_stages(bucket, store)?,
            };
            shares.push(clip.of_replica(bucket, share)?);
        }
        let (clipped, own_norm) = clip.clip(shares)?;
        for (unit, share) in clipped.into_iter().enumerate() {
            match unit < count {
                true => {
                    let started = self.start(unit, share)?;
                    self.started.insert(unit, started);
                }
                false => self.reduce_over_replicas(unit, share)?,
            }
        }
        Ok(own_norm)
    }

    /// Before `segment` needs memory for its gradients, or for what is gathered: where gradients are reduced in every
    /// micro-batch, one bucket travels while the next one is made, and no other is whole when it is put together.
    pub fn make_room(&mut self, segment: usize) -> Result<()> {
        if !self.each {
            return Ok(());
        }
        if bucket::needs_room(&self.plan.params, segment) {
            self.settle_all()?;
        }
        if self.gathers {
            // Memory of results has other sizes than what comes now.
            self.context.world().trim();
        }
        Ok(())
    }

    /// Waits for all buckets that were started.
    fn settle_all(&mut self) -> Result<()> {
        (0..self.plan.params.buckets.len()).try_for_each(|index| self.settle(index))
    }

    /// Waits for a bucket that was started.
    fn settle(&mut self, index: usize) -> Result<()> {
        let Some((started, lease)) = self.started.remove(&index) else { return Ok(()) };
        let (dtype, compression) = (self.plan.params.buckets[index].dtype, self.communicators.compression);
        let is_shard = matches!(started, Started::Shard(_));
        let sum = {
            let wait = || self.context.span(|| format!("{WAIT_BUCKET}{index}"));
            let _span = (!matches!(started, Started::Alone(_))).then(wait);
            match started {
                Started::Alone(sum) => sum,
                Started::Whole(pending) | Started::Shard(pending) => decode(compression, pending.wait()?, dtype),
                Started::SparseRows(rows) => rows.wait()?,
            }
        };
        // It counts as what it is kept as.
        drop(lease);
        if is_shard { self.add_shard(index, sum) } else { self.keep(index, sum, false) }
    }

    /// Adds this rank's shard of a bucket to that of the micro-batches before.
    fn add_shard(&mut self, index: usize, sum: Tensor<1>) -> Result<()> {
        if self.away.is_some() {
            return self.keep(index, sum, true);
        }
        // Added in place.
        let sum = match self.shards.remove(&index) {
            Some((before, _)) => before + sum,
            None => sum,
        };
        let lease = self.meter.lease(bytes(&sum));
        self.shards.insert(index, (sum, lease));
        Ok(())
    }

    /// Keeps the sum of a unit, or this rank's shard of it.
    fn keep(&mut self, unit: usize, sum: Tensor<1>, is_shard: bool) -> Result<()> {
        let (plan, records) = (self.plan, &self.plan.params.records);
        let bucket = plan.params.unit(unit);
        if let Some(away) = &mut self.away {
            let own = match is_shard {
                true => sum.slice([0..bucket.own_len()]),
                false => Tensor::cat(bucket.split_own_of_whole(sum).map(|(_, own)| own).collect(), 0),
            };
            return away.add(unit, &own);
        }
        match is_shard {
            true => bucket.split_own(&sum).for_each(|(member, own)| self.reduced.add(records[member].id, own)),
            false => bucket.split(sum).for_each(|(member, all)| self.reduced.add(records[member].id, all)),
        }
        Ok(())
    }

    /// Sums what other stages hold, too, over them and over the replicas.
    fn reduce_tied(&mut self, store: &mut GradientStore) -> Result<()> {
        for (unit, bucket) in (self.plan.params.buckets.len()..).zip(&self.plan.params.tied) {
            if self.plan.mesh.is_bridged() {
                let flat = self.take_flat(bucket, store);
                let sum = self.sum_over_widths(flat, self.holders(bucket), bucket.dtype)?;
                self.keep(unit, sum, false)?;
                continue;
            }
            let sum = self.sum_over_stages(bucket, store)?;
            self.reduce_over_replicas(unit, sum)?;
        }
        Ok(())
    }

    /// The ranks that hold what a bucket of several stages is of.
    fn holders(&self, bucket: &Bucket) -> &'a ProcessGroup {
        &self.communicators.tied()[&self.plan.params.records[bucket.members[0]].stages]
    }

    /// The gradients of a bucket of several stages, summed over them.
    fn sum_over_stages(&mut self, bucket: &Bucket, store: &mut GradientStore) -> Result<Tensor<1>> {
        let flat = self.take_flat(bucket, store);
        Ok(self.holders(bucket).all_reduce(flat, ReduceOp::Sum)?)
    }

    fn reduce_over_replicas(&mut self, unit: usize, sum: Tensor<1>) -> Result<()> {
        let bucket = self.plan.params.unit(unit);
        let (replicas, compression) = (self.communicators.pool(bucket.axis), self.communicators.compression);
        if replicas.ranks() == 1 {
            return self.keep(unit, sum, false);
        }
        let (sent, is_shard) = (encode(compression, sum), bucket.residency.scatters);
        let sum = match is_shard {
            true => replicas.communicator(0).reduce_scatter_uneven(sent, 0, &bucket.shards, ReduceOp::Sum)?,
            false => replicas.communicator(0).all_reduce(sent, ReduceOp::Sum)?,
        };
        self.keep(unit, decode(compression, sum, bucket.dtype), is_shard)
    }

    /// Sums over the ranks of several stages; those that run the same rows have the same gradient, which counts once.
    fn sum_over_widths(&self, flat: Tensor<1>, holders: &ProcessGroup, dtype: DType) -> Result<Tensor<1>> {
        let own = match self.plan.coordinate.tensor {
            0 => flat,
            _ => flat.zeros_like(),
        };
        let sent = encode(self.communicators.compression, own);
        Ok(decode(self.communicators.compression, holders.all_reduce(sent, ReduceOp::Sum)?, dtype))
    }

    /// Starts a bucket, which is counted while it is on its way.
    fn start(&self, index: usize, flat: Tensor<1>) -> Result<(Started, Lease)> {
        let bucket = &self.plan.params.buckets[index];
        if self.communicators.pool(bucket.axis).ranks() == 1 {
            let lease = self.sent.lease(bytes(&flat));
            return Ok((Started::Alone(flat), lease));
        }
        if bucket.sparse
            && let Some((rows, sent)) = self.start_rows(index, flat.clone())?
        {
            return Ok((Started::SparseRows(rows), self.sent.lease(sent)));
        }
        self.context.mark(|| format!("{START_BUCKET}{index}"));
        let communicator = self.communicators.pool(bucket.axis).communicator(index);
        let sent = encode(self.communicators.compression, flat);
        let lease = self.sent.lease(bytes(&sent));
        let started = match bucket.residency.scatters {
            true => Started::Shard(communicator.start_reduce_scatter_uneven(sent, 0, &bucket.shards, ReduceOp::Sum)?),
            false => Started::Whole(communicator.start_all_reduce(sent, ReduceOp::Sum)?),
        };
        Ok((started, lease))
    }

    /// The rows that are not zero, where they are fewer bytes than the whole, and the bytes of those of all ranks; none otherwise.
    fn start_rows(&self, index: usize, flat: Tensor<1>) -> Result<Option<(SparseSum, u64)>> {
        let bucket = &self.plan.params.buckets[index];
        let record = &self.plan.params.records[bucket.members[0]];
        let (rows, shape) = (SparseRows::of(record, flat, self.context), record.shape());
        let counts = rows.counts(self.context.axis(bucket.axis))?;
        let row_bytes = shape[1] * self.sent_size(bucket.dtype);
        if !bucket::rows_pay(counts.iter().sum(), counts.len(), (shape[0], row_bytes)) {
            return Ok(None);
        }
        let sent = counts.iter().sum::<usize>() * (row_bytes + size_of::<i64>());
        self.context.mark(|| format!("{START_ROWS}{index}"));
        let communicator = self.communicators.pool(bucket.axis).communicator(index);
        Ok(Some((rows.start(communicator, &counts, self.communicators.compression)?, sent as u64)))
    }

    /// The bytes of a gradient's element on its way.
    fn sent_size(&self, dtype: DType) -> usize {
        if self.communicators.compression.is_some() { size_of::<u16>() } else { dtype.size() }
    }

    /// The gradients of a bucket as one tensor, zeros for those that there are not.
    fn take_flat(&mut self, bucket: &Bucket, store: &mut GradientStore) -> Tensor<1> {
        self.fill_missing(bucket, store);
        self.flatten(bucket, store)
    }

    fn fill_missing(&mut self, bucket: &Bucket, store: &mut GradientStore) {
        for member in &bucket.members {
            let record = &self.plan.params.records[*member];
            if store.get(record.id).is_some() {
                self.had.insert(*member);
                continue;
            }
            self.lacked.insert(*member);
            store.insert(record.id, Tensor::<1>::zeros([record.numel()], &self.device).cast(record.dtype));
        }
    }

    /// The gradients of a bucket, one after the other, and the padding of its last shard where shards are sent.
    fn flatten(&self, bucket: &Bucket, store: &mut GradientStore) -> Tensor<1> {
        let _span = self.context.span(|| FLATTENS.to_string());
        let ids = bucket.members.iter().map(|member| self.plan.params.records[*member].id);
        let mut parts: Vec<Tensor<1>> = ids.filter_map(|id| store.remove(id)).collect();
        let held: usize = parts.iter().map(|part| part.dims()[0]).sum();
        let padding = bucket.padding(held);
        if padding > 0 {
            parts.push(Tensor::zeros([padding], (&self.device, bucket.dtype)));
        }
        match parts.len() {
            1 => parts.remove(0),
            _ => Tensor::cat(parts, 0),
        }
    }
}
