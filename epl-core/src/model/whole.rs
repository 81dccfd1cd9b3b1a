//! An ordinary model with a mean loss, run as a whole; the loss is differentiated by the engine, or by the model itself.

use core::fmt;
use std::sync::Arc;

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};

use crate::model::batch::{Batch, BatchTensors};
use crate::model::loss::{Loss, LossWeights};
use crate::model::precision::widen;
use crate::model::segment::Model;

/// The name of the only term of a mean loss.
pub(crate) const LOSS: &str = "loss";

/// What the mean loss of a batch weighs: as much as it has rows, or what the model's author says.
pub(crate) struct MeanWeight<B>(Option<Arc<WeightFn<B>>>);

type WeightFn<B> = dyn Fn(&B) -> f64 + Send + Sync;

impl<B> MeanWeight<B> {
    pub const ROWS: Self = Self(None);

    pub fn by(weight: impl Fn(&B) -> f64 + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(weight)))
    }

    pub fn of(&self, batch: &B) -> LossWeights {
        match &self.0 {
            None => LossWeights::new().with_rows(LOSS),
            Some(weight) => LossWeights::new().with_mean(LOSS, weight(batch)),
        }
    }

    /// The same of what is differentiated already: gradients over nothing are left out, whatever they are.
    fn of_given(&self, batch: &B) -> LossWeights {
        match &self.0 {
            None => LossWeights::new().with_rows(LOSS),
            Some(weight) => LossWeights::new().with(LOSS, weight(batch)),
        }
    }
}

impl<B> Clone for MeanWeight<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// An ordinary model with a loss that is a mean over the rows of a batch, as most of Burn's are, or over something else that
/// is [said](Self::weighted_by): one segment.
///
/// ```
/// # use burn::nn::{Linear, LinearConfig, loss::{MseLoss, Reduction}};
/// # use burn::tensor::Tensor;
/// # use epl_core::{Epl, Result, WithLoss};
/// # fn example(epl: &Epl) -> Result<()> {
/// let loss = |net: &Linear, (inputs, targets): &(Tensor<2>, Tensor<2>)| {
///     MseLoss::new().forward(net.forward(inputs.clone()), targets.clone(), Reduction::Mean)
/// };
/// let net = epl.build(|place| WithLoss::new(LinearConfig::new(8, 1).init(place), loss))?;
/// # Ok(())
/// # }
/// ```
///
/// It is no level of its own in the module: parameters are named, and stored, as the model names them.
///
/// Under mixed precision the closure, in which are network and loss, gets all of the batch in 16 bits, if that is a
/// [`Batch`], and what it returns is brought to f32. Where targets or the loss are to have the digits of f32, [`Chain`] tells the
/// two apart: `Chain::of(net).whole(…).mean_loss(…)`.
///
/// [`Chain`]: crate::Chain
pub struct WithLoss<M, B> {
    /// The model.
    pub model: M,
    loss: BatchLoss<M, B>,
    weight: MeanWeight<B>,
    batch: BatchTensors<B>,
    /// Whether the model differentiates its loss itself.
    is_given: bool,
}

type LossFn<M, B> = dyn Fn(&M, &B) -> Loss + Send + Sync;

/// The mean loss of a batch.
struct BatchLoss<M, B>(Arc<LossFn<M, B>>);

