//! What each segment stores and costs, measured on one micro-batch; and what is run again because of it.

use std::ops::Range;
use std::time::{Duration, Instant};

use epl_comm::{ReduceOp, ThreadMemory};

use super::flops::rows;
use super::micro_batch::MicroBatch;
use super::parameters::Parameters;
use super::rank::{Engine, caught};
use super::repeatable::ForwardPart;
use crate::error::{Error, Result};
use crate::model::carry::Carry;
use crate::model::graph::{Seed, Track, Untrack};
use crate::model::segment::Model;
use crate::offload::is_host;
use crate::plan::batch_views::BatchViews;
use crate::plan::recompute::{Budget, SegmentMemory, least_recompute};
use crate::plan::{ParamRecord, Plan};
use crate::probe::measure::{bytes, wait};
use crate::probe::{Profile, SegmentProfile};

/// The numbers of a segment, as ranks exchange them.
const NUMBERS: usize = 6;
/// Bytes and times are told apart by so many steps of the largest: segments alike shall measure the same.
const STEPS: f64 = 64.0;

/// What one rank measures of a segment.
struct Measured {
    /// Of the carry that enters.
    carry_bytes: u64,
    /// None where nobody counts.
    activation_bytes: Option<u64>,
    /// Of what its collectives gave.
    result_bytes: u64,
    forward: Duration,
    backward: Duration,
    /// Of the forward's products; none where they are not known.
    flops: Option<f64>,
}

impl<M: Model> Engine<M> {
    /// What each segment stores for backward and how long its forward takes, on one micro-batch, the largest over all
    /// ranks. Collective.
    ///
    /// Each segment goes forward and backward by itself, one after the other, and once forward before; nothing is updated.
    /// What is stored is known where the program's allocator is a [`CountingAllocator`](epl_comm::CountingAllocator) and
    /// the device's memory is the host's.
    ///
    /// # Errors
    ///
    /// When a peer fails.
    pub fn profile(&self, micro_batch: &MicroBatch<M::Batch>) -> Result<Profile> {
        let (Plan { stages, segments, .. }, records) = (&self.plan, self.plan.records());
        // Of what another stage runs this rank knows nothing.
        let mut numbers = vec![-1.0; NUMBERS * segments.len()];
        for (segment, measured) in caught(|| self.measure(micro_batch))? {
            let Measured { carry_bytes, activation_bytes, result_bytes, forward, backward, flops } = measured;
            let activations = activation_bytes.map_or(-1.0, |bytes| bytes as f64);
            let times = [forward.as_secs_f64(), backward.as_secs_f64()];
            let own = [carry_bytes as f64, activations, result_bytes as f64, times[0], times[1], flops.unwrap_or(-1.0)];
            numbers[NUMBERS * segment..NUMBERS * (segment + 1)].copy_from_slice(&own);
        }
        let numbers = self.context.world().all_reduce_values(&numbers, ReduceOp::Max)?;
        let of_segment = |(segment, numbers): (usize, &[f64])| SegmentProfile {
            name: segments[segment].clone(),
            stage: stages.of_segment(segment),
            parameters: of(records, segment).map(ParamRecord::global_numel).sum(),
            carry_bytes: numbers[0] as u64,
            activation_bytes: (numbers[1] >= 0.0).then_some(numbers[1] as u64),
            result_bytes: numbers[2] as u64,
            forward: Duration::from_secs_f64(numbers[3]),
            backward: Duration::from_secs_f64(numbers[4]),
            flops: (numbers[5] >= 0.0).then_some(numbers[5]),
        };
        Ok(Profile(numbers.chunks(NUMBERS).enumerate().map(of_segment).collect()))
    }

    /// Measures this stage's segments.
    fn measure(&self, micro_batch: &MicroBatch<M::Batch>) -> Result<Vec<(usize, Measured)>> {
        let mut links = self.links(&self.device);
        links.expect(0, core::slice::from_ref(micro_batch))?;
        let (mut all, mut parameters) = (Vec::new(), Parameters::new(self, self.model(), []));
        let run = |_, segments: Range<usize>, mut carry: Option<M::Carry>, micro_batch: &MicroBatch<M::Batch>| {
            self.begin(micro_batch, true);
            // Layers tell nothing and move nothing.
            let _again = self.context.replaying();
            let batch = BatchViews::new(self.model(), &self.plan, self.plan.half, &micro_batch.batch);
            for segment in segments {
                let (exit, measured) = self.measure_segment(&mut parameters, segment, carry, batch.of(segment))?;
                all.push((segment, measured));
                carry = Some(exit);
            }
            Ok(carry.expect("a part has at least one segment"))
        };
        links.through((0, core::slice::from_ref(micro_batch)), 0..self.plan.segments.len(), run, |_, _| Ok(()))?;
        links.finish()?;
        Ok(all)
    }

