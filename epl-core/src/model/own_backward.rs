//! An ordinary model that differentiates its loss itself, run as a whole.

use core::fmt;
use std::sync::Arc;

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor};
use burn::optim::GradientsParams;
use burn::tensor::Device;

use crate::model::loss::{Loss, LossWeights};
use crate::model::segment::Model;
use crate::model::whole::{LOSS, MeanWeight, module_as_its_model};

/// An ordinary model with a step of its own: forward, and the backward of a loss that is a mean over the rows of a batch, or over
/// something else that is [said](Self::weighted_by); one segment. The engine weighs, reduces and clips its gradients and updates
/// the parameters, as it does where it differentiates a loss itself; it does not know the loss, so that reports tell none.
///
/// Not under mixed precision, where the loss is scaled.
///
/// ```
/// # use burn::nn::Linear;
/// # use burn::optim::GradientsParams;
/// # use burn::tensor::Tensor;
/// # use epl_core::WithBackward;
/// # fn example(net: Linear) {
/// let step = |net: &Linear, batch: &Tensor<2>| {
///     let loss = net.forward(batch.clone()).powi_scalar(2).mean();
///     (GradientsParams::from_grads(loss.backward(), net), 1.0)
/// };
/// let net = WithBackward::new(net, step);
/// # }
/// ```
///
/// It is no level of its own in the module: parameters are named, and stored, as the model names them.
pub struct WithBackward<M, B> {
    /// The model.
    pub model: M,
    step: Step<M, B>,
    weight: MeanWeight<B>,
}

type StepFn<M, B> = dyn Fn(&M, &B) -> (GradientsParams, f64) + Send + Sync;

struct Step<M, B>(Arc<StepFn<M, B>>);

impl<M, B> Clone for Step<M, B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M, B> WithBackward<M, B> {
    /// A model, and its step over a batch: the gradients of its mean loss over the rows, and a factor on them, the same for all
    /// micro-batches of a step.
    pub fn new(model: M, step: impl Fn(&M, &B) -> (GradientsParams, f64) + Send + Sync + 'static) -> Self {
        Self { model, step: Step(Arc::new(step)), weight: MeanWeight::ROWS }
    }

    /// Says what the loss of a batch is a mean over, where it is not its rows, as [`WithLoss::weighted_by`](crate::WithLoss::weighted_by).
    #[must_use]
    pub fn weighted_by(self, weight: impl Fn(&B) -> f64 + Send + Sync + 'static) -> Self {
        Self { weight: MeanWeight::by(weight), ..self }
    }

    fn with_model(&self, model: M) -> Self {
        Self { model, step: self.step.clone(), weight: self.weight.clone() }
    }
}

impl<M: fmt::Debug, B> fmt::Debug for WithBackward<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WithBackward").field(&self.model).finish()
    }
}

module_as_its_model!(WithBackward<M, B>);

impl<M: Module, B: Send> Model for WithBackward<M, B> {
    type Batch = B;
    /// All of it is in the loss.
    type Carry = ();

    fn segments(&self) -> usize {
        1
    }

    fn forward_segment(&self, _index: usize, _carry: Option<()>, _batch: &B) {}

    fn weights(&self, batch: &B) -> LossWeights {
        self.weight.of(batch)
    }

    fn loss(&self, (): (), batch: &B) -> Loss {
        let (gradients, factor) = (self.step.0)(&self.model, batch);
        Loss::of_gradients(LOSS, gradients, factor)
    }
}
