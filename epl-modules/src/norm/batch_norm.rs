//! Batch normalisation over the rows of all replicas.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Flag, Module, ModuleDisplay, Param, RunningState};
use burn::nn::Initializer;
use burn::tensor::{Bool, Tensor, module};
use epl_core::model::precision::{in_wide, widen};
use epl_core::{Context, Place};

use super::standardise::{Scale, flat, standardise};
use super::statistics::{Moments, weighted_mean};
use crate::invalid::{check_epsilon, refuse};
use crate::placement::REPLICATED;
use crate::running::{plain, put};

/// Over which rows a [`SyncBatchNorm`] takes mean and variance.
#[derive(Config, Debug, Copy, PartialEq)]
pub enum BatchStatistics {
    /// Over the rows of all replicas: the same as one replica with all of them.
    Global,
    /// Over this replica's own rows, as EPL does: nothing waits for another rank's forward, and the result depends
    /// on how many replicas there are.
    PerReplica,
}

/// Configuration to create a [`SyncBatchNorm`] layer using the [init function](SyncBatchNormConfig::init).
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::{BatchStatistics, SyncBatchNormConfig};
///
/// testing::run((2, 1, 1), |epl| {
///     // Each of two replicas by its own rows, without a learnable scale and shift.
///     let config = SyncBatchNormConfig::new(3).with_statistics(BatchStatistics::PerReplica).with_affine(false);
///     let norm = config.init(&epl.place().child("norm"));
///     assert_eq!(norm.forward(Tensor::<4>::ones([2, 3, 4, 4], epl.place().device())).dims(), [2, 3, 4, 4]);
///     Ok(())
/// });
/// ```
#[derive(Config, Debug)]
pub struct SyncBatchNormConfig {
    /// The number of channels. Must be greater than zero.
    pub num_features: usize,
    /// A finite, positive value required for numerical stability. Default: 1e-5
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// How much of the running statistics a batch replaces, in `[0, 1]`. Default: 0.1
    ///
    /// `running = (1 - momentum) * running + momentum * batch`, as in Burn and in PyTorch; the momentum of Keras is
    /// one minus this.
    #[config(default = 0.1)]
    pub momentum: f64,
    /// Over which rows mean and variance are taken. Default: global
    #[config(default = "BatchStatistics::Global")]
    pub statistics: BatchStatistics,
    /// Whether the running variance averages Σ (x − mean)² / (n − 1), as in PyTorch. Default: true
    ///
    /// It estimates what evaluation needs, the variance of the data and not of a batch. Burn's `BatchNorm` divides by
    /// n. A batch is normalised by the latter everywhere.
    #[config(default = true)]
    pub unbiased: bool,
    /// Whether scale and shift are learned; otherwise they stay one and zero. Default: true
    #[config(default = true)]
    pub affine: bool,
}

