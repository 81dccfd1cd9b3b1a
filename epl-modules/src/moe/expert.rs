//! The experts of one rank: feed-forward networks of one shape, computed as one batched product.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{IndexingUpdateOp, Tensor};
use epl_comm::{Partial, copied};
use epl_core::cluster::Axis;
use epl_core::{Context, Place};

use super::arrangement::Arrangement;
use super::config::MoeConfig;
use super::dispatch::indices;
use crate::activation::Activation;

/// The experts of this rank.
///
/// ```text
/// plain   f(x · input) · output
/// gated   (f(x · input) ⊙ (x · gate)) · output
/// ```
///
/// Dim 0 is cut over the expert axis, `d_ff` over the tensor axis: each tensor rank computes a partial sum.
#[derive(Module, Debug)]
pub struct Experts {
    /// Shape `[experts, d_model, d_ff]`; its result is activated. In Hugging Face's names `wi`, or `wi_0` of a
    /// gated network, transposed.
    pub input: Param<Tensor<3>>,
    /// Shape `[experts, d_model, d_ff]`; multiplies the activation. In Hugging Face's names `wi_1`, transposed.
    pub gate: Option<Param<Tensor<3>>>,
    /// Shape `[experts, d_ff, d_model]`. In Hugging Face's names `wo`, transposed.
    pub output: Param<Tensor<3>>,
    #[module(skip)]
    activation: Activation,
    #[module(skip)]
    context: Context,
}

impl Experts {
    pub(super) fn new(config: &MoeConfig, place: &Place) -> Self {
        let MoeConfig { d_model, d_ff, experts, .. } = *config;
        let or_normal =
            |given: &Option<Initializer>, fan_in| given.clone().unwrap_or_else(|| MoeConfig::fan_in_normal(fan_in));
        let inwards = || {
            let cuts = [(Axis::Expert, 0), (Axis::Tensor, 2)];
            place.split_param([experts, d_model, d_ff], &cuts, or_normal(&config.initializer, d_model))
        };
        let outwards = || {
            let cuts = [(Axis::Expert, 0), (Axis::Tensor, 1)];
            place.split_param([experts, d_ff, d_model], &cuts, or_normal(&config.output_initializer, d_ff))
        };
        Self {
            input: inwards(),
            gate: config.gated.then(inwards),
            output: outwards(),
            activation: config.activation,
            context: place.context().clone(),
        }
    }

    /// Sends every row through its expert.
    ///
    /// # Shapes
    ///
    /// - rows: `[rows of the arrangement, d_model]`
    /// - output: `[rows of the arrangement, d_model]`
    pub(super) fn forward(&self, rows: Tensor<2>, arrangement: &Arrangement) -> Tensor<2> {
        let Arrangement { experts, height, .. } = *arrangement;
        let (device, [_, width]) = (rows.device(), rows.dims());
        let slots = indices(arrangement.slots.iter().copied(), &device);
        let rows = copied(rows, self.context.tensor()).local();
        let block = Tensor::zeros([experts * height, width], (&device, rows.dtype()));
        let block = block.select_assign(0, slots.clone(), rows, IndexingUpdateOp::Add);
        let block = self.networks(block.reshape([experts, height, width]));
        let rows = block.reshape([experts * height, width]).select(0, slots);
        Partial::from_local(rows, self.context.tensor()).all_reduce()
    }

    /// The networks themselves. The output is a partial sum over the tensor axis.
    ///
    /// # Shapes
    ///
    /// - x: `[local experts, rows, d_model]`
    /// - output: `[local experts, rows, d_model]`
    fn networks(&self, x: Tensor<3>) -> Tensor<3> {
        let hidden = self.activation.forward(x.clone().matmul(self.input.val()));
        let hidden = match &self.gate {
            Some(gate) => hidden * x.matmul(gate.val()),
            None => hidden,
        };
        hidden.matmul(self.output.val())
    }
}
