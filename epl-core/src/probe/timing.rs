//! What segments take, from runs of some seconds, one segment at a time.
//!
//! ```text
//! round 1   segment 0  1  2 ..   of few rows, then of more
//! round 2   segment 0  1  2 ..
//! ```
//!
//! Machines have phases: for a second another program takes a core's time, or memory. Runs of a segment one behind the other would all
//! lie in one of them.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::cache_flush::CacheFlush;
use super::measure::{Bench, SegmentRuns, inside, median, wait};
use crate::error::Result;
use crate::model::carry::Carry;
use crate::model::graph::Untrack;
use crate::model::segment::Model;
use crate::plan::batch_views::BatchViews;

/// How often each segment is run.
const ROUNDS: RangeInclusive<usize> = 3..=5;
/// Beyond the fewest, none begins later.
const LATEST: Duration = Duration::from_secs(2);

/// A micro-batch of so many rows, and how the segments ran on it.
pub(crate) struct RowsToTime<'a, M: Model> {
    pub rows: usize,
    pub batch: &'a M::Batch,
    pub runs: SegmentRuns<M::Carry>,
}

impl<M: Model> Bench<'_, M> {
    /// For each micro-batch and segment, the seconds of its forward, of its backward, and of its forward without a graph, without
    /// their collectives: medians. Collective.
    ///
    /// # Errors
    ///
    /// When a segment cannot be run.
    pub fn seconds(&self, all: &[RowsToTime<'_, M>]) -> Result<Vec<Vec<[f64; 3]>>> {
        let _again = self.context.replaying();
        let (flush, begin) = (CacheFlush::new(self.device), Instant::now());
        let mut rounds = Vec::new();
        while rounds.len() < *ROUNDS.start() || rounds.len() < *ROUNDS.end() && begin.elapsed() < LATEST {
            let round =
                epl_comm::catch(|| all.iter().map(|rows| self.once(rows, &flush)).collect::<Result<Vec<_>>>())??;
            rounds.push(round);
        }
        let of = |kind: usize, segment: usize| {
            [0, 1, 2].map(|way| median(rounds.iter().map(|round| round[kind][segment][way]).collect()))
        };
        let of_kind = |(kind, rows): (usize, &RowsToTime<'_, M>)| {
            rows.runs.counted.iter().map(|segment| of(kind, *segment)).collect()
        };
        Ok(all.iter().enumerate().map(of_kind).collect())
    }

    /// Of each segment; 0 of one for which another one counts.
    fn once(&self, RowsToTime { rows, batch, runs }: &RowsToTime<'_, M>, flush: &CacheFlush) -> Result<Vec<[f64; 3]>> {
        self.begin(*rows);
        let seconds = runs.counted.iter().enumerate().map(|(segment, counted)| {
            if *counted != segment {
                return Ok([0.0; 3]);
            }
            let (carry, wanted) = (&runs.entrances[segment], runs.shapes.get(segment + 1));
            let wanted = wanted.map(|next| &*next.gradients);
            self.with_values(segment, batch, |model, batch| {
                let pass = self.pass((segment, Some(flush)), (model, batch), carry.clone(), wanted)?;
                let untracked = model.clone().no_grad();
                let alone = self.seconds_untracked((segment, flush), (&untracked, batch), carry.clone())?;
                Ok([pass.seconds[0], pass.seconds[1], alone])
            })
        });
        seconds.collect()
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
