//! Running statistics of batch norms over a step: Burn's, of each replica, and those that all replicas have alike.
//!
//! ```text
//! replica 0   before ──▶ micro-batch ──▶ micro-batch ──▶ after ┐
//!                                                              ├▶ before + mean of (after - before)
//! replica 1   before ──▶ micro-batch ──▶ (stand-in)  ──▶ after ┘
//! ```
//!
//! They follow a linear law, and no forward of training reads them: so the mean after each step is the mean of what each
//! replica alone would have at the end, but for rounding. As all replicas go on from it, a checkpoint needs no communication, a
//! run that is resumed repeats one that is not to the bit, and any replica evaluates any sample.
//!
//! A step that fails ends where its error comes, which may be elsewhere on each replica. So each puts its own statistics back
//! to what they were before the step, on which all agree, without a message: who catches the error goes on with equal ones.
//! So are those of `SyncBatchNorm`, and the bias that balances experts, which are equal on all replicas already and need no
//! mean. A step whose gradients turn out not to be finite has run whole: its statistics stay.

use burn::tensor::{DType, Tensor};
use epl_comm::ReduceOp;

use super::accumulated::Accumulated;
use super::rank::{Engine, caught};
use crate::error::Result;
use crate::model::segment::Model;
use crate::params::statistics::RunningStatistics;
use crate::topology::cluster::Axis;

/// The statistics of this rank before a step.
#[derive(Clone)]
pub(super) struct StepStatistics(RunningStatistics);

impl StepStatistics {
    /// Those of this rank.
    pub fn before<M: Model>(engine: &Engine<M>) -> Self {
        let numbers: Vec<usize> = engine.plan.running_statistics().collect();
        Self(RunningStatistics::of(engine.model(), engine.plan.records(), &numbers))
    }

    /// Gives each replica the mean over those that had a sample. What has become no number on one counts for nothing; what
    /// has on all stays as it was. Collective over the replicas.
    pub fn after<M: Model>(self, engine: &Engine<M>, had_samples: bool) -> Result<()> {
        let Self(mut before) = self;
        let (model, records) = (engine.model(), engine.plan.records());
        let own: Vec<usize> = engine.plan.statistics().collect();
        before.0.retain(|number, _| own.binary_search(number).is_ok());
        let mut after = RunningStatistics::of(model, records, &own);
        let mut kinds: Vec<(Axis, DType)> = Vec::new();
        for number in before.0.keys() {
            let kind = (records[*number].reduced_over(), records[*number].dtype);
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        for (axis, dtype) in kinds {
            let is_own = |number: &&usize| (records[**number].reduced_over(), records[**number].dtype) == (axis, dtype);
            let numbers: Vec<usize> = before.0.keys().filter(is_own).copied().collect();
            let flat =
                |of: &RunningStatistics| Tensor::cat(numbers.iter().map(|number| of.0[number].clone()).collect(), 0);
            let (old, new) = (flat(&before), flat(&after));
            let is_number = new.clone().is_finite();
            let group = engine.context.axis(axis);
            let mean = if group.size() == 1 {
                old.mask_where(is_number, new)
            } else {
                let moved = (new - old.clone()).mask_fill(is_number.clone().bool_not(), 0.0);
                let counts =
                    Tensor::full([moved.dims()[0]], f64::from(u8::from(had_samples)), (&moved.device(), dtype));
                let counts = counts.mask_fill(is_number.bool_not(), 0.0);
                let sums = group.all_reduce(Tensor::cat(vec![moved, counts], 0), ReduceOp::Sum)?;
                let [moved, counts] = <[Tensor<1>; 2]>::try_from(sums.chunk(2, 0)).expect("two of one length");
                old + moved / counts.clamp_min(1.0)
            };
            let sizes: Vec<usize> = numbers.iter().map(|number| records[*number].numel()).collect();
            after.0.extend(numbers.into_iter().zip(mean.split_with_sizes(sizes, 0)));
        }
        after.put_into(model, records);
        Ok(())
    }
}

impl<M: Model> Engine<M> {
    /// Runs a step, which is given the statistics before it; those of one that fails are put back.
    pub(super) fn with_statistics(
        &self,
        step: impl FnOnce(StepStatistics) -> Result<Accumulated>,
    ) -> Result<Accumulated> {
        let before = StepStatistics::before(self);
        let found = caught(|| step(before.clone()));
        if found.is_err() {
            // What fails here, as on a device that is gone, has a cause that is told already.
            let _ = epl_comm::catch(|| before.0.put_into(self.model(), self.plan.records()));
        }
        found
    }
}