/// Subtracts the mean of each channel, divides by its standard deviation, scales and shifts.
///
/// `Y = (X - mean(X)) / sqrt(var(X) + eps) * gamma + beta`
///
/// See [Batch Normalization](https://arxiv.org/abs/1502.03167). In training, mean and variance are those of the
/// current micro-batch's rows, of all replicas ([`BatchStatistics::Global`]) or of one; in evaluation they are the
/// running statistics. Training is a pass that [`Context::is_training`] says is one, through a model with autodiff
/// (not [`valid`](Module::valid)) whose layer is not [frozen](Module::freeze).
///
/// ```text
///            forward                                           backward
/// Global     all-gather of count, mean, squares                all-reduce of 2 sums a channel
/// PerReplica all-reduce of what the running statistics get     nothing
/// evaluation nothing                                           nothing
/// ```
///
/// - **Replicas** may have different numbers of rows. A stand-in ([`Context::is_stand_in`]) makes the same collectives
///   and counts for nothing; when all replicas have one, they are normalised by the running statistics, which stay.
/// - **Micro-batches** of a step are normalised one by one, and each updates the running statistics: accumulation is
///   not the same as one large batch, as everywhere.
/// - **Running statistics** are equal on all ranks, to the bit. They are not trained and have no part in the norm of
///   the gradients; a record saves them. A step whose gradients are only looked at, or turn out not to be finite, has moved
///   them; one that fails before has not. A micro-batch whose mean or variance is not finite, as when an activation overflows
///   f16, leaves them as they are, on all ranks.
/// - **Recomputation** runs a forward twice: the second time it gets the moments of the first run, asks no other rank,
///   and updates nothing.
///
/// ```
/// use burn::tensor::Tensor;
/// use epl_core::{Pass, testing};
/// use epl_modules::SyncBatchNormConfig;
///
/// // Two replicas, with one row each.
/// let rows = testing::run((2, 1, 1), |epl| {
///     let norm = SyncBatchNormConfig::new(1).init(epl.place());
///     let sample = epl.context().data().rank() as u64;
///     let x = Tensor::<2>::full([1, 1], sample as f32, epl.place().device());
///     // What an engine does before each forward.
///     epl.context().begin(Pass { step: 0, training: true, samples: [sample].into(), empty: false });
///     Ok(norm.forward(x).into_scalar::<f32>())
/// });
/// assert!((rows[0] + 1.0).abs() < 1e-3 && (rows[1] - 1.0).abs() < 1e-3); // of mean 0.5 and deviation 0.5
/// ```
///
/// Should be created with [`SyncBatchNormConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct SyncBatchNorm {
    /// The learnable scale, `[num_features]`.
    pub gamma: Param<Tensor<1>>,
    /// The learnable shift, `[num_features]`.
    pub beta: Param<Tensor<1>>,
    /// Whether the layer may train; off when it is frozen.
    pub training: Param<Flag>,
    /// The mean that evaluation uses, `[num_features]`.
    pub running_mean: RunningState<Tensor<1>>,
    /// The variance that evaluation uses, `[num_features]`.
    pub running_var: RunningState<Tensor<1>>,
    /// The number of channels.
    pub num_features: usize,
    /// How much of the running statistics a batch replaces.
    pub momentum: f64,
    /// A value required for numerical stability.
    pub epsilon: f64,
    /// Whether the running variance is divided by n − 1.
    pub unbiased: bool,
    #[module(skip)]
    statistics: BatchStatistics,
    #[module(skip)]
    context: Context,
}

impl SyncBatchNormConfig {
    /// Initializes a new [`SyncBatchNorm`] layer; `gamma` and the running variance are one, `beta` and the running
    /// mean zero.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when there is no channel, epsilon is not finite and positive, or momentum is not in
    /// `[0, 1]`.
    pub fn init(&self, place: &Place) -> SyncBatchNorm {
        let path = place.path();
        if self.num_features == 0 {
            refuse(format!("{path}: a batch norm of 0 channels; give it the channels of its input, at least 1"));
        }
        check_epsilon(path, self.epsilon);
        if !(0.0..=1.0).contains(&self.momentum) {
            refuse(format!("{path}: momentum {} is not in [0, 1]", self.momentum));
        }
        match self.statistics {
            BatchStatistics::Global => place.declare_over_micro_batch("the statistics of batch norms"),
            BatchStatistics::PerReplica => place.declare_over_replica("the statistics of batch norms"),
        }
        let (shape, device) = ([self.num_features], place.device());
        SyncBatchNorm {
            gamma: place.full_precision(place.param(shape, Initializer::Ones).set_require_grad(self.affine)),
            beta: place.full_precision(place.param(shape, Initializer::Zeros).set_require_grad(self.affine)),
            training: Param::from_bool(true),
            running_mean: place.full_precision(RunningState::new(Tensor::zeros(shape, device))),
            running_var: place.full_precision(RunningState::new(Tensor::ones(shape, device))),
            num_features: self.num_features,
            momentum: self.momentum,
            epsilon: self.epsilon,
            unbiased: self.unbiased,
            statistics: self.statistics,
            context: place.context().clone(),
        }
    }
}

