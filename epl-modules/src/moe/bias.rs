//! Experts are balanced by a bias, without a loss.

use burn::module::{Flag, Module, Param, RunningState};
use burn::tensor::Tensor;
use epl_core::{Context, Place};

use super::balance::over_replicas;
use crate::running::{plain, put};

/// A number for each expert that is added to its probabilities where tokens choose, and nowhere else: after each step it grows for
/// experts that were asked less than the mean, and shrinks for those that were asked more.
///
/// What is counted are the choices of all replicas in all micro-batches of a step, so no layout changes it. A step whose gradients
/// are only looked at, or that is skipped, counts as well; one that fails does not, nor does a layer that is
/// [frozen](Module::freeze). An evaluation, and what follows the last step, find the bias of the step before.
///
/// *Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts*, Wang et al., 2024
/// ([arXiv:2408.15664](https://arxiv.org/abs/2408.15664)); DeepSeek-V3.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::{Pass, testing};
/// use epl_modules::MoeConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let moe = MoeConfig::new(8, 16, 2).with_bias_rate(Some(0.25)).init(&epl.place().child("moe"));
///     for step in 0..2 {
/// #         epl.context().begin(Pass { step, training: true, samples: [0].into(), empty: false });
///         moe.forward(Tensor::ones([1, 6, 8], epl.place().device()), None); // tokens that are alike go to one expert
///     }
///     let bias = moe.bias.unwrap().running_bias.value_sync().into_data().to_vec::<f32>().unwrap();
///     assert!(bias == [0.25, -0.25] || bias == [-0.25, 0.25]); // it is less likely from the second step on
///     Ok(())
/// });
/// ```
#[derive(Module, Debug)]
pub struct BalanceBias {
    /// What is added, `[experts]`.
    pub running_bias: RunningState<Tensor<1>>,
    /// How often each expert was asked in the step that is under way, or in the last one, `[experts]`.
    pub running_load: RunningState<Tensor<1>>,
    /// One more than the number of that step, `[1]`: compared where it is, as reading it would wait for the device.
    pub running_step: RunningState<Tensor<1>>,
    /// Whether it may move; off when the layer is frozen.
    pub training: Param<Flag>,
    #[module(skip)]
    rate: f64,
    #[module(skip)]
    context: Context,
}

impl BalanceBias {
    pub(super) fn new(experts: usize, rate: f64, place: &Place) -> Self {
        let zeros = |size: usize| place.full_precision(RunningState::new(Tensor::zeros([size], place.device())));
        Self {
            running_bias: zeros(experts),
            running_load: zeros(experts),
            running_step: zeros(1),
            training: Param::from_bool(true),
            rate,
            context: place.context().clone(),
        }
    }

    /// The probabilities by which tokens choose. With the first call of a step of training the bias moves by the load of the step
    /// before.
    ///
    /// # Shapes
    ///
    /// - probabilities and output: `[tokens, experts]`, without a graph
    pub(super) fn scores(&self, probabilities: Tensor<2>) -> Tensor<2> {
        if self.is_training() && !self.context.is_replay() {
            self.begin(self.context.step() as f64 + 1.0);
        }
        let bias = plain(self.running_bias.value_sync()).to_device(&probabilities.device());
        probabilities.clone() + bias.cast(probabilities.dtype()).unsqueeze_dim(0)
    }

    /// Moves the bias by the load, and begins to count anew, unless the load is of this step.
    fn begin(&self, step: f64) {
        let [bias, load, last] =
            [&self.running_bias, &self.running_load, &self.running_step].map(|x| plain(x.value_sync()));
        let is_new = last.clone().not_equal_elem(step).expand(load.dims());
        let moved = bias.clone() + (load.clone().mean() - load.clone()).sign() * self.rate;
        put(&self.running_bias, bias.mask_where(is_new.clone(), moved));
        put(&self.running_load, load.mask_fill(is_new, 0.0));
        put(&self.running_step, last.full_like(step));
    }

    /// The same on every rank: the frozen layers are, and the pass is.
    fn is_training(&self) -> bool {
        self.context.is_training() && self.training.is_enabled()
    }

    /// Counts how often each expert was `asked` by these scores. Where one of them is not finite, as when an activation overflows
    /// f16, this replica counts for nothing. Collective over the replicas.
    ///
    /// # Shapes
    ///
    /// - asked: `[experts]`
    /// - scores: `[tokens, experts]`
    pub(super) fn count(&self, asked: Tensor<1>, scores: &Tensor<2>) {
        if !self.is_training() {
            return;
        }
        let is_lost = plain(scores.clone()).is_finite().all().bool_not().expand(asked.dims());
        let asked = asked.mask_fill(is_lost, 0.0);
        let asked = if self.context.is_stand_in() { asked.zeros_like() } else { asked };
        let asked = over_replicas(asked, &self.context);
        if self.context.is_replay() {
            // It was counted when this was run first.
            return;
        }
        let load = plain(self.running_load.value_sync());
        put(&self.running_load, load.clone() + asked.to_device(&load.device()).cast(load.dtype()));
    }
}
