//! The gradients of a step, one flat tensor a parameter.

use std::collections::HashMap;

use burn::module::{Module, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Gradients, Tensor};

use super::meter::{Lease, Meter, bytes};
use crate::error::{Error, Result};
use crate::model::precision::cast;
use crate::params::ParamRecord;
use crate::params::walk::{self, At, Visit};

/// What a backward left for the parameters.
pub(crate) enum Found {
    /// Of Burn's own, of the graph that a segment's forward left.
    Graph(Gradients),
    /// What a model has differentiated itself, and what it is to be multiplied by.
    Given(GradientsParams, f64),
}

impl Found {
    /// Takes that of a parameter.
    fn remove<const D: usize>(&mut self, id: ParamId, value: &Tensor<D>) -> Option<Tensor<D>> {
        match self {
            Self::Graph(gradients) => value.grad_remove(gradients),
            Self::Given(gradients, 1.0) => gradients.remove(id),
            // Of what counts for nothing they may be no numbers.
            Self::Given(gradients, 0.0) => gradients.remove(id).map(|gradient: Tensor<D>| gradient.zeros_like()),
            Self::Given(gradients, factor) => gradients.remove(id).map(|gradient: Tensor<D>| gradient * *factor),
        }
    }

    /// How many are left that the model has given.
    fn left(&self) -> usize {
        match self {
            Self::Graph(_) => 0,
            Self::Given(gradients, _) => gradients.len(),
        }
    }
}

/// Gradients by parameter, flattened: a view, not a copy, for the contiguous tensors that products return.
pub(crate) struct GradientStore {
    gradients: HashMap<ParamId, CountedGradient>,
    meter: Meter,
}

/// A gradient, counted as long as it is kept.
struct CountedGradient {
    gradient: Tensor<1>,
    _lease: Lease,
}

impl GradientStore {
    /// None yet; those that will be kept are counted.
    pub fn new(meter: &Meter) -> Self {
        Self { gradients: HashMap::new(), meter: meter.clone() }
    }

    /// Adds the gradients that the backward of `segment` left for the parameters of `model`.
    ///
    /// # Errors
    ///
    /// When the segment used a parameter that is not said to be its own: its gradient could be reduced before it is
    /// complete.
    pub fn collect<M: Module>(
        &mut self,
        model: &M,
        records: &[ParamRecord],
        segment: usize,
        mut found: Found,
    ) -> Result<()> {
        walk::visit(model, records, &mut Collector { store: self, found: &mut found, segment })?;
        match found.left() {
            0 => Ok(()),
            left => Err(Error::invalid(format!(
                "the model gave the gradients of {left} parameters that it does not have, or that are frozen; take them by \
                 `GradientsParams::from_grads` from the model that ran"
            ))),
        }
    }

    /// Adds a flat gradient.
    pub fn add(&mut self, id: ParamId, gradient: Tensor<1>) {
        let sum = match self.remove(id) {
            Some(other) => other + gradient,
            None => gradient,
        };
        self.insert(id, sum);
    }

    /// Puts a gradient in.
    pub fn insert(&mut self, id: ParamId, gradient: Tensor<1>) {
        let _lease = self.meter.lease(bytes(&gradient));
        self.gradients.insert(id, CountedGradient { gradient, _lease });
    }

    /// Takes a gradient.
    pub fn remove(&mut self, id: ParamId) -> Option<Tensor<1>> {
        self.gradients.remove(&id).map(|kept| kept.gradient)
    }

    /// A gradient.
    pub fn get(&self, id: ParamId) -> Option<&Tensor<1>> {
        self.gradients.get(&id).map(|kept| &kept.gradient)
    }

    /// Of a parameter's gradient, whole or not, what this rank updates the parameter with.
    pub fn own(&self, record: &ParamRecord) -> Option<Tensor<1>> {
        self.get(record.id).cloned().map(|gradient| own_part(gradient, record))
    }

    /// Takes of a parameter's gradient, whole or not, what this rank updates the parameter with.
    pub fn take_own(&mut self, record: &ParamRecord) -> Option<Tensor<1>> {
        self.remove(record.id).map(|gradient| own_part(gradient, record))
    }

    /// Multiplies every gradient.
    pub fn scale_by(&mut self, factor: f64) {
        if factor == 1.0 {
            return;
        }
        for CountedGradient { gradient, .. } in self.gradients.values_mut() {
            let taken = core::mem::replace(gradient, Tensor::empty([0], &gradient.device()));
            *gradient = taken * factor;
        }
    }
}

/// A parameter's shard of its whole gradient; what is no whole is the shard.
fn own_part(gradient: Tensor<1>, record: &ParamRecord) -> Tensor<1> {
    match &record.shard {
        Some(shard) if gradient.dims()[0] > shard.range.len() => gradient.slice([shard.range.clone()]),
        _ => gradient,
    }
}

struct Collector<'a> {
    store: &'a mut GradientStore,
    found: &'a mut Found,
    segment: usize,
}

impl Visit for Collector<'_> {
    type Error = Error;

    fn float<const D: usize>(&mut self, at: At<'_>, param: &Param<Tensor<D>>) -> Result<()> {
        let (record, base) = (at.record, param.base());
        if !base.is_require_grad() {
            return Ok(());
        }
        let Some(gradient) = self.found.remove(param.id, &base) else { return Ok(()) };
        if !record.segments.contains(&self.segment) {
            return Err(Error::Parameter {
                name: record.name.clone(),
                reason: format!(
                    "is used by segment {}, and the model's `segments_of` names {:?} only",
                    self.segment, record.segments
                ),
            });
        }
        let numel = gradient.shape().num_elements();
        let flat = gradient.reshape([numel]);
        self.store.add(param.id, if record.half { cast(flat, record.dtype) } else { flat });
        Ok(())
    }
}
