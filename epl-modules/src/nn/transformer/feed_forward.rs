//! The feed-forward network of a transformer, with its hidden features split over the tensor axis.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_comm::{Split, copied};
use epl_core::Place;

use crate::dropout::{Dropout, DropoutConfig};
use crate::invalid::refuse;
use crate::linear::{LinearCut, default_initializer};
use crate::nn::activation::{Activation, ActivationConfig};
use crate::nn::linear::{Linear, LinearConfig};
use crate::placement::{self, REPLICATED};

/// Configuration to create a [`PositionWiseFeedForward`] layer using the
/// [init function](PositionWiseFeedForwardConfig::init).
#[derive(Config, Debug)]
pub struct PositionWiseFeedForwardConfig {
    /// The size of the input and output features.
    pub d_model: usize,
    /// The size of the hidden features, over all ranks.
    pub d_ff: usize,
    /// The dropout probability of the hidden features. Default: 0.1
    #[config(default = 0.1)]
    pub dropout: f64,
    /// How the parameters get their first values. Default: as Burn's
    #[config(default = "default_initializer()")]
    pub initializer: Initializer,
    /// The function between the two linear layers. Default: GELU
    #[config(default = "ActivationConfig::Gelu")]
    pub activation: ActivationConfig,
}

/// Burn's `PositionWiseFeedForward`, of which every rank of the tensor axis holds some hidden features.
///
/// `FFN(x) = f(x W1 + b1) W2 + b2`. Should be created with [`PositionWiseFeedForwardConfig`].
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::nn::transformer::PositionWiseFeedForwardConfig;
///
/// testing::run((1, 2, 1), |epl| {
///     let network = PositionWiseFeedForwardConfig::new(8, 32).init(&epl.place().child("network"));
///     assert_eq!(network.linear_inner.weight.dims(), [8, 16]); // this rank's half of the hidden features
///     assert_eq!(network.forward(Tensor::<3>::ones([2, 5, 8], epl.place().device())).dims(), [2, 5, 8]); // one all-reduce
///     Ok(())
/// });
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct PositionWiseFeedForward {
    /// From `d_model` to `d_ff`, cut by columns.
    pub linear_inner: Linear,
    /// From `d_ff` to `d_model`, cut by rows.
    pub linear_outer: Linear,
    /// Dropout of the hidden features.
    pub dropout: Dropout,
    /// The function between the two; in no record, as in Burn's.
    #[module(skip)]
    pub activation: Activation,
}

impl PositionWiseFeedForwardConfig {
    /// Initializes a new [`PositionWiseFeedForward`] layer.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the activation has parameters: Burn's layer neither trains nor records them.
    pub fn init(&self, place: &Place) -> PositionWiseFeedForward {
        let place = &place.self_contained();
        if let ActivationConfig::PRelu(_) | ActivationConfig::SwiGlu(_) = &self.activation {
            refuse(format!(
                "{}: parameters of an activation inside a feed-forward network are neither trained nor recorded; choose one \
                 without parameters, or write the network with a layer of its own for it",
                place.path()
            ));
        }
        let linear = |name: &str, (d_input, d_output), cut| {
            let config = LinearConfig::new(d_input, d_output).with_initializer(self.initializer.clone());
            config.init_cut(cut, &place.child(name))
        };
        PositionWiseFeedForward {
            linear_inner: linear("linear_inner", (self.d_model, self.d_ff), LinearCut::Column),
            linear_outer: linear("linear_outer", (self.d_ff, self.d_model), LinearCut::Row),
            dropout: DropoutConfig::new(self.dropout).init(place),
            activation: self.activation.init(place),
        }
    }
}

impl PositionWiseFeedForward {
    /// Applies the network.
    ///
    /// # Shapes
    ///
    /// - input: `[batch_size, ..., d_model]`
    /// - output: `[batch_size, ..., d_model]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the last dim is another, or a peer fails.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (inner, outer) = (&self.linear_inner, &self.linear_outer);
        if inner.cut().is_none() {
            let hidden = self.activation.forward(inner.forward(input));
            return outer.forward(self.dropout.forward(hidden));
        }
        let group = inner.context().tensor();
        let hidden = inner.columns(copied(input, group));
        let range = hidden.range();
        let hidden = self.dropout.forward_split(self.activation.forward(hidden.local()), D - 1, range.start);
        outer.rows(Split::from_local(hidden, D - 1, inner.sizes()[1], group))
    }
}

impl ModuleDisplay for PositionWiseFeedForward {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_model, d_ff] = self.linear_inner.sizes();
        let placement = match self.linear_inner.cut() {
            Some(_) => placement::split(self.linear_inner.context().tensor(), "feature", d_ff),
            None => REPLICATED.to_string(),
        };
        content
            .add("d_model", &d_model)
            .add("d_ff", &d_ff)
            .add("prob", &self.dropout.prob)
            .add("placement", placement.as_str())
            .optional()
    }
}