    /// Returns what leaves the segment, without a graph.
    fn measure_segment(
        &self,
        parameters: &mut Parameters<'_, M>,
        segment: usize,
        carry: Option<M::Carry>,
        batch: &M::Batch,
    ) -> Result<(M::Carry, Measured)> {
        // What happens once, such as the allocation of a backend's own memory, happens here.
        let entrance = carry.clone().map(|carry| carry.map(&mut Untrack));
        self.context.enter(segment);
        let untracked = parameters.segment(segment, false)?;
        let entrance = entrance.map(|carry| self.plan.enter(segment, carry));
        let part = ForwardPart::Segment(segment);
        let warm =
            || self.repeatable(part, 0, || self.plan.forward(&self.context, &*untracked, segment, entrance, batch));
        let (warm, results) = self.context.world().record(warm);
        drop((warm, untracked));
        let model = parameters.segment(segment, true)?;
        let entrance = carry.map(|carry| carry.map(&mut Track));
        let carry_bytes = entrance.as_ref().map_or(0, bytes);
        let span = self.enter(segment, "measure", 0);
        let timed = || {
            wait(&self.device)?;
            let (before, begun) = (ThreadMemory::now(), Instant::now());
            let enters = entrance.clone().map(|carry| self.plan.enter(segment, carry));
            let forward = || self.plan.forward(&self.context, &*model, segment, enters, batch);
            let (exit, told) = self.context.with_flops(forward);
            wait(&self.device)?;
            Ok::<_, Error>((exit, told, before, begun.elapsed()))
        };
        // Without the time in which another thread draws.
        let (exit, told, before, forward) = self.repeatable(part, 0, timed)?;
        // What enters is kept, what leaves belongs to the next segment.
        let stored = |(before, after): (ThreadMemory, ThreadMemory)| {
            u64::try_from(after.live - before.live).unwrap_or(0).saturating_sub(bytes(&exit)) + carry_bytes
        };
        let activation_bytes = before.zip(ThreadMemory::now()).filter(|_| is_host(&self.device)).map(stored);
        // Burn frees a graph when it has gone backward.
        let begun = Instant::now();
        if let Some((root, _)) = Seed::of(&exit).whole() {
            let mut gradients = root.backward();
            self.plan.sum_gradients(&self.context, segment, (&*model, entrance.as_ref()), &mut gradients)?;
        }
        wait(&self.device)?;
        drop(span);
        let (backward, result_bytes) = (begun.elapsed(), results.bytes());
        let flops = self.diagnostics.flops.of(&self.plan, segment, &told, rows(&exit));
        let measured = Measured { carry_bytes, activation_bytes, result_bytes, forward, backward, flops };
        Ok((exit.map(&mut Untrack), measured))
    }

    /// What the first step measured, where that was asked for (`profile.segments`) or needed.
    pub fn profiled(&self) -> Option<&Profile> {
        self.diagnostics.profiled.as_ref()
    }

    /// Measures the segments where that is asked for, and chooses what is run again where the plan leaves that to the
    /// first step. Collective.
    pub(super) fn look_at_segments(&mut self, micro_batches: &[MicroBatch<M::Batch>]) -> Result<()> {
        let budget = self.plan.recompute_budget;
        let largest = micro_batches.iter().max_by_key(|micro_batch| micro_batch.samples.len());
        let Some(largest) = largest.filter(|_| budget.is_some() || self.plan.settings.profile_segments) else {
            return Ok(());
        };
        if self.diagnostics.profiled.is_none() {
            self.diagnostics.profiled = Some(self.profile(largest)?);
        }
        match budget {
            Some(bytes) if self.diagnostics.chosen_for < micro_batches.len() => {
                self.choose_recomputation(bytes, micro_batches.len())
            }
            _ => Ok(()),
        }
    }

    /// As little as the budget for what is stored allows, where so many micro-batches are a step.
    fn choose_recomputation(&mut self, bytes: u64, micro_batches: usize) -> Result<()> {
        let (segments, results) =
            self.diagnostics.profiled.as_ref().map(Profile::memory).transpose()?.unwrap_or_default();
        let verified = self.plan.schedule.verified(self.plan.stages.count(), micro_batches);
        let verified = verified.map_err(|error| Error::invalid(error.to_string()))?;
        let mut runs = Vec::new();
        for (stage, part) in self.plan.stages.parts().iter().enumerate() {
            let budget = Budget::new(bytes).with_in_flight(verified.peak_in_flight(stage) as u64);
            let chosen = runs_of_stage(&segments, results[part.clone()].iter().sum(), part.clone(), budget);
            runs.extend(
                chosen.map_err(|reason| {
                    Error::invalid(format!("gradient_checkpoint.budget, on stage {stage}: {reason}"))
                })?,
            );
        }
        self.plan = self.plan.clone().with_recompute(runs);
        self.diagnostics.chosen_for = micro_batches;
        Ok(())
    }
}

