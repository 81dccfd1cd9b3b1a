//! What of a step does not follow from the plan: what segments call, what they send on, how many numbers a report has.

use std::collections::BTreeMap;

use burn::tensor::DType;

use super::call::Called;
use super::protocol::{LABEL, PARCEL_HEAD};
use crate::plan::bucket;

/// What segments of a model call and send, of each micro-batch of a step. Made by
/// [`LazyModel::step_shapes`](crate::LazyModel::step_shapes).
#[derive(Clone, Debug)]
pub struct StepShapes {
    /// The kind of each micro-batch.
    pub(crate) kinds: Vec<usize>,
    /// By kind, then by segment.
    pub(crate) calls: Vec<Vec<SegmentCalls>>,
    pub(crate) carries: Vec<Vec<CarryShape>>,
    /// The terms that have weights.
    pub(crate) terms: usize,
    /// The terms of the loss, which may be fewer.
    pub(crate) loss_terms: usize,
    /// The numbers of all metrics that layers declare.
    pub(crate) metrics: usize,
    pub(crate) lanes: usize,
    pub(crate) rows: TableRows,
    /// The rows of the step, of all replicas, where they are known.
    pub(crate) batch: Option<usize>,
}

/// The rows of tables whose gradients are not zero.
#[derive(Clone, Debug)]
pub(crate) enum TableRows {
    /// Of one micro-batch, by its kind and the table's record.
    OfKinds(Vec<BTreeMap<usize, usize>>),
    /// Of a step, by the table's record. An engine lets them travel alone where they are fewer bytes.
    OfStep(BTreeMap<usize, usize>),
    /// Of the buckets that travelled so, by their numbers.
    Travelled(BTreeMap<usize, usize>),
}

impl StepShapes {
    /// Where pools have so many communicators at most: [`epl_comm::ProcessGroup::lanes`]. In a world that is only thought of they
    /// have as many as are asked for.
    #[must_use]
    pub fn with_lanes(self, lanes: usize) -> Self {
        Self { lanes, ..self }
    }

    /// Of a step of so many rows of all replicas, cut as [`BatchShard`](crate::data::BatchShard) cuts them, not by a sampler: between
    /// stages of different widths each rank sends the rows that others need; else it changes nothing. The micro-batches that were run
    /// have as many rows as that cut gives the rank, a stand-in one.
    #[must_use]
    pub fn with_batch(self, rows: usize) -> Self {
        Self { batch: Some(rows), ..self }
    }

    /// Where the gradients of these buckets travel as so many rows that are not zero. Others travel whole.
    #[must_use]
    pub fn with_rows(self, rows: BTreeMap<usize, usize>) -> Self {
        Self { rows: TableRows::Travelled(rows), ..self }
    }

    /// The rows of a bucket of one table that travel; none where it travels whole. It has so many rows of so many bytes.
    pub(super) fn rows_of(
        &self,
        (bucket, record): (usize, usize),
        ranks: usize,
        table: (usize, usize),
    ) -> Option<usize> {
        let rows = match &self.rows {
            TableRows::Travelled(rows) => return rows.get(&bucket).copied(),
            TableRows::OfStep(rows) => rows.get(&record).copied()?,
            // As if no two micro-batches had one in common.
            TableRows::OfKinds(kinds) => {
                self.kinds.iter().map(|kind| kinds[*kind].get(&record).copied()).sum::<Option<usize>>()?
            }
        };
        let rows = rows.min(table.0);
        bucket::rows_pay(rows * ranks, ranks, table).then_some(rows)
    }

    /// The micro-batches of the step.
    pub(super) fn micro_batches(&self) -> usize {
        self.kinds.len()
    }

    /// The collectives inside a segment.
    pub(crate) fn calls(&self, micro_batch: usize, segment: usize) -> &SegmentCalls {
        &self.calls[self.kinds[micro_batch]][segment]
    }

    /// The number that micro-batches of the same shapes have in common.
    pub(super) fn kind(&self, micro_batch: usize) -> usize {
        self.kinds[micro_batch]
    }

    /// What leaves a segment.
    pub(super) fn carry(&self, micro_batch: usize, segment: usize) -> &CarryShape {
        &self.carries[self.kinds[micro_batch]][segment]
    }
}

/// The collectives of a segment for one micro-batch, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentCalls {
    /// Of its forward.
    pub forward: Vec<Called>,
    /// Of its backward.
    pub backward: Vec<Called>,
}

/// How many rows of a carry travel; none: the whole carry, to or from the one counterpart.
pub(super) type RowsSent = Option<usize>;

/// What leaves a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct CarryShape {
    /// How many numbers of parts may vary.
    pub counts: usize,
    /// Its tensors.
    pub tensors: Vec<TensorShape>,
    /// Which of them have a gradient; none are said where the segment before them has nothing that asks for one.
    pub gradients: Vec<bool>,
}

impl CarryShape {
    /// The messages of a parcel of it, or of its gradients: a header, then the tensors, or so many of their rows.
    pub fn messages(&self, backward: bool, rows: RowsSent) -> Vec<(DType, usize)> {
        let Self { counts, tensors, gradients } = self;
        // Where nothing asks for a gradient, there is not even a list of them.
        let (counts, lines): (usize, Vec<Option<&TensorShape>>) = match backward {
            false => (*counts, tensors.iter().map(Some).collect()),
            true => (0, tensors.iter().zip(gradients).map(|(tensor, has)| has.then_some(tensor)).collect()),
        };
        let numbers = |line: &Option<&TensorShape>| line.map_or(1, |tensor| 2 + tensor.dims.len());
        let header = LABEL + counts + lines.iter().map(numbers).sum::<usize>();
        let elements = |tensor: &TensorShape| match rows {
            None => tensor.elements(),
            Some(rows) => rows * tensor.dims[1..].iter().product::<usize>(),
        };
        let mut messages = vec![(DType::I64, PARCEL_HEAD + 1)];
        messages.extend((header > PARCEL_HEAD).then(|| (DType::I64, header - PARCEL_HEAD)));
        messages.extend(lines.into_iter().flatten().map(|tensor| (tensor.dtype, elements(tensor))));
        messages
    }
}

/// A tensor that travels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TensorShape {
    /// Its element type.
    pub dtype: DType,
    /// Its dims.
    pub dims: Vec<usize>,
}

impl TensorShape {
    /// Its elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}
