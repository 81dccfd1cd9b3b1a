//! Shapes of micro-batches of any number of rows, from those of two.

use std::collections::BTreeMap;

use burn::tensor::DType;
use rustc_hash::FxHashSet;

use super::call::Called;
use super::shapes::{CarryShape, SegmentCalls, StepShapes, TableRows, TensorShape};
use crate::error::{Error, Result};

/// What segments call and send, as straight lines over the rows of a micro-batch.
#[derive(Clone, Debug)]
pub(crate) struct ShapesOverRows {
    /// Of two kinds of micro-batches.
    shapes: StepShapes,
    /// Their rows.
    rows: [usize; 2],
    /// Segments behind which a stage may end, one for each kind of carry that leaves them.
    boundaries: Vec<usize>,
}

impl ShapesOverRows {
    /// Through the shapes of two kinds of micro-batches, of so many rows.
    ///
    /// # Errors
    ///
    /// When the two are equal, or a segment calls or sends other things for the one than for the other.
    pub fn through(shapes: StepShapes, rows: [usize; 2]) -> Result<Self> {
        let is_alike = |one: &Vec<Called>, other: &Vec<Called>| {
            let kind = |call: &Called| (call.over.clone(), call.operation, call.dtype);
            one.iter().map(kind).eq(other.iter().map(kind))
        };
        let [few, many] = [0, 1].map(|kind| shapes.calls[kind].iter().zip(&shapes.carries[kind]));
        let other = few.zip(many).position(|((calls, carry), (more, larger))| {
            let dims = |carry: &CarryShape| {
                carry.tensors.iter().map(|tensor| (tensor.dtype, tensor.dims.len())).collect::<Vec<_>>()
            };
            !is_alike(&calls.forward, &more.forward)
                || !is_alike(&calls.backward, &more.backward)
                || (carry.counts, &carry.gradients, dims(carry)) != (larger.counts, &larger.gradients, dims(larger))
        });
        match other {
            _ if rows[0] == rows[1] => Err(Error::invalid(format!(
                "shapes over rows need micro-batches of two numbers of rows, and both have {}; give another one",
                rows[0]
            ))),
            Some(segment) => Err(Error::invalid(format!(
                "segment {segment} calls or sends other things for {} rows than for {}, so that they are not known for others; \
                 let it make the same calls whatever the batch is",
                rows[0], rows[1]
            ))),
            None => Ok(Self { boundaries: Self::boundaries(&shapes), shapes, rows }),
        }
    }

    fn boundaries(shapes: &StepShapes) -> Vec<usize> {
        let mut known = FxHashSet::default();
        let last = shapes.carries[0].len().saturating_sub(1);
        (0..last).filter(|segment| known.insert([0, 1].map(|kind| &shapes.carries[kind][*segment]))).collect()
    }

    /// What may go between stages for a micro-batch of so many rows, each once: the messages of a carry and of its gradients.
    pub fn sent(&self, rows: usize) -> Vec<Vec<(DType, usize)>> {
        let both = |carry: CarryShape| [false, true].map(|backward| carry.messages(backward, None)).concat();
        self.boundaries.iter().map(|segment| both(self.carry(*segment, rows))).collect()
    }

    /// Those of a step whose micro-batches have so many rows, without the collectives inside segments; tables are read by so many rows of
    /// the `step`, of which these micro-batches may be some.
    pub fn without_calls(&self, rows: &[usize], step: usize) -> StepShapes {
        let mut distinct: Vec<usize> = rows.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let kinds = rows.iter().map(|rows| distinct.partition_point(|other| other < rows)).collect();
        let calls = vec![vec![SegmentCalls::default(); self.shapes.calls[0].len()]; distinct.len()];
        let carries = distinct.iter().map(|rows| self.carries(*rows)).collect();
        let StepShapes { terms, loss_terms, metrics, lanes, .. } = self.shapes;
        let rows = self.table_rows(step);
        StepShapes { kinds, calls, carries, terms, loss_terms, metrics, lanes, rows, batch: None }
    }

