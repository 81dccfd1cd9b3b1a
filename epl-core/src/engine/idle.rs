//! How much of a step's time the stages of a pipeline wait for each other.
//!
//! ```text
//! stage 0  F0 F1 .  .  .  .  B0 B1        .  waits for a carry or its gradients,
//! stage 1  .  F0 B0 F1 B1 .  .  .            or has done all of its actions while another stage has not
//! ```

use std::time::Duration;

use epl_comm::ReduceOp;

use crate::error::Result;
use crate::model::context::Context;
use crate::simulate::protocol::OF_STAGE;

/// What one rank did between the first and the last action of its schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// From the begin of the first action to the end of the last.
    pub span: Duration,
    /// How much of it this rank waited for other stages.
    pub waited: Duration,
}

impl Work {
    /// The fraction of the time of all stages in which they did nothing, as the mean of the replicas has it; none with one
    /// stage. Collective.
    pub fn bubble(self, context: &Context) -> Result<Option<f64>> {
        let (stages, stage) = (context.mesh().stages(), context.coordinate().pipeline);
        if stages == 1 {
            return Ok(None);
        }
        let mut values = vec![0.0; OF_STAGE * stages];
        let busy = self.span.saturating_sub(self.waited);
        values[OF_STAGE * stage..][..OF_STAGE].copy_from_slice(&[busy.as_secs_f64(), self.span.as_secs_f64(), 1.0]);
        let sums = context.world().all_reduce_values(&values, ReduceOp::Sum)?;
        Ok(Some(bubble(sums.chunks(OF_STAGE).map(|sums| (sums[0] / sums[2], sums[1] / sums[2])))))
    }
}

/// The idle fraction of stages that are busy for some seconds, and done after some.
fn bubble(stages: impl Iterator<Item = (f64, f64)> + Clone) -> f64 {
    let longest = stages.clone().map(|(_, span)| span).fold(0.0, f64::max);
    let (busy, count) = stages.fold((0.0, 0.0), |(busy, count), stage| (busy + stage.0, count + 1.0));
    if longest > 0.0 { 1.0 - busy / (count * longest) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::bubble;

    #[test]
    fn a_stage_that_is_done_earlier_is_idle_too() {
        // 1F1B of two stages and two micro-batches, a backward twice as long as a forward.
        assert_eq!(bubble([(6.0, 9.0), (6.0, 7.0)].into_iter()), 1.0 - 12.0 / 18.0);
        assert_eq!(bubble([(0.0, 0.0), (0.0, 0.0)].into_iter()), 0.0);
    }
}
