//! The layer: route, dispatch, compute, combine.

use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::tensor::{Bool, Tensor};
use epl_core::offload::is_host;
use epl_core::{Context, Place};

use super::balance::{RouterLosses, asked};
use super::bias::BalanceBias;
use super::config::MoeConfig;
use super::decision::Decision;
use super::dispatch::Dispatch;
use super::expert::Experts;
use super::gate::Balance;
use super::mask::TokenMask;
use super::router::{Routed, Router};
use super::routing::{Rules, route};
use super::slots::{Slots, Tally};
use crate::invalid::refuse;
use crate::mlp::ParallelMlp;
use crate::placement::check_enough;

/// A mixture of experts in place of a feed-forward network.
///
/// A router sends every token to one expert, or several, of [`MoeConfig::experts`] feed-forward networks, as long as
/// they have room. One sequence is one group: capacity and dropping never look beyond it. A token that no expert
/// takes comes out as zeros, so that the residual connection around the layer passes it through, as Switch
/// Transformers has it. (Hugging Face differs: its version 4 let such a token pass multiplied by its probability,
/// its version 5 counts positions along a dim of size one, so that no expert is ever full.)
///
/// The experts are divided over the expert axis and exchange rows with all-to-all; inside, they are divided over
/// the tensor axis. The router is whole everywhere.
///
/// Two metrics are summed over the decisions of each step: `PATH.tokens_per_expert`, which counts what each expert took, and
/// `PATH.dropped_tokens`, which counts choices that found their expert full.
///
/// ```
/// use burn::tensor::Tensor;
/// use epl_core::testing;
/// use epl_modules::{Gate, MoeConfig};
/// # use epl_core::Pass;
///
/// // Two replicas, each with a sequence of its own and two of the four experts.
/// testing::run((2, 1, 2), |epl| {
///     let moe = MoeConfig::new(8, 16, 4).with_gate(Gate::Top2).init(&epl.place().child("moe"));
///     let x = Tensor::<3>::ones([1, 6, 8], epl.place().device());
/// #   let sample = epl.context().data().rank() as u64;
/// #   epl.context().begin(Pass { step: 0, training: true, samples: [sample].into(), empty: false });
///     let (hidden, losses) = moe.forward(x, None).into_parts();
///     assert_eq!(hidden.dims(), [1, 6, 8]);
///     // Terms of the loss, of which each weighs the number of sequences.
///     assert_eq!((losses.auxiliary.dims(), losses.z.dims()), ([1], [1]));
///     Ok(())
/// });
/// ```
///
/// Should be created with [`MoeConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Moe {
    /// The router.
    pub router: Router,
    /// This rank's experts.
    pub experts: Experts,
    /// The network that all tokens are sent to.
    pub shared: Option<ParallelMlp>,
    /// What balances experts without a loss.
    pub bias: Option<BalanceBias>,
    #[module(skip)]
    settings: Settings,
    #[module(skip)]
    context: Context,
}

/// What the layer must know besides its parameters.
#[derive(Clone, Debug)]
struct Settings {
    config: MoeConfig,
    tokens_metric: String,
    dropped_metric: String,
}

/// What a mixture of experts gives back.
#[derive(Clone, Debug)]
pub struct MoeOutput {
    /// The tokens after their experts. Shape `[batch, seq, d_model]`.
    pub hidden: Tensor<3>,
    /// The load-balancing loss, summed over sequences. Its weight is the number of sequences. Shape `[1]`; with
    /// [`Balance::Batch`](super::Balance::Batch) as [`RouterLosses::auxiliary`].
    pub auxiliary: Tensor<1>,
    /// The z loss, summed over sequences. Its weight is the number of sequences. Shape `[1]`.
    pub z: Tensor<1>,
}

impl MoeOutput {
    /// The tokens, and the losses of the router.
    pub fn into_parts(self) -> (Tensor<3>, RouterLosses) {
        (self.hidden, RouterLosses { auxiliary: self.auxiliary, z: self.z })
    }
}