impl<M, B> Clone for BatchLoss<M, B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M, B> WithLoss<M, B> {
    /// A model, and its mean loss over the rows of a batch.
    ///
    /// # Shapes
    ///
    /// - what `mean` returns: `[1]`
    pub fn new(model: M, mean: impl Fn(&M, &B) -> Tensor<1> + Send + Sync + 'static) -> Self
    where
        B: Batch,
    {
        let loss = move |model: &M, batch: &B| Loss::new().with_mean(LOSS, widen(mean(model, batch)), 1.0);
        Self::of(model, loss, BatchTensors::of().with_loss())
    }

    /// A model with a step of its own: forward, and the backward of a loss that is a mean over the rows of a batch, or over
    /// something else that is [said](Self::weighted_by). It returns the gradients, and a factor on them, the same for all
    /// micro-batches of a step. The engine weighs, reduces and clips them and updates the parameters, as it does where it
    /// differentiates a loss itself; it does not know the loss, so that reports tell none.
    ///
    /// Not under mixed precision, where the loss is scaled.
    ///
    /// ```
    /// # use burn::nn::Linear;
    /// # use burn::optim::GradientsParams;
    /// # use burn::tensor::Tensor;
    /// # use epl_core::WithLoss;
    /// # fn example(net: Linear) {
    /// let step = |net: &Linear, batch: &Tensor<2>| {
    ///     let loss = net.forward(batch.clone()).powi_scalar(2).mean();
    ///     (GradientsParams::from_grads(loss.backward(), net), 1.0)
    /// };
    /// let net = WithLoss::with_backward(net, step);
    /// # }
    /// ```
    pub fn with_backward(model: M, step: impl Fn(&M, &B) -> (GradientsParams, f64) + Send + Sync + 'static) -> Self {
        let loss = move |model: &M, batch: &B| {
            let (gradients, factor) = step(model, batch);
            Loss::of_gradients(LOSS, gradients, factor)
        };
        Self { is_given: true, ..Self::of(model, loss, BatchTensors::unknown()) }
    }

    fn of(model: M, loss: impl Fn(&M, &B) -> Loss + Send + Sync + 'static, batch: BatchTensors<B>) -> Self {
        Self { model, loss: BatchLoss(Arc::new(loss)), weight: MeanWeight::ROWS, batch, is_given: false }
    }

    /// Says what the loss of a batch is a mean over, where it is not its rows: the targets that are no padding, or the sum of
    /// the weights of their classes. Micro-batches and replicas are weighed by it, so that the mean of all is the mean of a
    /// batch that was never divided.
    ///
    /// ```
    /// # use burn::nn::{Linear, LinearConfig, loss::CrossEntropyLossConfig};
    /// # use burn::tensor::{Int, Tensor};
    /// # use epl_core::{Epl, Result, WithLoss};
    /// # fn example(epl: &Epl) -> Result<()> {
    /// const PAD: usize = 0;
    /// let loss = |net: &Linear, (inputs, targets): &(Tensor<2>, Tensor<1, Int>)| {
    ///     let loss = CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![PAD])).init(&inputs.device());
    ///     loss.forward(net.forward(inputs.clone()), targets.clone())
    /// };
    /// let targets = |(_, targets): &(Tensor<2>, Tensor<1, Int>)| {
    ///     targets.clone().not_equal_scalar(PAD as i64).int().sum().into_scalar::<i64>() as f64
    /// };
    /// let net = epl.build(|place| WithLoss::new(LinearConfig::new(8, 9).init(place), loss).weighted_by(targets))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A step asks it once for each micro-batch, on every rank that runs it, before its first forward; one that reads from a
    /// device waits for it then. A micro-batch that weighs nothing has no mean: the step is refused, on all replicas.
    /// Where that may be, a [`Model`] of your own returns a sum ([`Loss::with`]). A replica without samples runs a stand-in, a row
    /// of the data that counts for nothing: a mean over it that is no number makes the step's gradients none. Both do not hold of a
    /// [step of the model's own](Self::with_backward): of what weighs nothing its gradients are left out.
    #[must_use]
    pub fn weighted_by(self, weight: impl Fn(&B) -> f64 + Send + Sync + 'static) -> Self {
        Self { weight: MeanWeight::by(weight), ..self }
    }

    fn with_model(&self, model: M) -> Self {
        let Self { loss, weight, batch, is_given, .. } = self;
        Self { model, loss: loss.clone(), weight: weight.clone(), batch: *batch, is_given: *is_given }
    }
}

impl<M: fmt::Debug, B> fmt::Debug for WithLoss<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WithLoss").field(&self.model).finish()
    }
}

/// Makes a wrapper a module that is no level of its own: it has a field `model`, and `with_model` wraps another one.
macro_rules! module_as_its_model {
    ($wrapper:ident<$model:ident, $($other:ident),+>) => {
        impl<$model: Clone, $($other),+> Clone for $wrapper<$model, $($other),+> {
            fn clone(&self) -> Self {
                self.with_model(self.model.clone())
            }
        }

        impl<$model: Module, $($other),+> Module for $wrapper<$model, $($other),+> {
            fn collect_devices(&self, devices: Devices) -> Devices {
                self.model.collect_devices(devices)
            }

            fn fork(self, device: &Device) -> Self {
                Self { model: self.model.fork(device), ..self }
            }

            fn to_device(self, device: &Device) -> Self {
                Self { model: self.model.to_device(device), ..self }
            }

            fn train(self) -> Self {
                Self { model: self.model.train(), ..self }
            }

            fn valid(&self) -> Self {
                self.with_model(self.model.valid())
            }

            fn materialize(self) -> Self {
                Self { model: self.model.materialize(), ..self }
            }

            fn visit<Visitor: ModuleVisitor>(&self, visitor: &mut Visitor) {
                self.model.visit(visitor);
            }

            fn map<Mapper: ModuleMapper>(self, mapper: &mut Mapper) -> Self {
                Self { model: self.model.map(mapper), ..self }
            }
        }
    };
}
pub(crate) use module_as_its_model;

module_as_its_model!(WithLoss<M, B>);

impl<M: Module, B: Send> Model for WithLoss<M, B> {
    type Batch = B;
    /// All of it is in the loss.
    type Carry = ();

    fn segments(&self) -> usize {
        1
    }

    fn forward_segment(&self, _index: usize, _carry: Option<()>, _batch: &B) {}

    fn weights(&self, batch: &B) -> LossWeights {
        if self.is_given { self.weight.of_given(batch) } else { self.weight.of(batch) }
    }

    fn loss(&self, (): (), batch: &B) -> Loss {
        (self.loss.0)(&self.model, batch)
    }

    fn batch_tensors(&self) -> BatchTensors<B> {
        self.batch
    }
}
