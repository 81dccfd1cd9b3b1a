//! Sums gradients over replicas, bucket by bucket, while backward goes on.
//!
//! ```text
//! backward   [segment 3][segment 2][segment 1][segment 0]
//! reduction             [bucket 0      ][bucket 1   ][bucket 2]
//! ```
//!
//! A bucket is started as soon as the backward of its first segment is over; the group's helper thread reduces it
//! while this thread goes on. The order is the plan's on every rank. What has no gradient is sent as zeros.

use burn::tensor::{Device, Tensor};
use epl_comm::{Pending, ReduceOp};

use super::gradients::GradientStore;
use crate::context::Context;
use crate::error::Result;
use crate::plan::{Bucket, Plan, bucket};

/// The reductions of one step.
pub(crate) struct Reducer<'a> {
    plan: &'a Plan,
    context: &'a Context,
    device: Device,
    started: Vec<Option<Pending<Tensor<1>>>>,
}

impl<'a> Reducer<'a> {
    pub fn new(plan: &'a Plan, context: &'a Context, device: &Device) -> Self {
        Self {
            plan,
            context,
            device: device.clone().without_autodiff(),
            started: Vec::with_capacity(plan.buckets.len()),
        }
    }

    /// Starts the buckets whose gradients are final once the backward of `segment` is over.
    pub fn start_after(&mut self, segment: usize, store: &mut GradientStore) -> Result<()> {
        for index in bucket::ready(&self.plan.buckets, self.started.len(), segment) {
            let bucket = &self.plan.buckets[index];
            self.fill_missing(bucket, store);
            let group = self.context.axis(bucket.axis);
            let pending = if group.size() > 1 {
                self.context.mark(&format!("start bucket {index}"));
                Some(group.start_all_reduce(self.flatten(bucket, store), ReduceOp::Sum)?)
            } else {
                None
            };
            self.started.push(pending);
        }
        Ok(())
    }

    /// Waits for every bucket; afterwards the store holds the reduced gradients.
    pub fn finish(mut self, store: &mut GradientStore) -> Result<()> {
        assert_eq!(self.started.len(), self.plan.buckets.len(), "segment 0 completes every bucket");
        for (bucket, pending) in self.plan.buckets.iter().zip(self.started.drain(..)) {
            if let Some(pending) = pending {
                unflatten(self.plan, bucket, pending.wait()?, store);
            }
        }
        Ok(())
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