impl MoeConfig {
    /// Initializes a new [`Moe`] layer.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the sizes, the gate or the capacity make no sense, or do not fit the mesh.
    pub fn init(&self, place: &Place) -> Moe {
        // Its dispatch is its bridge: in a `split` scope too, each rank runs rows of its own.
        let place = &place.on_mesh().self_contained();
        if let Some(fault) = self.fault(place.context()) {
            refuse(format!("{}: {fault}", place.path()));
        }
        check_enough(place.context().tensor(), place.path(), "hidden feature", self.d_ff);
        let settings = Settings {
            config: self.clone(),
            tokens_metric: place.child("tokens_per_expert").path().to_string(),
            dropped_metric: place.child("dropped_tokens").path().to_string(),
        };
        if self.balance == Balance::Batch {
            place.declare_over_micro_batch("the balance of experts");
        }
        place.context().declare_metric(&settings.tokens_metric, self.experts);
        place.context().declare_metric(&settings.dropped_metric, 1);
        Moe {
            router: Router::new(self, &place.child("router")),
            experts: Experts::new(self, &place.child("experts")),
            shared: self.shared.map(|width| self.shared_network(width).init(&place.child("shared"))),
            bias: self.bias_rate.map(|rate| BalanceBias::new(self.experts, rate, &place.child("bias"))),
            settings,
            context: place.context().clone(),
        }
    }
}

impl Moe {
    /// Applies the layer, waiting for the device to read `padding`.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, seq, d_model]`
    /// - padding: `[batch, seq]`, true where the token is padding
    /// - hidden: `[batch, seq, d_model]`
    pub fn forward(&self, x: Tensor<3>, padding: Option<Tensor<2, Bool>>) -> MoeOutput {
        let [batch, length, _] = x.dims();
        let mask = padding.map_or_else(|| TokenMask::all(batch, length), TokenMask::from_padding);
        self.forward_masked(x, &mask)
    }

    /// Applies the layer to a batch whose real tokens are known on the host.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, seq, d_model]`
    /// - hidden: `[batch, seq, d_model]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the mask is that of another batch.
    pub fn forward_masked(&self, x: Tensor<3>, mask: &TokenMask) -> MoeOutput {
        let routed = self.router.forward(x.clone());
        let decision = self.decide(x.dims(), &routed, mask);
        self.forward_routed(x, &routed, &decision)
    }

    /// Applies a routing decision, made now or earlier: what a recomputed segment replays. Nothing is counted again.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, seq, d_model]`
    /// - hidden: `[batch, seq, d_model]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the decision is that of another batch, or a peer fails.
    pub fn forward_routed(&self, x: Tensor<3>, routed: &Routed, decision: &Decision) -> MoeOutput {
        let ([batch, length, width], dtype) = (x.dims(), x.dtype());
        let config = &self.settings.config;
        check_mask(decision.mask(), batch, length);
        let dispatch = Dispatch::new(&decision.counts(config.experts), self.context.expert());
        let mask = self.experts.mask([batch, length], routed, decision, &dispatch);
        let shared = self.shared.as_ref().map(|shared| shared.forward(x.clone()).cast(dtype));
        let rows = dispatch.send(decision.rows_of(x.reshape([batch * length, width])));
        let rows = self.experts.forward(rows, &dispatch.arrangement, mask);
        let rows = dispatch.send_back(rows);
        let hidden = decision.combine(rows, routed, config.gate);
        let RouterLosses { auxiliary, z } = decision.losses(routed, config.balance);
        let hidden = hidden.reshape([batch, length, width]).cast(dtype);
        let hidden = shared.map_or(hidden.clone(), |shared| hidden + shared);
        MoeOutput { hidden, auxiliary, z }
    }

