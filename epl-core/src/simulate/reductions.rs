//! When buckets of gradients are reduced, and how.

use std::collections::BTreeMap;

use burn::tensor::DType;
use epl_comm::{Operation, ReduceOp};

use super::call::{Called, Members};
use super::list::{OpList, Purpose, short};
use super::shapes::StepShapes;
use crate::model::precision::HalfPrecision;
use crate::params::Bucket;
use crate::plan::{Plan, bucket};
use crate::topology::cluster::Axis;

const SUM: ReduceOp = ReduceOp::Sum;

/// The reductions of one rank.
pub(super) struct Reductions<'a> {
    plan: &'a Plan,
    shapes: &'a StepShapes,
    each: bool,
    clips: bool,
    next: usize,
    /// The starts of each bucket that is on its way; none for one without a replica.
    started: BTreeMap<usize, Vec<usize>>,
}

impl<'a> Reductions<'a> {
    pub fn new(plan: &'a Plan, shapes: &'a StepShapes) -> Self {
        let (each, clips) = (plan.reduces_each(), plan.local_clip_norm().is_some());
        Self { plan, shapes, each, clips, next: 0, started: BTreeMap::new() }
    }

    /// A backward of a segment is over, perhaps its last.
    pub fn after_backward(&mut self, ops: &mut OpList, segment: usize, is_last: bool) {
        if self.clips || (!is_last && !self.each) {
            return;
        }
        for index in bucket::ready(&self.plan.params.buckets, self.each, self.next, segment) {
            if self.each {
                self.settle_all(ops);
            }
            self.next = index + 1;
            self.start(ops, index);
        }
    }

    /// Before a segment needs memory.
    pub fn make_room(&mut self, ops: &mut OpList, segment: usize) {
        if self.each && bucket::needs_room(&self.plan.params, segment) {
            self.settle_all(ops);
        }
    }

    /// What is left when all has gone backward.
    pub fn finish(&mut self, ops: &mut OpList) {
        let (table, count) = (&self.plan.params, self.plan.params.buckets.len());
        if self.clips {
            for (unit, bucket) in table.trained().enumerate() {
                if unit >= count {
                    self.over_stages(ops, bucket);
                }
                if self.ranks(bucket) != self.plan.mesh.model_replicas() {
                    ops.call(
                        Members::Axis(Axis::Expert),
                        Operation::AllReduce(SUM),
                        bucket.dtype,
                        flat_len(self.plan, bucket),
                    );
                }
            }
            ops.call(Members::World, Operation::AllReduce(SUM), DType::F64, self.plan.mesh.model_replicas());
            for (unit, bucket) in table.trained().enumerate() {
                match unit < count {
                    true => self.start(ops, unit),
                    false => self.over_replicas(ops, bucket),
                }
            }
        } else {
            for bucket in &table.tied {
                match self.plan.mesh.is_bridged() {
                    true => self.over_widths(ops, bucket),
                    false => {
                        self.over_stages(ops, bucket);
                        self.over_replicas(ops, bucket);
                    }
                }
            }
        }
        self.settle_all(ops);
    }

    fn ranks(&self, bucket: &Bucket) -> usize {
        self.plan.ranks_over(bucket.axis)
    }

    fn over_stages(&self, ops: &mut OpList, bucket: &Bucket) {
        ops.call(self.holders(bucket), Operation::AllReduce(SUM), bucket.dtype, flat_len(self.plan, bucket));
    }

    /// Over all ranks of stages of different widths that hold it.
    fn over_widths(&self, ops: &mut OpList, bucket: &Bucket) {
        let (_, dtype) = self.reduction(bucket);
        ops.call(self.holders(bucket), Operation::AllReduce(SUM), dtype, flat_len(self.plan, bucket));
    }

    fn holders(&self, bucket: &Bucket) -> Members {
        Members::Tied(self.plan.params.records[bucket.members[0]].stages.clone())
    }

    fn over_replicas(&self, ops: &mut OpList, bucket: &Bucket) {
        if self.ranks(bucket) > 1 {
            let (operation, dtype) = self.reduction(bucket);
            ops.call(Members::Pool(bucket.axis, 0), operation, dtype, flat_len(self.plan, bucket));
        }
    }

    fn start(&mut self, ops: &mut OpList, index: usize) {
        let bucket = &self.plan.params.buckets[index];
        let starts = match self.ranks(bucket) {
            1 => Vec::new(),
            _ => self.started_calls(ops, index, bucket),
        };
        self.started.insert(index, starts);
    }

    fn started_calls(&self, ops: &mut OpList, index: usize, bucket: &Bucket) -> Vec<usize> {
        let communicators = if self.each { 1 } else { self.plan.settings.num_communicators };
        let over = Members::Pool(bucket.axis, index % communicators.min(self.shapes.lanes.max(1)));
        let (operation, dtype) = self.reduction(bucket);
        if bucket.sparse {
            ops.call(Members::Axis(bucket.axis), Operation::AllGather, DType::I64, 1);
            let (record, ranks) = (bucket.members[0], self.ranks(bucket));
            let shape = self.plan.params.records[record].shape();
            let (height, width) = (shape[0], shape[1]);
            if let Some(rows) = self.shapes.rows_of((index, record), ranks, (height, width * dtype.size())) {
                let call =
                    |(dtype, elements)| Called { over: over.clone(), operation: Operation::AllGather, dtype, elements };
                let calls = [(DType::I64, rows), (dtype, rows * width)].map(call);
                return calls.map(|call| ops.start(Purpose::Rows(short(index)), call)).to_vec();
            }
        }
        vec![ops.start(
            Purpose::Bucket(short(index)),
            Called { over, operation, dtype, elements: flat_len(self.plan, bucket) },
        )]
    }

    fn reduction(&self, bucket: &Bucket) -> (Operation, DType) {
        let dtype = self
            .plan
            .settings
            .compression
            .map_or(bucket.dtype, |compression| HalfPrecision::new(compression.dtype).dtype());
        match bucket.residency.scatters {
            true => (Operation::ReduceScatter(SUM), dtype),
            false => (Operation::AllReduce(SUM), dtype),
        }
    }

    fn settle_all(&mut self, ops: &mut OpList) {
        core::mem::take(&mut self.started).into_values().flatten().for_each(|start| ops.wait(start));
    }
}

/// The elements of a bucket's gradients as they travel, with the padding of its last shard.
fn flat_len(plan: &Plan, bucket: &Bucket) -> usize {
    let held = bucket.members.iter().map(|member| plan.params.records[*member].numel()).sum();
    held + bucket.padding(held)
}