impl SyncBatchNorm {
    /// Normalises every channel. In training it is a collective of the replicas.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, num_features, ...]`
    /// - output: `[batch, num_features, ...]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when dim 1 is another, or a peer fails.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let dims = input.dims();
        if dims.get(1) != Some(&self.num_features) {
            refuse(format!(
                "a batch norm of num_features {} got an input of {dims:?}: give it [batch, {}, ...], or make the layer \
                 with the channels of its input",
                self.num_features, self.num_features
            ));
        }
        match self.is_training() {
            true => self.forward_train(input),
            false => self.forward_inference(input),
        }
    }

    /// The same on every rank, whatever its rows: the frozen layers are, and the pass is.
    fn is_training(&self) -> bool {
        self.context.is_training() && self.training.is_enabled() && self.gamma.val().is_autodiff()
    }

    fn forward_inference<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let device = input.device();
        let [mean, variance] =
            [&self.running_mean, &self.running_var].map(|running| running.value_sync().to_device(&device));
        in_wide(input, |input| {
            module::batch_norm(input, self.gamma.val(), self.beta.val(), mean, variance, self.epsilon)
        })
    }

    fn forward_train<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let scale = match self.statistics {
            BatchStatistics::Global => self.global(flat(widen(plain(input.clone())))),
            BatchStatistics::PerReplica => self.per_replica(flat(widen(plain(input.clone())))),
        };
        standardise(input, self.gamma.val(), self.beta.val(), scale)
    }

    /// Statistics over the rows of all replicas.
    fn global(&self, x: Tensor<3>) -> Scale {
        let (group, counts) = (self.context.data(), !self.context.is_stand_in());
        let own = if counts { Moments::of(&x) } else { Moments::none(&x) };
        let all = own.over(group);
        let any = all.count.clone().greater_scalar(0.0);
        let mean = chosen(&any, all.mean.clone(), &self.running_mean);
        let variance = chosen(&any, all.variance(false), &self.running_var);
        let unbiased = all.variance(self.unbiased);
        self.update(any, all.mean, unbiased);
        Scale { mean, inverse: self.inverse(variance), count: all.count, counts, group: Some(group.clone()) }
    }

    /// Statistics over this replica's rows; only the running ones are shared.
    fn per_replica(&self, x: Tensor<3>) -> Scale {
        let own = Moments::of(&x);
        let counted = if self.context.is_stand_in() { Moments::none(&x) } else { own.clone() };
        let batch = [counted.mean.clone(), counted.variance(self.unbiased)];
        let (count, [mean, variance]) = weighted_mean(counted.count, batch, self.context.data());
        self.update(count.greater_scalar(0.0), mean, variance);
        let inverse = self.inverse(own.variance(false));
        Scale { mean: own.mean, inverse, count: own.count, counts: true, group: None }
    }

    fn inverse(&self, variance: Tensor<1>) -> Tensor<1> {
        (variance + self.epsilon).sqrt().recip()
    }

    /// Moves the running statistics towards those of the batch, which are the same on all ranks; not at all where `any` is
    /// false, or one of them is not finite.
    fn update(&self, any: Tensor<1, Bool>, mean: Tensor<1>, variance: Tensor<1>) {
        if self.context.is_replay() {
            // They were moved when this was run first.
            return;
        }
        let moves = any.bool_and(mean.clone().is_finite().bool_and(variance.clone().is_finite()).all());
        for (running, batch) in [(&self.running_mean, mean), (&self.running_var, variance)] {
            let kept = plain(running.value_sync()).cast(batch.dtype());
            put(running, chosen(&moves, kept * (1.0 - self.momentum) + batch * self.momentum, running));
        }
    }
}

/// The numbers of the batch where `which` is true, else the running ones: chosen, not weighed by one and zero, as what is
/// not finite stays so when it is multiplied by zero.
fn chosen(which: &Tensor<1, Bool>, batch: Tensor<1>, running: &RunningState<Tensor<1>>) -> Tensor<1> {
    let running = plain(running.value_sync()).cast(batch.dtype());
    running.mask_where(which.clone().expand(batch.dims()), batch)
}

impl ModuleDisplay for SyncBatchNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let statistics = match self.statistics {
            BatchStatistics::Global => "of all replicas",
            BatchStatistics::PerReplica => "of each replica",
        };
        content
            .add("num_features", &self.num_features)
            .add("momentum", &self.momentum)
            .add("epsilon", &self.epsilon)
            .add("statistics", statistics)
            .add("placement", REPLICATED)
            .optional()
    }
}