    /// Decides where the tokens go, and counts it in the metrics. On a device it is decided there where the experts' room, which
    /// [`MoeConfig::capacity`] gives, is at most twice what the tokens ask for, or 4,096 rows; else, as with
    /// [`Capacity::Unlimited`](super::Capacity::Unlimited) and many tokens, the host decides, and waits for the device.
    ///
    /// Collective over the tensor axis, whose ranks take the decision of the first: they compute parts of the same
    /// tokens.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the mask is that of another batch, or a peer fails.
    pub fn decide(&self, dims: [usize; 3], routed: &Routed, mask: &TokenMask) -> Decision {
        let (mask, rules) = self.to_route(dims, mask);
        match !is_host(&routed.probabilities.device()) && Slots::pay(&mask, &rules) {
            true => self.decide_there(routed, mask, &rules),
            false => self.decide_here(routed, &mask, &rules),
        }
    }

    /// As [`decide`](Self::decide), always where the probabilities are.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn decide_on_device(&self, dims: [usize; 3], routed: &Routed, mask: &TokenMask) -> Decision {
        let (mask, rules) = self.to_route(dims, mask);
        self.decide_there(routed, mask, &rules)
    }

    /// The tokens that are routed, and how.
    fn to_route(&self, [batch, length, _]: [usize; 3], mask: &TokenMask) -> (TokenMask, Rules) {
        check_mask(mask, batch, length);
        let MoeConfig { experts, gate, capacity, route_padding, .. } = self.settings.config;
        let mask = if route_padding { TokenMask::all(batch, length) } else { mask.clone() };
        (mask, Rules { experts, gate, capacity, training: self.context.is_training() })
    }

    /// What tokens choose by: probabilities, and the bias.
    fn scores(&self, routed: &Routed) -> Tensor<2> {
        let probabilities = routed.agree(&self.context);
        match &self.bias {
            Some(bias) => bias.scores(probabilities),
            None => probabilities,
        }
    }

    fn decide_there(&self, routed: &Routed, mask: TokenMask, rules: &Rules) -> Decision {
        let scores = self.scores(routed);
        let (slots, Tally { taken, dropped }) = Slots::new(scores.clone(), mask, rules);
        if let Some(bias) = &self.bias {
            bias.count(slots.asked.clone(), &scores);
        }
        if rules.training {
            self.context.note_metric(&self.settings.tokens_metric, taken);
            self.context.note_metric(&self.settings.dropped_metric, dropped);
        }
        Decision::Slots(Box::new(slots))
    }

    fn decide_here(&self, routed: &Routed, mask: &TokenMask, rules: &Rules) -> Decision {
        let scores = self.scores(routed);
        let on_host: Vec<f64> = self.context.read(scores.clone()).iter().collect();
        let routing = route(&on_host, mask, rules);
        if let Some(bias) = &self.bias {
            bias.count(asked(&routing, &scores), &scores);
        }
        if rules.training {
            let counts: Vec<f64> = routing.counts(rules.experts).into_iter().map(|count| count as f64).collect();
            self.context.add_metric(&self.settings.tokens_metric, &counts);
            self.context.add_metric(&self.settings.dropped_metric, &[routing.dropped as f64]);
        }
        Decision::of_host(routing, routed, rules.gate)
    }
}

/// Refuses the mask of another batch.
fn check_mask(mask: &TokenMask, batch: usize, length: usize) {
    if (mask.as_slice().len(), mask.length()) != (batch * length, length) {
        refuse(format!(
            "the mask has {} tokens in sequences of {}, but the input has {batch} sequences of {length}: make it for \
             this batch",
            mask.as_slice().len(),
            mask.length()
        ));
    }
}

impl ModuleDisplay for Moe {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let MoeConfig { d_model, d_ff, experts, gate, capacity, balance, activation, gated, dropout, .. } =
            &self.settings.config;
        content
            .add("d_model", d_model)
            .add("d_ff", d_ff)
            .add("experts", experts)
            .add_debug_attribute("gate", gate)
            .add_debug_attribute("capacity", capacity)
            .add_debug_attribute("balance", balance)
            .add_debug_attribute("bias_rate", &self.settings.config.bias_rate)
            .add_debug_attribute("shared", &self.settings.config.shared)
            .add("route_padding", &self.settings.config.route_padding)
            .add_debug_attribute("activation", activation)
            .add("gated", gated)
            .add("dropout", dropout)
            .add("placement", self.experts.placement().as_str())
            .optional()
    }
}
