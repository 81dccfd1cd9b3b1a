//! What segments take, each run some times.
//!
//! ```text
//! round 1   segment 0: few rows, more   1: few, more   2 ..
//! round 2   segment 0: few rows, more   1: few, more   2 ..
//! ```
//!
//! Machines have phases: for a second another program takes a core's time, or memory. Runs of a segment one behind the other would all
//! lie in one of them.

use std::time::{Duration, Instant};

use super::cache_flush::CacheFlush;
use super::measure::{Bench, SegmentRuns, inside, median, wait};
use crate::error::Result;
use crate::model::carry::Carry;
use crate::model::graph::Untrack;
use crate::model::segment::Model;
use crate::plan::batch_views::BatchViews;

/// Rounds, and further ones where the first were over early. An odd number of both, so that there is a middle.
const ROUNDS: [usize; 2] = [3, 2];
const EARLY: Duration = Duration::from_secs(2);

/// A micro-batch of so many rows, and how the segments ran on it.
pub(crate) struct RowsToTime<M: Model> {
    pub rows: usize,
    pub batch: M::Batch,
    pub runs: SegmentRuns<M::Carry>,
}

impl<M: Model> Bench<'_, M> {
    /// For each micro-batch and segment, the seconds of its forward, of its backward, and of its forward without a graph, without
    /// their collectives: medians. In a world that is only thought of: its ranks need not make as many rounds.
    ///
    /// # Errors
    ///
    /// When a segment cannot be run.
    pub fn seconds(&self, all: &[RowsToTime<M>]) -> Result<Vec<Vec<[f64; 3]>>> {
        let (_again, begin) = (self.context.replaying(), Instant::now());
        let flush = CacheFlush::new(self.device);
        let mut rounds = Vec::new();
        for count in ROUNDS {
            if rounds.is_empty() || begin.elapsed() < EARLY {
                let round = || (0..self.plan.segments.len()).map(|segment| self.once(segment, all, &flush)).collect();
                let more: Result<Vec<Vec<Vec<[f64; 3]>>>> = epl_comm::catch(|| (0..count).map(|_| round()).collect())?;
                rounds.extend(more?);
            }
        }
        let of = |kind: usize, segment: usize| {
            [0, 1, 2].map(|way| median(rounds.iter().map(|round| round[segment][kind][way]).collect()))
        };
        let of_kind = |(kind, rows): (usize, &RowsToTime<M>)| {
            rows.runs.counted.iter().map(|segment| of(kind, *segment)).collect()
        };
        Ok(all.iter().enumerate().map(of_kind).collect())
    }

    /// A segment, on each micro-batch; 0 where another one counts for it.
    fn once(&self, segment: usize, all: &[RowsToTime<M>], flush: &CacheFlush) -> Result<Vec<[f64; 3]>> {
        let counts = |rows: &RowsToTime<M>| rows.runs.counted[segment] == segment;
        if !all.iter().any(counts) {
            return Ok(vec![[0.0; 3]; all.len()]);
        }
        self.with_values(segment, |model| {
            let untracked = model.clone().no_grad();
            let of = |rows: &RowsToTime<M>| {
                if !counts(rows) {
                    return Ok([0.0; 3]);
                }
                let RowsToTime { rows, batch, runs } = rows;
                self.begin(*rows);
                let (batch, carry) = (self.views(model, batch), &runs.entrances[segment]);
                // Where it is cast, that is once in a step.
                let _ = batch.of(segment);
                let wanted = runs.shapes.get(segment + 1).map(|next| &*next.gradients);
                let pass = self.pass((segment, Some(flush)), (model, &batch), carry.clone(), wanted)?;
                let alone = self.seconds_untracked((segment, flush), (&untracked, &batch), carry.clone())?;
                Ok([pass.seconds[0], pass.seconds[1], alone])
            };
            all.iter().map(of).collect()
        })
    }

    /// Seconds of a segment's forward of which nothing stays, by a model that asks for no gradients.
    fn seconds_untracked(
        &self,
        (segment, flush): (usize, &CacheFlush),
        (model, batch): (&M, &BatchViews<'_, M::Batch>),
        carry: Option<M::Carry>,
    ) -> Result<f64> {
        self.context.enter(segment);
        let enters = carry.map(|carry| self.plan.enter(segment, carry.map(&mut Untrack)));
        flush.run();
        let begin = Instant::now();
        let forward = || self.plan.forward(self.context, model, segment, enters, batch.of(segment));
        let (_, calls) = self.context.record_calls(|| self.holding(segment, forward))?;
        wait(self.device)?;
        Ok(begin.elapsed().as_secs_f64() - inside(&calls))
    }
}
