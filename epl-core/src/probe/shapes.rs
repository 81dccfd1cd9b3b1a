//! The shapes of a step, from segments that are run one by one in a world that is only thought of.

use std::collections::BTreeMap;

use burn::tensor::Device;

use super::measure::SegmentShape;
use super::planned::LazyModel;
use super::timing::RowsToTime;
use crate::error::{Error, Result};
use crate::model::segment::Model;
use crate::simulate::{CarryShape, StepShapes, TableRows};

impl<M: Model> LazyModel<M> {
    /// What its segments call and send in a step whose micro-batches are of these `kinds`, by their numbers; a kind has so many
    /// `rows`, and `batch` makes one. A rank whose program is wanted runs it in [`launch_dry`](crate::launch_dry), where calls are
    /// recorded. One segment at a time gets values; what enters each is held at once. Of segments with equal parameters, entrances,
    /// exits and calls in forward the last one's backward counts for all.
    ///
    /// Of tables the rows whose gradient is not zero are counted, as if no two micro-batches had one in common. Where stages have
    /// different widths a program needs the rows of the batch, too ([`StepShapes::with_batch`]).
    ///
    /// Where ranks exchange as many rows as the data say, such as tokens of experts, a rank that is only thought of gets as many
    /// as it sends.
    ///
    /// # Errors
    ///
    /// Where calls are not recorded, or there is no such kind.
    pub fn step_shapes(
        &self,
        rows: &[usize],
        kinds: &[usize],
        mut batch: impl FnMut(usize, &Device) -> M::Batch,
    ) -> Result<StepShapes> {
        self.run_once((rows, kinds), |kind, device| Ok(batch(kind, device)), drop)
    }

    /// The same, and for each kind and segment the seconds of its forward, of its backward, and of its forward without a graph,
    /// without their collectives. Of a world that is only thought of, in which each rank runs by itself.
    ///
    /// # Errors
    ///
    /// As [`step_shapes`](Self::step_shapes).
    pub(crate) fn timed_shapes(
        &self,
        rows: &[usize],
        kinds: &[usize],
        batch: impl FnMut(usize, &Device) -> Result<M::Batch>,
    ) -> Result<(StepShapes, Vec<Vec<[f64; 3]>>)> {
        let mut all = Vec::new();
        let shapes = self.run_once((rows, kinds), batch, |rows| all.push(rows))?;
        Ok((shapes, self.bench().seconds(&all)?))
    }

    /// Runs segments on a batch of each kind, which `ran` gets.
    pub(crate) fn run_once(
        &self,
        (rows, kinds): (&[usize], &[usize]),
        mut batch: impl FnMut(usize, &Device) -> Result<M::Batch>,
        mut ran: impl FnMut(RowsToTime<M>),
    ) -> Result<StepShapes> {
        if let Some(kind) = kinds.iter().find(|kind| **kind >= rows.len()) {
            return Err(Error::invalid(format!(
                "a micro-batch of kind {kind}, and rows are given for {} kinds; give them for each",
                rows.len()
            )));
        }
        let (mut calls, mut carries, mut tables, mut terms, mut loss_terms) =
            (Vec::new(), Vec::new(), Vec::new(), 0, 0);
        for (kind, rows) in rows.iter().copied().enumerate() {
            let batch = batch(kind, self.place.device())?;
            let runs = self.bench().run(rows, &batch)?;
            (terms, loss_terms) = (self.model.weights(&batch).of(rows).0.len(), runs.terms);
            let entered = runs.shapes.iter().skip(1).map(|next| next.gradients.clone()).chain([Vec::new()]);
            carries.push(runs.shapes.iter().zip(entered).map(with_gradients).collect());
            tables.push(self.rows_of_tables(&runs.shapes));
            calls.push(runs.shapes.iter().map(|shape| shape.calls.clone()).collect());
            ran(RowsToTime { rows, batch, runs });
        }
        let context = self.place.context();
        let (kinds, metrics, lanes) = (kinds.to_vec(), context.metric_lengths(), context.world().lanes());
        let rows = TableRows::OfKinds(tables);
        Ok(StepShapes { kinds, calls, carries, terms, loss_terms, metrics, lanes, rows, batch: None })
    }

    /// By its record, the rows of each table whose gradient is not zero: as if no two segments that share one had a row in common.
    fn rows_of_tables(&self, shapes: &[SegmentShape]) -> BTreeMap<usize, usize> {
        let records = self.plan.params.records.iter().enumerate();
        let tables = |segment: usize| {
            records.clone().filter(move |(_, record)| record.sparse && record.segments.contains(&segment))
        };
        let mut rows = BTreeMap::new();
        for (segment, shape) in shapes.iter().enumerate() {
            tables(segment)
                .zip(&shape.tables)
                .for_each(|((record, _), count)| *rows.entry(record).or_default() += count);
        }
        rows
    }
}

/// What leaves a segment, with the gradients that the next one gives it.
fn with_gradients((shape, gradients): (&SegmentShape, Vec<bool>)) -> CarryShape {
    CarryShape { gradients, ..shape.exit.clone() }
}