/// The runs of one stage; the model's last segment is stored in any case. `results` are the bytes that its collectives
/// give for one micro-batch, which are kept of what is run again.
fn runs_of_stage(
    segments: &[SegmentMemory],
    results: u64,
    part: Range<usize>,
    budget: Budget,
) -> Result<Vec<Range<usize>>, String> {
    let of = |range: Range<usize>| segments[range].iter().map(|segment| segment.activation_bytes).sum::<u64>();
    if of(part.clone()).saturating_mul(budget.in_flight) <= budget.bytes {
        return Ok(Vec::new());
    }
    let end = part.end.min(segments.len() - 1);
    let stored = (of(end..part.end) + results).saturating_mul(budget.in_flight);
    let refused = |reason: &str| {
        format!(
            "{} bytes are allowed, and the last segment, which is never run again, and the results of collectives take \
             {stored} with {} micro-batches in flight{reason}; allow more, or use smaller micro-batches or more stages",
            budget.bytes, budget.in_flight
        )
    };
    let left = budget.bytes.checked_sub(stored).filter(|_| part.start < end).ok_or_else(|| refused(""))?;
    let chosen = least_recompute(&segments[part.start..end], Budget { bytes: left, ..budget });
    let chosen = chosen.map_err(|error| match stored {
        0 => error.to_string(),
        _ => refused(&format!("; beside them, {error}")),
    })?;
    Ok(chosen.runs().iter().map(|run| run.start + part.start..run.end + part.start).collect())
}

impl Profile {
    /// The measures by which a choice is made, in few steps; and the bytes of the results of each segment's collectives.
    fn memory(&self) -> Result<(Vec<SegmentMemory>, Vec<u64>)> {
        let known = |segment: &SegmentProfile| {
            segment.activation_bytes.ok_or_else(|| {
                Error::invalid(
                    "gradient_checkpoint.budget needs the bytes that segments store, and they are not known on every rank: \
                     the program's allocator is no `CountingAllocator`, or the device has memory of its own; leave the \
                     budget out",
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
        let results = self.0.iter().map(|segment| segment.result_bytes).collect();
        Ok((self.0.iter().zip(bytes).map(memory).collect(), results))
    }
}

/// The parameters that a segment uses.
fn of(records: &[ParamRecord], segment: usize) -> impl Iterator<Item = &ParamRecord> {
    records.iter().filter(move |record| record.segments.contains(&segment))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(bytes: &[u64]) -> Vec<SegmentMemory> {
        let segment = |&bytes| SegmentMemory { activation_bytes: bytes, carry_bytes: 1, forward_cost: 1.0 };
        bytes.iter().map(segment).collect()
    }

    fn chosen(in_flight: u64, results: u64, bytes: u64) -> Result<Vec<Range<usize>>, String> {
        let segments = segments(&[10, 10, 10, 5]);
        runs_of_stage(&segments, results, 0..4, Budget::new(bytes).with_in_flight(in_flight))
    }

    #[test]
    fn the_last_segment_is_stored_and_counted() {
        assert_eq!(chosen(1, 0, 35), Ok(vec![]));
        // One less: 10 + 10 + 5 stored, 1 for what enters the run, and the run's 10 while it goes back are more than all;
        // of two segments run again only 10 + 5 and 2 are kept, and 10 at a time.
        let runs = chosen(1, 0, 34).unwrap();
        assert_eq!(runs.iter().map(ExactSizeIterator::len).sum::<usize>(), 2, "{runs:?}");
        assert!(chosen(1, 0, 4).unwrap_err().contains("4 bytes are allowed") && chosen(1, 0, 14).is_err());
        assert!(chosen(2, 0, 9).unwrap_err().contains("take 10 with 2 micro-batches"), "{:?}", chosen(2, 0, 9));
    }

    #[test]
    fn what_collectives_gave_is_counted_where_something_is_run_again() {
        assert_eq!(chosen(1, 8, 35), Ok(vec![]), "nothing is run again, so nothing is kept of it");
        let with: usize = chosen(1, 8, 34).unwrap().iter().map(ExactSizeIterator::len).sum();
        assert_eq!(with, 3, "2 without the 8 bytes");
    }

    #[test]
    fn a_smaller_budget_runs_no_less_again() {
        let cost = |bytes| chosen(2, 0, bytes).map(|runs| runs.iter().map(ExactSizeIterator::len).sum::<usize>());
        let all: Vec<usize> = (0..80).rev().map_while(|bytes| cost(bytes).ok()).collect();
        assert!(all.is_sorted() && all[0] == 0 && all.last() == Some(&3), "{all:?}");
    }

    #[test]
    fn a_stage_chooses_among_its_own() {
        let segments = segments(&[10, 10, 10, 5]);
        assert_eq!(runs_of_stage(&segments, 0, 3..4, Budget::new(5)), Ok(vec![]));
        assert!(runs_of_stage(&segments, 0, 3..4, Budget::new(4)).is_err());
        let runs = runs_of_stage(&segments, 0, 1..3, Budget::new(13)).unwrap();
        assert!(!runs.is_empty() && runs.iter().all(|run| run.start >= 1 && run.end <= 3), "{runs:?}");
    }
}