    /// The rows of tables in a step of so many rows. Words that were not seen before come ever more seldom: as a power of the length of
    /// a text, by Heaps' law.
    fn table_rows(&self, step: usize) -> TableRows {
        let TableRows::OfKinds(kinds) = &self.shapes.rows else { return self.shapes.rows.clone() };
        let [from, to] = self.rows.map(|rows| rows as f64);
        let of = |(record, many): (&usize, &usize)| {
            let few = kinds[0].get(record).copied().unwrap_or_default().max(1) as f64;
            let power = ((*many as f64 / few).ln() / (to / from).ln()).clamp(0.0, 1.0);
            (*record, (*many as f64 * (step as f64 / to).powf(power)).ceil() as usize)
        };
        TableRows::OfStep(kinds[1].iter().map(of).collect())
    }

    /// How many rows of tables were counted, always in the same order.
    pub fn counts_of_tables(&mut self) -> Vec<&mut usize> {
        match &mut self.shapes.rows {
            TableRows::OfKinds(kinds) => kinds.iter_mut().flat_map(BTreeMap::values_mut).collect(),
            TableRows::OfStep(_) | TableRows::Travelled(_) => Vec::new(),
        }
    }

    /// The collectives inside a segment, for micro-batches of so many rows.
    pub fn calls_of(&self, segment: usize, rows: usize) -> SegmentCalls {
        let lists = |few: &[Called], many: &[Called]| {
            let call = |(few, many): (&Called, &Called)| Called {
                elements: self.between(rows, few.elements, many.elements),
                ..few.clone()
            };
            few.iter().zip(many).map(call).collect()
        };
        let [few, many] = [0, 1].map(|kind| &self.shapes.calls[kind][segment]);
        SegmentCalls { forward: lists(&few.forward, &many.forward), backward: lists(&few.backward, &many.backward) }
    }

    /// The same, where a segment calls this in its forward, too, however many rows there are.
    #[cfg(test)]
    pub fn with_forward_call(mut self, segment: usize, call: Called) -> Self {
        self.shapes.calls.iter_mut().for_each(|calls| calls[segment].forward.push(call.clone()));
        self
    }

    /// Whether two segments make the same collectives.
    pub fn call_alike(&self, one: usize, other: usize) -> bool {
        self.shapes.calls.iter().all(|calls| calls[one] == calls[other])
    }

    fn carries(&self, rows: usize) -> Vec<CarryShape> {
        (0..self.shapes.carries[0].len()).map(|segment| self.carry(segment, rows)).collect()
    }

    fn carry(&self, segment: usize, rows: usize) -> CarryShape {
        let [few, many] = [0, 1].map(|kind| &self.shapes.carries[kind][segment]);
        let tensor = |(few, many): (&TensorShape, &TensorShape)| TensorShape {
            dtype: few.dtype,
            dims: few.dims.iter().zip(&many.dims).map(|(few, many)| self.between(rows, *few, *many)).collect(),
        };
        CarryShape { tensors: few.tensors.iter().zip(&many.tensors).map(tensor).collect(), ..few.clone() }
    }

    /// On the line through both.
    fn between(&self, rows: usize, few: usize, many: usize) -> usize {
        let [from, to] = self.rows.map(|rows| rows as f64);
        let slope = (many as f64 - few as f64) / (to - from);
        (few as f64 + slope * (rows as f64 - from)).round().max(0.0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_ever_fewer_words_that_are_new() {
        let tables = |few, many| {
            let rows = TableRows::OfKinds([few, many].map(|count| [(7, count)].into()).to_vec());
            let (kinds, calls, carries) = (vec![0, 1], vec![Vec::new(); 2], vec![Vec::new(); 2]);
            let shapes =
                StepShapes { kinds, calls, carries, terms: 1, loss_terms: 1, metrics: 0, lanes: 1, rows, batch: None };
            let over = ShapesOverRows::through(shapes, [4, 16]).unwrap();
            [1, 4, 16].map(|micro_batches| match over.without_calls(&[4], 4 * micro_batches).rows {
                TableRows::OfStep(rows) => rows[&7],
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(tables(100, 200), [100, 200, 400]);
        assert_eq!(tables(100, 400), [100, 400, 1600]);
        // All there are; and a table that no token was of.
        assert_eq!(tables(50, 50), [50, 50, 50]);
        assert_eq!(tables(0, 0), [0, 0, 0]);
    }
}
