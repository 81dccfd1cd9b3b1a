//! Whether recomputation changes a gradient.
//!
//! It must not, to rounding; on Flex not at all. It does where a layer remembers something that the engine does not know
//! of: a counter, a cache, a generator of its own.

use std::ops::Range;

use super::batches::Given;
use super::gradients::GradientStore;
use super::micro_batch::MicroBatch;
use super::rank::Engine;
use super::run::StepRun;
use crate::engine::difference::relative_error;
use crate::error::{Error, Result};
use crate::model::segment::Model;

/// On an accelerator a product may be summed in another order the second time.
const TOLERANCE: f64 = 1e-5;

impl<M: Model> Engine<M> {
    /// How far the gradients of a step with and without recomputation are apart: of every parameter that this rank holds
    /// the largest difference, as a fraction of its largest element, the largest one first; nothing where nothing is
    /// recomputed. Collective.
    ///
    /// Layers tell nothing of it, and keep nothing: running statistics stay as they are.
    ///
    /// # Errors
    ///
    /// As [`gradients`](Self::gradients).
    pub fn recomputation_errors(&self, micro_batches: &[MicroBatch<M::Batch>]) -> Result<Vec<(String, f64)>> {
        if self.plan.recompute.is_empty() {
            return Ok(Vec::new());
        }
        let _again = self.context.replaying();
        let gradients = |again: &[Range<usize>]| {
            let _outputs = self.context.open_outputs();
            let accumulated = self.with_statistics(|statistics| {
                StepRun::new(self, again, micro_batches, Given::default(), statistics)?.all()
            })?;
            let is_finite = accumulated.report().grad_norm.is_finite();
            Ok::<_, Error>((self.whole_store(accumulated.store)?, is_finite))
        };
        let ((stored, is_finite), (recomputed, is_finite_again)) = (gradients(&[])?, gradients(&self.plan.recompute)?);
        if !is_finite && !is_finite_again {
            // The step itself says why, or is skipped, after which this is asked again.
            return Ok(Vec::new());
        }
        Ok(self.differences(&recomputed, &stored))
    }

    /// Refuses to train where recomputation changes a gradient. Collective.
    pub(super) fn check_recomputation(&self, micro_batches: &[MicroBatch<M::Batch>]) -> Result<()> {
        let wrong = |(_, error): &(String, f64)| error.is_nan() || *error > TOLERANCE;
        let wrong: Vec<(String, f64)> = self.recomputation_errors(micro_batches)?.into_iter().filter(wrong).collect();
        let others: Vec<String> =
            wrong.iter().skip(1).map(|(name, error)| format!("`{name}` by {error:.1e}")).collect();
        match wrong.into_iter().next() {
            Some((name, error)) => Err(Error::Parameter {
                name,
                reason: format!(
                    "its gradient is off by {error:.1e} (of its largest element) when segments are recomputed, more than \
                     {TOLERANCE:.0e}{}; look for a layer in {:?} that remembers something from one forward to the next, or \
                     leave gradient_checkpoint.type out",
                    if others.is_empty() { String::new() } else { format!(", and {}", others.join(", ")) },
                    self.plan.recompute
                ),
            }),
            None => Ok(()),
        }
    }

    fn differences(&self, found: &GradientStore, expected: &GradientStore) -> Vec<(String, f64)> {
        let records = self.plan.params.records.iter();
        let both = records.filter_map(|record| {
            let (found, expected) = (found.get(record.id)?, expected.get(record.id)?);
            let error = relative_error(&found.clone().into_data(), &expected.clone().into_data());
            Some((record.name.clone(), error))
        });
        let mut differences: Vec<(String, f64)> = both.collect();
        differences.sort_by(|a, b| b.1.total_cmp(&a.1));
        differences
    }
}
