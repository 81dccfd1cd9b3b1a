//! The experts of one rank: feed-forward networks of one shape.

use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::Initializer;
use burn::tensor::{Tensor, bf16, f16};
use epl_comm::{Partial, copied, shard_range};
use epl_core::model::precision::cast;
use epl_core::topology::cluster::Axis;
use epl_core::{Context, Place};

use super::arrangement::Arrangement;
use super::config::MoeConfig;
use super::decision::Decision;
use super::dispatch::Dispatch;
use super::grouped::grouped_product;
use super::moving::{moved, numbers, or_zeros};
use super::router::Routed;
use crate::activation::Activation;
use crate::dropout::{Dropout, DropoutConfig, Mask};
use crate::embedding::rows_at;
use crate::host::{ProductType, product_type};
use crate::linear::count_affine;
use crate::placement;

/// The experts of this rank.
///
/// ```text
/// plain   dropout(f(x · input)) · output
/// gated   dropout(f(x · input) ⊙ (x · gate)) · output
/// ```
///
/// Dim 0 is cut over the expert axis, `d_ff` over the tensor axis: each tensor rank computes a partial sum.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::MoeConfig;
///
/// // Two replicas of two tensor ranks: each has half of the four experts, and of these half of the hidden features.
/// testing::run((2, 2, 2), |epl| {
///     let experts = MoeConfig::new(6, 16, 4).with_gated(true).init(&epl.place().child("moe")).experts;
///     assert_eq!((experts.input.dims(), experts.output.dims()), ([2, 6, 8], [2, 8, 6]));
///     assert_eq!(experts.gate.unwrap().dims(), [2, 6, 8]);
///     Ok(())
/// });
/// ```
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
        let rows = cast(rows, self.input.val().dtype());
        let rows = copied(rows, self.context.tensor()).local();
        for weight in [Some(&self.input), self.gate.as_ref(), Some(&self.output)].into_iter().flatten() {
            count_affine(&self.context, weight.id, rows.dims(), self.d_ff);
        }
        let rows = match self.product_type() {
            Some(kind) => self.sorted(rows, arrangement, mask, kind),
            None => self.padded(rows, arrangement, mask),
        };
        Partial::from_local(rows, self.context.tensor()).all_reduce()
    }

    /// The type of the products, where each expert runs on its own; else all are padded to the same number of rows.
    fn product_type(&self) -> Option<ProductType> {
        product_type(&self.input.val())
    }

    /// Each expert on its own rows, in host memory.
    fn sorted(&self, rows: Tensor<2>, at: &Arrangement, mask: Option<Mask>, kind: ProductType) -> Tensor<2> {
        let (device, is_sorted) = (rows.device(), at.is_sorted());
        let select = |rows: Tensor<2>, by: Vec<usize>| rows_at(rows, numbers(by, &device));
        let rows = if is_sorted { rows } else { select(rows, at.rows_by_place()) };
        let rows = self.network(rows, mask, |x, weight| match kind {
            ProductType::F16 => grouped_product::<f16>(x, weight, &at.counts),
            ProductType::Bf16 => grouped_product::<bf16>(x, weight, &at.counts),
            ProductType::F32 => grouped_product::<f32>(x, weight, &at.counts),
            ProductType::F64 => grouped_product::<f64>(x, weight, &at.counts),
        });
        if is_sorted { rows } else { select(rows, at.places.clone()) }
    }

    /// All experts as batched products, each on as many rows as that which has the most.
    fn padded(&self, rows: Tensor<2>, at: &Arrangement, mask: Option<Mask>) -> Tensor<2> {
        let (experts, height) = (at.counts.len(), at.height());
        let (device, [_, width]) = (rows.device(), rows.dims());
        let network = |block: Tensor<2>| {
            let block = self.network(block.reshape([experts, height, width]), mask, Tensor::matmul);
            block.reshape([experts * height, width])
        };
        if at.is_sorted() && at.counts.iter().all(|count| *count == height) {
            return network(rows);
        }
        let (rows_by_slot, slots) = (numbers(at.rows_by_slot(), &device), numbers(at.slots(), &device));
        let block = network(moved(rows, rows_by_slot.clone(), vec![slots.clone()]));
        moved(block, slots, vec![rows_by_slot])
    }

    /// The dropout mask of what the networks get, in training. Collective over the expert axis if there is one.
    ///
    /// What is dropped belongs to (sample, token, expert, feature), so the token's rank names the random numbers of
    /// each row, and the names go where the rows go.
    pub(super) fn mask(
        &self,
        [batch, length]: [usize; 2],
        routed: &Routed,
        decision: &Decision,
        dispatch: &Dispatch,
    ) -> Option<Mask> {
        let (noise, samples) = self.dropout.next_call(batch)?;
        let of_token = |token: usize| noise.sample(samples[token / length]).at(token % length);
        let received = dispatch.send_numbers(decision.names(routed, of_token));
        let (at, device) = (&dispatch.arrangement, received.device());
        let tensor = self.context.tensor();
        let first_feature = shard_range(self.d_ff, tensor.size(), tensor.rank()).start;
        let by = |rows: Vec<usize>| or_zeros(received.clone(), numbers(rows, &device));
        Some(match self.product_type() {
            None => self.dropout.mask_of_rows::<3>(by(at.rows_by_slot()), first_feature),
            Some(_) => self.dropout.mask_of_rows::<2>(by(at.rows_by_place()), first_feature),
        })
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
    /// - x: `[rows, d_model]` or `[local experts, rows, d_model]`, as `product` multiplies it with `[local experts, d_model, d_ff]`
    /// - output: as x
    fn network<const D: usize>(
        &self,
        x: Tensor<D>,
        mask: Option<Mask>,
        product: impl Fn(Tensor<D>, Tensor<3>) -> Tensor<D>,
    ) -> Tensor<D> {
        let hidden = self.activation.forward(product(x.clone(), self.input.val()));
        let hidden = match &self.gate {
            Some(gate) => hidden * product(x, gate.val()),
            None => hidden,
        };
        let hidden = match mask {
            Some(mask) => mask.forward(hidden),
            None => hidden,
        };
        product(hidden, self.output.val())
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
