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

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::{DType, Device, Tensor};
use epl_comm::{Pending, Pool, ProcessGroup, ReduceOp};

use super::compress::{Compression, decode, encode};
use super::gradients::GradientStore;
use super::settings::EngineSettings;
use super::sparse::{self, Rows, SparseSum};
use crate::cluster::{Axis, Width};
use crate::context::Context;
use crate::error::Result;
use crate::plan::{Bucket, Plan, bucket};

/// The communicators over which stages send, and gradients are reduced, and how.
pub(crate) struct Lanes {
    /// Those of this rank's replica.
    stages: ProcessGroup,
    /// Which of its members run which stage.
    widths: Vec<Width>,
    /// For the axes over which there are buckets.
    pools: BTreeMap<Axis, Pool>,
    /// The stages that share parameters with this one, by which they are; with their replicas, where they have different
    /// widths.
    tied: BTreeMap<Vec<usize>, ProcessGroup>,
    compression: Option<Compression>,
}

impl Lanes {
    /// Makes the communicators. Collective.
    pub fn new(plan: &Plan, context: &Context, settings: &EngineSettings) -> Result<Self> {
        let axes: BTreeSet<Axis> = plan.buckets.iter().chain(&plan.tied).map(|bucket| bucket.axis).collect();
        let pool = |axis| Ok((axis, Pool::new(context.axis(axis), settings.num_communicators)?));
        let pools = axes.into_iter().map(pool).collect::<Result<_>>()?;
        let pipeline = context.axis(Axis::Pipeline);
        let stages = pipeline.split_by("stages", |member| (0, member))?;
        let tied = plan.records.iter().filter(|record| record.trainable && record.is_tied_over_stages());
        let tied: BTreeSet<Vec<usize>> = tied.map(|record| record.stages.clone()).collect();
        let mesh = context.mesh();
        let share = |tied: Vec<usize>| {
            let name = format!("tied over stages {tied:?}");
            let wish = |stage: usize, member: usize| (usize::from(!tied.contains(&stage)), member);
            let group = match mesh.is_bridged() {
                true => context.world().split_by(&name, |rank| wish(mesh.coordinate(rank).pipeline, rank))?,
                false => pipeline.split_by(&name, |member| wish(member, member))?,
            };
            Ok((tied, group))
        };
        let tied = tied.into_iter().map(share).collect::<Result<_>>()?;
        Ok(Self { stages, widths: mesh.widths(), pools, tied, compression: settings.compression })
    }

    /// The stages of this rank's replica.
    pub fn stages(&self) -> &ProcessGroup {
        &self.stages
    }

    /// Which members of [`stages`](Self::stages) run which stage.
    pub fn widths(&self) -> &[Width] {
        &self.widths
    }

    /// The groups of stages that hold the same trained parameters.
    pub fn tied(&self) -> &BTreeMap<Vec<usize>, ProcessGroup> {
        &self.tied
    }

    fn pool(&self, axis: Axis) -> &Pool {
        &self.pools[&axis]
    }
}

/// The reductions of one step.
pub(crate) struct Reducer<'a> {
    plan: &'a Plan,
    context: &'a Context,
    lanes: &'a Lanes,
    device: Device,
    started: Vec<Started>,
}

/// A bucket on its way. There are a few in a step: no box is worth its while.
#[expect(clippy::large_enum_variant)]
enum Started {
    /// This rank has no replica: its gradients are the sums.
    Alone,
    Whole(Pending<Tensor<1>>),
    Rows(SparseSum),
}

impl<'a> Reducer<'a> {
    pub fn new(plan: &'a Plan, context: &'a Context, lanes: &'a Lanes, device: &Device) -> Self {
        let device = device.clone().without_autodiff();
        Self { plan, context, lanes, device, started: Vec::with_capacity(plan.buckets.len()) }
    }

    /// Starts the buckets whose gradients are final once the backward of `segment` is over.
    pub fn start_after(&mut self, segment: usize, store: &mut GradientStore) -> Result<()> {
        for index in bucket::ready(&self.plan.buckets, self.started.len(), segment) {
            let bucket = &self.plan.buckets[index];
            self.fill_missing(bucket, store);
            let started = match self.lanes.pool(bucket.axis).ranks() {
                1 => Started::Alone,
                _ => self.start(index, self.flatten(bucket, store))?,
            };
            self.started.push(started);
        }
        Ok(())
    }

