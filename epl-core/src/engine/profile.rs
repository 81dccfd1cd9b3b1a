//! What each segment stores and costs, measured on one micro-batch; and what is run again because of it.

use std::ops::Range;
use std::time::{Duration, Instant};

use burn::tensor::Tensor;
use epl_comm::{ReduceOp, ThreadMemory};

use super::{Engine, MicroBatch, caught};
use crate::carry::{Carry, CarryMapper};
use crate::error::{Error, Result};
use crate::graph::{Track, Untrack};
use crate::plan::{ParamRecord, Plan};
use crate::profile::{Profile, SegmentProfile};
use crate::recompute::{Budget, SegmentMemory, least_recompute};
use crate::segment::Segmented;

/// The numbers of a segment, as ranks exchange them.
const NUMBERS: usize = 4;
/// Bytes and times are told apart by so many steps of the largest: segments alike shall measure the same.
const STEPS: f64 = 64.0;

/// What one rank measures of a segment.
struct Measured {
    /// Of the carry that enters.
    carry_bytes: u64,
    /// None where nobody counts.
    activation_bytes: Option<u64>,
    forward: Duration,
    /// Rows of the first tensor that leaves: all its dims but the features.
    rows: usize,
}

impl<M: Segmented> Engine<M> {
    /// What each segment stores for backward and how long its forward takes, on one micro-batch, the largest over all
    /// ranks. Collective.
    ///
    /// Each forward runs twice and is timed the second time; nothing is updated. What is stored is known where the
    /// program's allocator is a [`CountingAllocator`](epl_comm::CountingAllocator).
    ///
    /// # Errors
    ///
    /// When a peer fails.
    pub fn profile(&self, micro_batch: &MicroBatch<M::Batch>) -> Result<Profile> {
        let Plan { stages, records, segments, .. } = &self.plan;
        let mut numbers = vec![0.0; NUMBERS * segments];
        for (segment, measured) in caught(|| self.measure(micro_batch))? {
            let Measured { carry_bytes, activation_bytes, forward, rows } = measured;
            let activations = activation_bytes.map_or(-1.0, |bytes| bytes as f64);
            let own = [carry_bytes as f64, activations, forward.as_secs_f64(), rows as f64];
            numbers[NUMBERS * segment..NUMBERS * (segment + 1)].copy_from_slice(&own);
        }
        let numbers = self.context.world().all_reduce_values(&numbers, ReduceOp::Max)?;
        let of_segment = |(segment, numbers): (usize, &[f64])| SegmentProfile {
            name: self.plan.segment_names[segment].clone(),
            stage: stages.of_segment(segment),
            parameters: of(records, segment).map(ParamRecord::global_numel).sum(),
            carry_bytes: numbers[0] as u64,
            activation_bytes: (numbers[1] >= 0.0).then_some(numbers[1] as u64),
            forward: Duration::from_secs_f64(numbers[2]),
            flops: of(records, segment).map(multiplied).sum::<f64>() * 2.0 * numbers[3],
        };
        Ok(Profile(numbers.chunks(NUMBERS).enumerate().map(of_segment).collect()))
    }

    /// Measures this stage's segments.
    fn measure(&self, micro_batch: &MicroBatch<M::Batch>) -> Result<Vec<(usize, Measured)>> {
        let stages = &self.plan.stages;
        let mut links = self.links(&self.device);
        links.expect(0, core::slice::from_ref(micro_batch))?;
        let mut all = Vec::new();
        for part in (0..stages.chunks()).map(|chunk| stages.part(self.plan.stage(), chunk)) {
            let mut carry = links.receive_carry(0, part)?;
            self.begin(micro_batch, true);
            // Layers tell nothing and move nothing.
            self.context.replay(true);
            for segment in stages.parts()[part].clone() {
                drop(self.forward_once(segment, carry.clone(), &micro_batch.batch));
                let (exit, measured) = self.forward_once(segment, carry, &micro_batch.batch);
                all.push((segment, measured));
                carry = Some(exit);
            }
            self.context.replay(false);
            if let (Some(exit), true) = (carry, part + 1 < stages.parts().len()) {
                links.send_carry(0, part + 1, exit)?;
            }
        }
        links.finish()?;
        Ok(all)
    }

