//! Each replica clips its own gradient of a step before those of all are summed
//! (`communication.clip_after_allreduce = false`), as EPL does.
//!
//! ```text
//! share           ∇ Σ coefficient · sum of the replica ÷ global weight     what it adds to the sum over all R replicas
//! own gradient    R · share                                                of equal weights: that of its own mean loss
//! what is sent    share · min(1, limit ÷ ‖own gradient‖)                   of equal weights: its clipped gradient ÷ R
//! ```
//!
//! Unclipped, the shares sum to the gradient of all rows, however these are divided. Where gradients are summed
//! (`gradients_reduce_method = sum`), the own gradient is the share.
//!
//! A replica is the ranks that have the whole model once: its stages, the slices of its layers, and the data ranks that divide
//! its experts. An expert's gradient is that of the rows of all these; other gradients are first summed over them, and then
//! count there as many times less.

use burn::tensor::Tensor;
use epl_comm::ReduceOp;

use super::norm::{self, Squares};
use crate::config::ReduceMethod;
use crate::error::Result;
use crate::model::context::Context;
use crate::offload::scaled;
use crate::params::{Bucket, ParamRecord};
use crate::plan::Plan;
use crate::topology::cluster::Axis;

/// How this rank's replica clips its gradient.
pub(super) struct LocalClip<'a> {
    plan: &'a Plan,
    context: &'a Context,
    limit: f64,
    /// What the norm of the share is multiplied by to be that of the own gradient.
    to_own: f64,
}

impl<'a> LocalClip<'a> {
    /// Where each replica clips its own gradient, of a loss that is multiplied by `loss_scale`.
    pub fn new(plan: &'a Plan, context: &'a Context, loss_scale: f64) -> Option<Self> {
        let replicas = match plan.settings.reduce {
            ReduceMethod::Mean => plan.mesh.model_replicas() as f64,
            ReduceMethod::Sum => 1.0,
        };
        let to_own = replicas / loss_scale;
        plan.local_clip_norm().map(|limit| Self { plan, context, limit, to_own })
    }

    /// The share of the replica, from that of this rank: the gradients of a unit. Collective over the ranks that divide its
    /// experts.
    pub fn of_replica(&self, unit: &Bucket, flat: Tensor<1>) -> Result<Tensor<1>> {
        match self.copies(unit) {
            1 => Ok(flat),
            _ => Ok(self.context.axis(Axis::Expert).all_reduce(flat, ReduceOp::Sum)?),
        }
    }

    /// Clips the shares of the replica, of all units in their order, and leaves of each what this rank sends. Returns the mean
    /// of the norms of all replicas' own gradients. Collective.
    pub fn clip(&self, shares: Vec<Tensor<1>>) -> Result<(Vec<Tensor<1>>, f64)> {
        let mut squares = vec![0.0; self.plan.mesh.model_replicas()];
        let own = self.plan.coordinate.expert_data;
        let counted = self.plan.params.trained().zip(&shares).flat_map(|(unit, share)| self.counted(unit, share));
        squares[own] = counted.collect::<Squares>().read(self.context);
        let squares = self.context.world().all_reduce_values(&squares, ReduceOp::Sum)?;
        let norms: Vec<f64> = squares.iter().map(|squared| squared.sqrt() * self.to_own).collect();
        let factor = norm::clip_factor(norms[own], self.limit);
        let clipped = self.plan.params.trained().zip(shares);
        let clipped = clipped.map(|(unit, share)| scaled(share, factor / self.copies(unit) as f64));
        Ok((clipped.collect(), norms.iter().sum::<f64>() / norms.len() as f64))
    }

    /// How many ranks of the replica have its whole gradient of a unit, and are summed when it is reduced.
    fn copies(&self, unit: &Bucket) -> usize {
        self.plan.ranks_over(unit.axis) / self.plan.mesh.model_replicas()
    }

    /// The elements that this rank counts for its replica.
    fn counted(&self, unit: &Bucket, share: &Tensor<1>) -> impl Iterator<Item = Tensor<1>> {
        let slots = unit.slots.iter().filter(|slot| self.counts(&self.plan.params.records[slot.record]));
        slots.map(|slot| share.clone().slice([slot.whole.clone()]))
    }

    /// Whether this rank counts a parameter: the first of its replica's ranks that have the same of it.
    fn counts(&self, record: &ParamRecord) -> bool {
        let at = self.plan.coordinate;
        let is_first = |axis: Axis| record.is_cut_over(axis) || at.along(axis) == 0;
        record.stages.first() == Some(&at.pipeline) && is_first(Axis::Tensor) && is_first(Axis::Expert)
    }
}
