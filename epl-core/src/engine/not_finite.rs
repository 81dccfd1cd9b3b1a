//! Where a norm of the gradients comes from that is no number: looked for once it is there.

use super::gradients::GradientStore;
use super::norm::Squares;
use super::rank::Engine;
use super::report::StepReport;
use crate::error::{Error, Result};
use crate::model::segment::Model;
use crate::params::ParamRecord;
use crate::plan::Compression;
use crate::topology::cluster::Axis;

impl<M: Model> Engine<M> {
    /// The error of a norm that is not finite, in full precision: the samples whose loss is `not_finite` either, of whichever
    /// rank, and the first parameter with such a gradient. Collective.
    ///
    /// # Errors
    ///
    /// When a peer fails.
    pub(super) fn not_finite(&self, report: &StepReport, store: GradientStore, not_finite: &[u64]) -> Result<Error> {
        let remedy = match self.plan.settings.compression.filter(|_| report.loss.is_finite()) {
            Some(compression) => lower(compression),
            None => "look for such a number in the batch, or lower the learning rate".to_string(),
        };
        let found = [self.bad_samples(not_finite)?, self.first_bad_gradient(&store)?].concat();
        // A model that differentiates itself tells none.
        let loss = if report.terms.is_empty() { String::new() } else { format!(" (loss {})", report.loss) };
        Ok(Error::invalid(format!(
            "the norm of the gradients is {} at step {}{loss}: {found}{remedy}",
            report.grad_norm,
            self.next_step()
        )))
    }

    /// Whose loss is not finite. Collective.
    fn bad_samples(&self, own: &[u64]) -> Result<String> {
        let world = self.context.world();
        // Slices of a layer run the same samples.
        let tells = self.context.coordinate().along(Axis::Tensor) == 0 && !own.is_empty();
        let own = if tells { shown(own) } else { String::new() };
        let all = world.all_gather_texts(&own)?.into_iter().enumerate().filter(|(_, samples)| !samples.is_empty());
        let told = all.map(|(rank, samples)| format!("on rank {rank} the loss of {samples} is not finite; "));
        Ok(told.collect())
    }

    /// Of which parameter backward left such a gradient first: in the last segment with one, the last in the model's order.
    /// Collective.
    fn first_bad_gradient(&self, store: &GradientStore) -> Result<String> {
        let records = self.plan.records();
        let is_bad = |record: &ParamRecord| {
            store.own(record).is_some_and(|own| !Squares::from_iter([own]).read(&self.context).is_finite())
        };
        let on_device = (0..records.len()).filter(|number| is_bad(&records[*number]));
        // Those that lie away are read there: there may be no room for them on the device. A file that cannot be read any more
        // is no reason to leave the others waiting below.
        let away = self.state.away.as_ref().and_then(|away| away.borrow().not_finite(&self.plan.params).ok());
        let from_loss = |number: &usize| (records[*number].segments.iter().max().copied(), *number);
        let own = on_device.chain(away.unwrap_or_default()).max_by_key(from_loss).map_or(-1, |number| number as i64);
        let all = self.context.world().all_gather_counts(&[own])?;
        let first = all.iter().filter_map(|own| usize::try_from(own[0]).ok()).max_by_key(from_loss);
        Ok(first.map_or(String::new(), |number| {
            format!("as backward goes, the gradient of `{}` is the first that is not; ", records[number].name)
        }))
    }

    /// The error of the loss scale, which knows nothing of another scale on the gradients.
    pub(super) fn compressed_too(&self, error: Error) -> Error {
        match self.plan.settings.compression {
            Some(compression) => Error::invalid(format!(
                "{error}. Gradients also travel in {}, which may overflow: {}",
                compression.dtype,
                lower(compression)
            )),
            None => error,
        }
    }
}

fn lower(compression: Compression) -> String {
    format!("lower communication.fp16_scale from {}, or set fp16 = false", compression.scale)
}

/// Some of the samples, by their numbers in the order of drawing.
fn shown(samples: &[u64]) -> String {
    const MOST: usize = 8;
    let numbers: Vec<String> = samples.iter().take(MOST).map(u64::to_string).collect();
    let more = if samples.len() > MOST { format!(", … ({} in all)", samples.len()) } else { String::new() };
    format!("samples {}{more} of those drawn", numbers.join(", "))
}