    /// Waits for every bucket; afterwards the store holds the reduced gradients.
    pub fn finish(mut self, store: &mut GradientStore) -> Result<()> {
        assert_eq!(self.started.len(), self.plan.buckets.len(), "the first segment completes every bucket");
        self.reduce_tied(store)?;
        for (bucket, started) in self.plan.buckets.iter().zip(self.started.drain(..)) {
            let sum = match started {
                Started::Alone => continue,
                Started::Whole(pending) => decode(self.lanes.compression, pending.wait()?, bucket.dtype),
                Started::Rows(rows) => rows.wait()?,
            };
            unflatten(self.plan, bucket, sum, store);
        }
        Ok(())
    }

    /// Sums what other stages hold, too, over them and over the replicas.
    fn reduce_tied(&self, store: &mut GradientStore) -> Result<()> {
        for bucket in &self.plan.tied {
            self.fill_missing(bucket, store);
            let holders = &self.lanes.tied[&self.plan.records[bucket.members[0]].stages];
            let flat = self.flatten(bucket, store);
            if self.plan.mesh.is_bridged() {
                let sum = self.sum_over_widths(flat, holders, bucket.dtype)?;
                unflatten(self.plan, bucket, sum, store);
                continue;
            }
            let mut sum = holders.all_reduce(flat, ReduceOp::Sum)?;
            let replicas = self.lanes.pool(bucket.axis);
            if replicas.ranks() > 1 {
                let sent = encode(self.lanes.compression, sum);
                sum = decode(
                    self.lanes.compression,
                    replicas.communicator(0).all_reduce(sent, ReduceOp::Sum)?,
                    bucket.dtype,
                );
            }
            unflatten(self.plan, bucket, sum, store);
        }
        Ok(())
    }

    /// Sums over the ranks of several stages; those that run the same rows have the same gradient, which counts once.
    fn sum_over_widths(&self, flat: Tensor<1>, holders: &ProcessGroup, dtype: DType) -> Result<Tensor<1>> {
        let own = match self.plan.coordinate.tensor {
            0 => flat,
            _ => flat.zeros_like(),
        };
        let sent = encode(self.lanes.compression, own);
        Ok(decode(self.lanes.compression, holders.all_reduce(sent, ReduceOp::Sum)?, dtype))
    }

    fn start(&self, index: usize, flat: Tensor<1>) -> Result<Started> {
        let bucket = &self.plan.buckets[index];
        if bucket.sparse
            && let Some(rows) = self.start_rows(index, flat.clone())?
        {
            return Ok(Started::Rows(rows));
        }
        self.context.mark(&format!("start bucket {index}"));
        let communicator = self.lanes.pool(bucket.axis).communicator(index);
        Ok(Started::Whole(communicator.start_all_reduce(encode(self.lanes.compression, flat), ReduceOp::Sum)?))
    }

    /// The rows that are not zero, where they are fewer bytes than the whole; none otherwise.
    fn start_rows(&self, index: usize, flat: Tensor<1>) -> Result<Option<SparseSum>> {
        let bucket = &self.plan.buckets[index];
        let record = &self.plan.records[bucket.members[0]];
        let (rows, shape) = (Rows::of(record, flat), record.shape());
        let counts = rows.counts(self.context.axis(bucket.axis))?;
        if !sparse::is_smaller(&counts, shape[0], shape[1] * self.sent_size(bucket.dtype)) {
            return Ok(None);
        }
        self.context.mark(&format!("start rows of bucket {index}"));
        let communicator = self.lanes.pool(bucket.axis).communicator(index);
        rows.start(communicator, &counts, self.lanes.compression).map(Some)
    }

    /// The bytes of a gradient's element on its way.
    fn sent_size(&self, dtype: DType) -> usize {
        if self.lanes.compression.is_some() { size_of::<u16>() } else { dtype.size() }
    }

    fn fill_missing(&self, bucket: &Bucket, store: &mut GradientStore) {
        for record in bucket.members.iter().map(|member| &self.plan.records[*member]) {
            if store.get(record.id).is_none() {
                store.insert(record.id, Tensor::<1>::zeros([record.numel()], &self.device).cast(record.dtype));
            }
        }
    }

    fn flatten(&self, bucket: &Bucket, store: &mut GradientStore) -> Tensor<1> {
        let ids = bucket.members.iter().map(|member| self.plan.records[*member].id);
        let parts: Vec<_> = ids.filter_map(|id| store.remove(id)).collect();
        Tensor::cat(parts, 0)
    }
}

fn unflatten(plan: &Plan, bucket: &Bucket, flat: Tensor<1>, store: &mut GradientStore) {
    let mut start = 0;
    for record in bucket.members.iter().map(|member| &plan.records[*member]) {
        let end = start + record.numel();
        store.insert(record.id, flat.clone().slice([start..end]));
        start = end;
    }
}