    fn forward_once(&self, segment: usize, carry: Option<M::Carry>, batch: &M::Batch) -> (M::Carry, Measured) {
        let entrance = carry.map(|carry| carry.map(&mut Track));
        let carry_bytes = entrance.as_ref().map_or(0, bytes);
        let _span = self.enter(segment, "measure", 0);
        let (before, begun) = (ThreadMemory::now(), Instant::now());
        let exit = self.model().forward_segment(segment, entrance.clone(), batch);
        let forward = begun.elapsed();
        let stored = |(before, after): (ThreadMemory, ThreadMemory)| (after.live - before.live).max(0) as u64;
        let activation_bytes = before.zip(ThreadMemory::now()).map(stored);
        let measured = Measured { carry_bytes, activation_bytes, forward, rows: rows(&exit) };
        (exit.map(&mut Untrack), measured)
    }

    /// What the first step measured, where that was asked for (`profile.segments`) or needed.
    pub fn profiled(&self) -> Option<&Profile> {
        self.profiled.as_ref()
    }

    /// Measures the segments where that is asked for, and chooses what is run again where the plan leaves that to the
    /// first step. Collective.
    pub(super) fn look_at_segments(&mut self, micro_batches: &[MicroBatch<M::Batch>]) -> Result<()> {
        let budget = self.plan.recompute_budget;
        if self.profiled.is_some() || !(budget.is_some() || self.settings.profile_segments) {
            return Ok(());
        }
        let Some(first) = micro_batches.first() else { return Ok(()) };
        let profile = self.profile(first)?;
        if let Some(bytes) = budget {
            self.choose_recomputation(&profile, bytes, micro_batches.len())?;
        }
        self.profiled = Some(profile);
        Ok(())
    }

    /// As little as the budget for what is stored allows.
    fn choose_recomputation(&mut self, profile: &Profile, bytes: u64, micro_batches: usize) -> Result<()> {
        let segments = profile.memory()?;
        let verified = self.plan.schedule.verified(self.plan.stages.count(), micro_batches);
        let verified = verified.map_err(|error| Error::invalid(error.to_string()))?;
        let mut runs = Vec::new();
        for (stage, part) in self.plan.stages.parts().iter().enumerate() {
            let budget = Budget::new(bytes).with_in_flight(verified.peak_in_flight(stage) as u64);
            runs.extend(
                runs_of_stage(&segments, part.clone(), budget).map_err(|reason| {
                    Error::invalid(format!("gradient_checkpoint.budget, on stage {stage}: {reason}"))
                })?,
            );
        }
        (self.plan.recompute, self.plan.recompute_budget) = (runs, None);
        Ok(())
    }
}

/// The runs of one stage; the model's last segment is stored in any case.
fn runs_of_stage(segments: &[SegmentMemory], part: Range<usize>, budget: Budget) -> Result<Vec<Range<usize>>, String> {
    let end = part.end.min(segments.len() - 1);
    let stored = segments[end..part.end].iter().map(|last| last.activation_bytes).sum::<u64>() * budget.in_flight;
    let Some(left) = budget.bytes.checked_sub(stored) else {
        return Err(format!(
            "{} bytes are allowed, and the last segment, which is never run again, stores {stored} with {} micro-batches \
             in flight; allow more, or use smaller micro-batches",
            budget.bytes, budget.in_flight
        ));
    };
    if part.start == end {
        return Ok(Vec::new());
    }
    let chosen = least_recompute(&segments[part.start..end], Budget { bytes: left, ..budget });
    let chosen = chosen.map_err(|error| match stored {
        0 => error.to_string(),
        _ => format!("beside {stored} bytes that the last segment stores, {error}"),
    })?;
    Ok(chosen.runs().iter().map(|run| run.start + part.start..run.end + part.start).collect())
}

