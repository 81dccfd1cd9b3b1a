//! The floating-point operations of a segment's forward: what its layers tell, and of what they do not, an estimate.

use burn::tensor::Tensor;

use crate::model::carry::{Carry, CarryMapper};
use crate::model::context::Flops;
use crate::plan::Plan;

/// Backward makes two products of each one of forward: for what enters, and for the weight.
pub(super) const OF_STEP: f64 = 3.0;

/// The parameters that each segment uses, by the numbers of their records.
pub(super) struct SegmentFlops(Vec<Vec<usize>>);

impl SegmentFlops {
    pub fn new(plan: &Plan) -> Self {
        let mut of_segments = vec![Vec::new(); plan.segments.len()];
        for (number, record) in plan.records().iter().enumerate() {
            // What is no more than a vector, whatever its dims, multiplies no matrix.
            let is_vector = record.global_shape.iter().filter(|size| **size > 1).count() < 2;
            for segment in record.segments.iter().filter(|_| !is_vector || record.global_shape.len() == 2) {
                if let Some(numbers) = of_segments.get_mut(*segment) {
                    numbers.push(number);
                }
            }
        }
        Self(of_segments)
    }

    /// What layers told, and two for each row and element of a matrix of which nobody told; none where it is not known how a
    /// parameter is used.
    pub fn of(&self, plan: &Plan, segment: usize, told: &Flops, rows: Option<usize>) -> Option<f64> {
        self.0[segment].iter().map(|number| &plan.records()[*number]).try_fold(told.total, |sum, record| {
            match record.global_shape.len() {
                _ if told.weights.contains(&record.id) => Some(sum),
                // Where it is used for the second time it may be a head.
                2 if record.table => (record.segments.len() == 1).then_some(sum),
                2 => rows.map(|rows| sum + 2.0 * (rows * record.numel()) as f64),
                _ => None,
            }
        })
    }
}

/// The rows of a carry's first tensor, if it has one: of a picture its positions, else all dims but the last.
pub(super) fn rows<C: Carry>(carry: &C) -> Option<usize> {
    struct CarryRows(Option<usize>);
    impl CarryMapper for CarryRows {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            let dims = tensor.dims();
            let features = if D == 4 { dims.get(1) } else { dims.last() };
            self.0.get_or_insert(dims.iter().product::<usize>() / features.copied().unwrap_or(1).max(1));
            tensor
        }
    }
    let mut counted = CarryRows(None);
    let _ = carry.clone().map(&mut counted);
    counted.0
}
