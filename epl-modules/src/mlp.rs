//! The feed-forward block of a transformer, split over the tensor axis.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_comm::{Copied, Split, copied};
use epl_core::{Context, Place};

use crate::activation::Activation;
use crate::dropout::{Dropout, DropoutConfig};
use crate::linear::{LinearCut, SplitLinear, SplitLinearConfig, default_initializer};
use crate::placement;

/// Configuration to create a [`ParallelMlp`] block using the [init function](ParallelMlpConfig::init).
#[derive(Config, Debug)]
pub struct ParallelMlpConfig {
    /// The size of the input and output features.
    pub d_model: usize,
    /// The size of the hidden features, over all ranks.
    pub d_ff: usize,
    /// The function between the two layers. Default: GELU
    #[config(default = "Activation::Gelu")]
    pub activation: Activation,
    /// Whether the activation is multiplied by a second linear layer. Default: false
    #[config(default = false)]
    pub gated: bool,
    /// Whether the linear layers have a bias. Default: true
    #[config(default = true)]
    pub bias: bool,
    /// The dropout probability of the hidden features. Default: 0.1
    #[config(default = 0.1)]
    pub dropout: f64,
    /// How the parameters get their first values. Default: as Burn's `Linear`
    #[config(default = "default_initializer()")]
    pub initializer: Initializer,
    /// Another initializer for the output layer.
    pub output_initializer: Option<Initializer>,
    /// Another initializer for the biases.
    pub bias_initializer: Option<Initializer>,
}

/// Two linear layers with an activation between them; the hidden features are split over the tensor axis.
///
/// Plain: `f(x A) B`, as in [Attention is all you need](https://arxiv.org/abs/1706.03762). Gated:
/// `(f(x A) * x G) B`, as in [GLU variants improve transformer](https://arxiv.org/abs/2002.05202) and T5 v1.1.
/// The first layers are cut by columns and share one all-reduce in backward, the last one is cut by rows.
///
/// ```
/// use burn::tensor::Tensor;
/// use epl_core::testing;
/// use epl_modules::{Activation, ParallelMlpConfig};
///
/// testing::run((1, 2, 1), |epl| {
///     let mlp = ParallelMlpConfig::new(8, 32).with_activation(Activation::Relu).init(&epl.place().child("mlp"));
///     assert_eq!(mlp.input.weight.dims(), [8, 16]); // this rank's half
///     assert_eq!(mlp.forward(Tensor::<2>::ones([4, 8], epl.place().device())).dims(), [4, 8]);
///     Ok(())
/// });
/// ```
///
/// Should be created with [`ParallelMlpConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct ParallelMlp {
    /// `[d_model, d_ff]`, cut by columns; its result is activated.
    pub input: SplitLinear,
    /// `[d_model, d_ff]`, cut by columns; multiplies the activation.
    pub gate: Option<SplitLinear>,
    /// `[d_ff, d_model]`, cut by rows.
    pub output: SplitLinear,
    /// Dropout of the hidden features.
    pub dropout: Dropout,
    /// The size of the input and output features.
    pub d_model: usize,
    /// The size of the hidden features, over all ranks.
    pub d_ff: usize,
    #[module(skip)]
    activation: Activation,
    #[module(skip)]
    context: Context,
}

impl ParallelMlpConfig {
    /// Initializes a new [`ParallelMlp`] block.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a rank would hold none of the hidden features.
    pub fn init(&self, place: &Place) -> ParallelMlp {
        let place = &place.self_contained();
        let linear = |name: &str, initializer: &Initializer, (d_input, d_output), cut| {
            SplitLinearConfig::new(d_input, d_output)
                .with_cut(cut)
                .with_bias(self.bias)
                .with_initializer(initializer.clone())
                .with_bias_initializer(self.bias_initializer.clone())
                .init(&place.child(name))
        };
        let (up, down) = ((self.d_model, self.d_ff), (self.d_ff, self.d_model));
        let last = self.output_initializer.as_ref().unwrap_or(&self.initializer);
        ParallelMlp {
            input: linear("input", &self.initializer, up, LinearCut::Column),
            gate: self.gated.then(|| linear("gate", &self.initializer, up, LinearCut::Column)),
            output: linear("output", last, down, LinearCut::Row),
            dropout: DropoutConfig::new(self.dropout).init(place),
            d_model: self.d_model,
            d_ff: self.d_ff,
            activation: self.activation,
            context: place.context().clone(),
        }
    }
}

impl ParallelMlp {
    /// Applies the block.
    ///
    /// # Shapes
    ///
    /// - input: `[batch_size, ..., d_model]`
    /// - output: `[batch_size, ..., d_model]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a peer fails.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let group = self.context.tensor();
        let input: Copied<D> = copied(input, group);
        let (hidden, gate) = match &self.gate {
            Some(gate) => {
                let [hidden, gate] = SplitLinear::forward_each([&self.input, gate], input.into());
                (hidden, Some(gate))
            }
            None => (self.input.forward(input), None),
        };
        let range = hidden.range();
        let hidden = self.activation.forward(hidden.local());
        let hidden = match gate {
            Some(gate) => hidden * gate.local(),
            None => hidden,
        };
        let hidden = self.dropout.forward_split(hidden, D - 1, range.start);
        self.output.forward(Split::from_local(hidden, D - 1, self.d_ff, group))
    }
}

impl ModuleDisplay for ParallelMlp {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_model", &self.d_model)
            .add("d_ff", &self.d_ff)
            .add_debug_attribute("activation", &self.activation)
            .add("gated", &self.gate.is_some())
            .add("dropout", &self.dropout.prob)
            .add("placement", placement::split(self.context.tensor(), "feature", self.d_ff).as_str())
            .optional()
    }
}
