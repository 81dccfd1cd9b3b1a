//! The experts of one rank: feed-forward networks of one shape, computed as one batched product.

use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::Initializer;
use burn::tensor::{IndexingUpdateOp, Tensor};
use epl_comm::{Partial, copied, shard_range};
use epl_core::topology::cluster::Axis;
use epl_core::{Context, Place};

use super::arrangement::Arrangement;
use super::config::MoeConfig;
use super::dispatch::{Dispatch, indices};
use super::routing::Routing;
use crate::activation::Activation;
use crate::dropout::{Dropout, DropoutConfig, Mask};
use crate::linear::count_affine;
use crate::placement;
use crate::random::Row;

/// The experts of this rank.
///
/// ```text
/// plain   dropout(f(x · input)) · output
/// gated   dropout(f(x · input) ⊙ (x · gate)) · output
/// ```
///
/// Dim 0 is cut over the expert axis, `d_ff` over the tensor axis: each tensor rank computes a partial sum.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Experts {
    /// Shape `[experts, d_model, d_ff]`; its result is activated. In Hugging Face's names `wi`, or `wi_0` of a
    /// gated network, transposed.
    pub input: Param<Tensor<3>>,
    /// Shape `[experts, d_model, d_ff]`; multiplies the activation. In Hugging Face's names `wi_1`, transposed.
    pub gate: Option<Param<Tensor<3>>>,
    /// Shape `[experts, d_ff, d_model]`. In Hugging Face's names `wo`, transposed.
    pub output: Param<Tensor<3>>,
    /// Dropout of the hidden features.
    pub dropout: Dropout,
    /// How many experts there are, over all ranks.
    pub experts: usize,
    /// The width of the tokens.
    pub d_model: usize,
    /// The width inside an expert, over all ranks.
    pub d_ff: usize,
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
            dropout: DropoutConfig::new(config.dropout).init(place),
            experts,
            d_model,
            d_ff,
            activation: config.activation,
            context: place.context().clone(),
        }
    }

    /// Sends every row through its expert, in the type of the experts.
    ///
    /// # Shapes
    ///
    /// - rows: `[rows of the arrangement, d_model]`
    /// - output: `[rows of the arrangement, d_model]`
    pub(super) fn forward(&self, rows: Tensor<2>, arrangement: &Arrangement, mask: Option<Mask>) -> Tensor<2> {
        let Arrangement { experts, height, .. } = *arrangement;
        let rows = rows.cast(self.input.val().dtype());
        let (device, [_, width]) = (rows.device(), rows.dims());
        let slots = indices(arrangement.slots.iter().copied(), &device);
        let rows = copied(rows, self.context.tensor()).local();
        let block = Tensor::zeros([experts * height, width], (&device, rows.dtype()));
        let block = block.select_assign(0, slots.clone(), rows, IndexingUpdateOp::Add);
        let block = self.networks(block.reshape([experts, height, width]), mask);
        let rows = block.reshape([experts * height, width]).select(0, slots);
        Partial::from_local(rows, self.context.tensor()).all_reduce()
    }

    /// The dropout mask of the block, in training. Collective over the expert axis if there is one.
    ///
    /// What is dropped belongs to (sample, token, expert, feature), so the token's rank names the random numbers of
    /// each row, and the names go where the rows go.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, seq, d_model]`
    pub(super) fn mask(&self, x: &Tensor<3>, routing: &Routing, dispatch: &Dispatch) -> Option<Mask> {
        let [batch, length, _] = x.dims();
        let (noise, samples) = self.dropout.next_call(batch)?;
        let rows = routing.assignments.iter().map(|assignment| {
            let (sample, token) = (samples[assignment.token / length], assignment.token % length);
            noise.sample(sample).at(token).at(assignment.expert)
        });
        let received = dispatch.send_names(rows, &x.device());
        let Arrangement { experts, height, slots } = &dispatch.arrangement;
        let mut block = vec![Row::default(); experts * height];
        slots.iter().zip(received).for_each(|(slot, row)| block[*slot] = row);
        let tensor = self.context.tensor();
        let first_feature = shard_range(self.d_ff, tensor.size(), tensor.rank()).start;
        Some(self.dropout.mask_of_rows::<3>(block, first_feature))
    }

    /// Where the parameters are.
    pub(super) fn placement(&self) -> String {
        let experts = placement::split(self.context.expert(), "expert", self.experts);
        let features = placement::split(self.context.tensor(), "hidden feature", self.d_ff);
        format!("{experts}; {features}")
    }

    /// The networks themselves. The output is a partial sum over the tensor axis.
    ///
    /// # Shapes
    ///
    /// - x: `[local experts, rows, d_model]`
    /// - output: `[local experts, rows, d_model]`
    fn networks(&self, x: Tensor<3>, mask: Option<Mask>) -> Tensor<3> {
        for weight in [Some(&self.input), self.gate.as_ref(), Some(&self.output)].into_iter().flatten() {
            count_affine(&self.context, weight.id, x.dims(), self.d_ff);
        }
        let hidden = self.activation.forward(x.clone().matmul(self.input.val()));
        let hidden = match &self.gate {
            Some(gate) => hidden * x.matmul(gate.val()),
            None => hidden,
        };
        let hidden = match mask {
            Some(mask) => mask.forward(hidden),
            None => hidden,
        };
        hidden.matmul(self.output.val())
    }
}

impl ModuleDisplay for Experts {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("experts", &self.experts)
            .add("d_model", &self.d_model)
            .add("d_ff", &self.d_ff)
            .add_debug_attribute("activation", &self.activation)
            .add("gated", &self.gate.is_some())
            .add("dropout", &self.dropout.prob)
            .add("placement", self.placement().as_str())
            .optional()
    }
}