impl Profile {
    /// The measures by which a choice is made, in few steps.
    fn memory(&self) -> Result<Vec<SegmentMemory>> {
        let known = |segment: &SegmentProfile| {
            segment.activation_bytes.ok_or_else(|| {
                Error::invalid(
                    "gradient_checkpoint.budget needs the bytes that segments store, and the program's allocator is no \
                     `CountingAllocator` on every rank; install it, or leave the budget out",
                )
            })
        };
        let bytes = self.0.iter().map(known).collect::<Result<Vec<u64>>>()?;
        let step = (bytes.iter().copied().max().unwrap_or(0) as f64 / STEPS).max(1.0);
        let longest = self.0.iter().map(|segment| segment.forward.as_secs_f64()).fold(f64::MIN_POSITIVE, f64::max);
        let memory = |(segment, bytes): (&SegmentProfile, u64)| SegmentMemory {
            activation_bytes: ((bytes as f64 / step).ceil() * step).ceil() as u64,
            carry_bytes: segment.carry_bytes,
            forward_cost: (segment.forward.as_secs_f64() / longest * STEPS).ceil(),
        };
        Ok(self.0.iter().zip(bytes).map(memory).collect())
    }
}

/// The parameters that a segment uses.
fn of(records: &[ParamRecord], segment: usize) -> impl Iterator<Item = &ParamRecord> {
    records.iter().filter(move |record| record.segments.contains(&segment))
}

/// The elements by which a row is multiplied: those of matrices and kernels. A table is looked up, of a stack of experts
/// one counts.
fn multiplied(record: &ParamRecord) -> f64 {
    let elements = record.global_numel() as f64;
    match *record.global_shape {
        _ if record.sparse => 0.0,
        [] | [_] => 0.0,
        [experts, _, _] => elements / experts as f64,
        _ => elements,
    }
}

/// The bytes of a carry.
fn bytes<C: Carry>(carry: &C) -> u64 {
    struct Bytes(u64);
    impl CarryMapper for Bytes {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.0 += (tensor.shape().num_elements() * tensor.dtype().size()) as u64;
            tensor
        }
    }
    let mut counted = Bytes(0);
    let _ = carry.clone().map(&mut counted);
    counted.0
}

/// The rows of a carry's first tensor: of a picture its positions, else all dims but the last.
fn rows<C: Carry>(carry: &C) -> usize {
    struct Rows(Option<usize>);
    impl CarryMapper for Rows {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            let dims = tensor.dims();
            let features = if D == 4 { dims.get(1) } else { dims.last() };
            self.0.get_or_insert(dims.iter().product::<usize>() / features.copied().unwrap_or(1).max(1));
            tensor
        }
    }
    let mut counted = Rows(None);
    let _ = carry.clone().map(&mut counted);
    counted.0.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(bytes: &[u64]) -> Vec<SegmentMemory> {
        let segment = |&bytes| SegmentMemory { activation_bytes: bytes, carry_bytes: 1, forward_cost: 1.0 };
        bytes.iter().map(segment).collect()
    }

    #[test]
    fn the_last_segment_is_stored_and_counted() {
        let segments = segments(&[10, 10, 10, 5]);
        let runs = |bytes, in_flight| runs_of_stage(&segments, 0..4, Budget::new(bytes).with_in_flight(in_flight));
        assert_eq!(runs(35, 1), Ok(vec![]));
        // One run of one segment: 10 + 10 + 1 kept, 5 for the last, and the run itself is stored while it goes back.
        assert_eq!(runs(36, 1).map(|runs| runs.len()), Ok(0));
        assert!(!runs(30, 1).unwrap().is_empty());
        assert!(runs(4, 1).unwrap_err().contains("stores 5 with 1 micro-batches"), "{:?}", runs(4, 1));
        assert!(runs(14, 1).unwrap_err().starts_with("beside 5 bytes that the last segment stores, 9 bytes"));
        assert!(runs(9, 2).unwrap_err().contains("stores 10 with 2"), "{:?}", runs(9, 2));
    }

    #[test]
    fn a_stage_chooses_among_its_own() {
        let segments = segments(&[10, 10, 10, 5]);
        assert_eq!(runs_of_stage(&segments, 3..4, Budget::new(5)), Ok(vec![]));
        let runs = runs_of_stage(&segments, 1..3, Budget::new(12).with_in_flight(1)).unwrap();
        assert!(!runs.is_empty() && runs.iter().all(|run| run.start >= 1 && run.end <= 3), "{runs:?}");
    }
}
