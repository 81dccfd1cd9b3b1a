//! What the user says about a layer of a transformer.

use burn::config::Config;
use burn::nn::Initializer;
use epl_core::Place;

use super::frame::NormOrder;
use crate::activation::Activation;
use crate::attention::{MultiHeadAttentionConfig, RotaryConfig};
use crate::mlp::ParallelMlpConfig;
use crate::moe::{Balance, Capacity, Gate, MoeConfig};
use crate::norm::{Norm, NormConfig, NormKind};

/// Configuration to create a [`TransformerLayer`](super::TransformerLayer) using the
/// [init function](TransformerLayerConfig::init).
///
/// | | norm order | norm | linear bias | activation | gated | inner dropout | attention |
/// |---|---|---|---|---|---|---|---|
/// | BERT | post | LayerNorm | yes | GELU | no | no | |
/// | GPT-2 | pre | LayerNorm | yes | GELU by tanh | no | no | |
/// | T5, T5 1.1 | pre | RMSNorm | no | ReLU, GELU by tanh | no, yes | yes | not scaled |
/// | Llama | pre | RMSNorm | no | SiLU | yes | no | rotary, grouped queries |
/// | Qwen3 | pre | RMSNorm | no | SiLU | yes | no | rotary, grouped queries, norms of queries and keys |
/// | Gemma 2 | sandwich | RMSNorm, gamma around zero | no | GELU by tanh | yes | no | rotary, grouped queries, softcap, a window in every other layer |
/// | Mixtral, Qwen3-MoE | as Llama, Qwen3, with experts | | | | | | |
/// | Swin | pre | LayerNorm | yes | GELU | no | no | in windows |
/// | Swin V2 | post, before the residual | LayerNorm | yes | GELU | no | no | in windows, by cosines, no bias of keys |
///
/// ```
/// # use burn::module::Module;
/// # use epl_core::testing;
/// use epl_modules::{Activation, NormKind, RotaryConfig, TransformerLayerConfig};
///
/// testing::run((1, 1, 1), |epl| {
///     let llama = TransformerLayerConfig::new(32, 8, 64)
///         .with_norm(NormKind::RmsNorm)
///         .with_bias(false)
///         .with_activation(Activation::Silu)
///         .with_gated(true)
///         .with_rotary(Some(RotaryConfig::new()))
///         .with_n_kv_heads(Some(2));
///     assert_eq!(llama.init(epl.place()).num_params(), 32 * (32 + 8 + 8 + 32) + 3 * 32 * 64 + 2 * 32);
/// #     Ok(())
/// # });
/// ```
#[derive(Config, Debug)]
pub struct TransformerLayerConfig {
    /// The size of the input and output features.
    pub d_model: usize,
    /// The number of heads, over all ranks.
    pub n_heads: usize,
    /// The size of the hidden features of the feed-forward network, or of each expert, over all ranks.
    pub d_ff: usize,
    /// Where a part's norm stands. Default: before it
    #[config(default = "NormOrder::Pre")]
    pub norm_order: NormOrder,
    /// The formula of the norms. Default: LayerNorm
    #[config(default = "NormKind::LayerNorm")]
    pub norm: NormKind,
    /// A value required for numerical stability of the norms. Default: 1e-5
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// Whether all norms have a [zero-centered gamma](NormConfig::zero_centered_gamma). Default: false
    #[config(default = false)]
    pub zero_centered_gamma: bool,
    /// Whether the layer also attends to a memory, as a decoder's. Default: false
    #[config(default = false)]
    pub cross_attention: bool,
    /// The number of heads of keys and values, over all ranks. Default: `n_heads`
    pub n_kv_heads: Option<usize>,
    /// The size of each head. Default: `d_model / n_heads`
    pub head_dim: Option<usize>,
    /// How queries and keys of self-attention are turned by their positions. Default: not at all
    pub rotary: Option<RotaryConfig>,
    /// Whether each head's query and key are normalised, with the epsilon of the norms. Default: false
    #[config(default = false)]
    pub qk_norm: bool,
    /// What scores are multiplied by; T5 has 1. Default: `1 / sqrt(head_dim)`
    pub scale: Option<f64>,
    /// Whether scores are cosines with a learned scale: see [`MultiHeadAttentionConfig::cosine`]. Default: false
    #[config(default = false)]
    pub cosine: bool,
    /// Whether self-attention gets a bias on its scores with each input: see [`MultiHeadAttentionConfig::score_bias`]. Default: false
    #[config(default = false)]
    pub score_bias: bool,
    /// The limit that scores come near and do not pass: see [`softcap()`](crate::softcap()). Default: none
    pub attention_softcap: Option<f64>,
    /// How many positions a query of self-attention sees, its own the last of them; the input must be causal. Default: all
    pub window: Option<usize>,
    /// The function inside the feed-forward network, or inside the experts. Default: GELU
    #[config(default = "Activation::Gelu")]
    pub activation: Activation,
    /// Whether the activation is multiplied by a second product of the input. Default: false
    #[config(default = false)]
    pub gated: bool,
    /// Whether the linear layers of attention and of a dense network have a bias; experts have none. Default: true
    #[config(default = true)]
    pub bias: bool,
    /// Whether those of attention have one, where that differs from the dense network. Default: `bias`
    pub attention_bias: Option<bool>,
    /// Whether that of the keys has one, where it differs from the rest of attention. Default: as they
    pub key_bias: Option<bool>,
    /// The dropout probability of what every part adds to the hidden states. Default: 0.1
    #[config(default = 0.1)]
    pub dropout: f64,
    /// The probability with which a sample goes without what a part adds. Default: 0
    #[config(default = 0.0)]
    pub drop_path: f64,
    /// The dropout probability of the attention weights. Default: 0.1
    #[config(default = 0.1)]
    pub attention_dropout: f64,
    /// The dropout probability inside the feed-forward network, or inside the experts. Default: 0
    #[config(default = 0.0)]
    pub activation_dropout: f64,
    /// Experts in place of the dense feed-forward network. Default: none
    pub experts: Option<LayerExpertsConfig>,
    /// How all weights get their first values. Default: as the layers inside do by themselves
    pub initializer: Option<Initializer>,
    /// Another initializer for the query layers.
    pub query_initializer: Option<Initializer>,
    /// Another initializer for the last product of every part.
    pub output_initializer: Option<Initializer>,
    /// Another initializer for the biases.
    pub bias_initializer: Option<Initializer>,
    /// Another initializer for the `gamma` of the norms behind the parts ([`NormOrder::PostResidual`], [`NormOrder::Sandwich`]): with
    /// zeros where that is the scale, each part begins by adding nothing.
    pub output_norm_initializer: Option<Initializer>,
}

/// What experts of a layer have besides the shape of its feed-forward network; see [`MoeConfig`].
#[derive(Config, Debug)]
pub struct LayerExpertsConfig {
    /// How many experts there are. The size of the expert axis must divide it.
    pub experts: usize,
    /// How many experts a token is sent to. Default: one
    #[config(default = "Gate::Switch")]
    pub gate: Gate,
    /// How many tokens of a sequence an expert takes.
    #[config(default = "Capacity::Factor { train: 1.25, eval: 2.0 }")]
    pub capacity: Capacity,
    /// Over which tokens the load-balancing loss takes its means. Default: over each sequence
    #[config(default = "Balance::Sequences")]
    pub balance: Balance,
    /// How far after each step the bias of an expert moves that is asked too little or too often. Default: there is none
    pub bias_rate: Option<f64>,
    /// The width of a network beside the experts that all tokens are sent to. Default: none
    pub shared: Option<usize>,
    /// While training, the router reads its input times noise in `[1 - jitter, 1 + jitter)`. Default: 0
    #[config(default = 0.0)]
    pub jitter: f64,
    /// Whether padding is routed too. Default: false
    #[config(default = false)]
    pub route_padding: bool,
}

impl TransformerLayerConfig {
    pub(super) fn part_norm(&self) -> NormConfig {
        NormConfig::new(self.d_model)
            .with_kind(self.norm)
            .with_epsilon(self.epsilon)
            .with_zero_centered_gamma(self.zero_centered_gamma)
            .with_gamma_initializer(
                self.output_norm_initializer.clone().filter(|_| self.norm_order == NormOrder::PostResidual),
            )
    }

    /// The second norm of a part, if it has one.
    pub(super) fn output_norm(&self, part: &Place) -> Option<Norm> {
        let norm = || self.part_norm().with_gamma_initializer(self.output_norm_initializer.clone());
        (self.norm_order == NormOrder::Sandwich).then(|| norm().init(&part.child("output_norm")))
    }

    /// As attention to a memory has it, whose positions are not those of the layer.
    pub(super) fn to_memory(&self) -> Self {
        Self { rotary: None, window: None, score_bias: false, ..self.clone() }
    }

    pub(super) fn heads(&self) -> MultiHeadAttentionConfig {
        let config = MultiHeadAttentionConfig::new(self.d_model, self.n_heads)
            .with_n_kv_heads(self.n_kv_heads)
            .with_head_dim(self.head_dim)
            .with_rotary(self.rotary)
            .with_qk_norm(self.qk_norm.then_some(self.epsilon))
            .with_zero_centered_gamma(self.zero_centered_gamma)
            .with_dropout(self.attention_dropout)
            .with_bias(self.attention_bias.unwrap_or(self.bias))
            .with_key_bias(self.key_bias)
            .with_cosine(self.cosine)
            .with_score_bias(self.score_bias)
            .with_scale(self.scale)
            .with_softcap(self.attention_softcap)
            .with_window(self.window)
            .with_query_initializer(self.query_initializer.clone())
            .with_output_initializer(self.output_initializer.clone())
            .with_bias_initializer(self.bias_initializer.clone());
        match &self.initializer {
            Some(initializer) => config.with_initializer(initializer.clone()),
            None => config,
        }
    }

    pub(super) fn dense(&self) -> ParallelMlpConfig {
        let config = ParallelMlpConfig::new(self.d_model, self.d_ff)
            .with_activation(self.activation)
            .with_gated(self.gated)
            .with_bias(self.bias)
            .with_dropout(self.activation_dropout)
            .with_output_initializer(self.output_initializer.clone())
            .with_bias_initializer(self.bias_initializer.clone());
        match &self.initializer {
            Some(initializer) => config.with_initializer(initializer.clone()),
            None => config,
        }
    }

    pub(super) fn moe(&self, experts: &LayerExpertsConfig) -> MoeConfig {
        MoeConfig::new(self.d_model, self.d_ff, experts.experts)
            .with_gate(experts.gate)
            .with_capacity(experts.capacity)
            .with_balance(experts.balance)
            .with_bias_rate(experts.bias_rate)
            .with_shared(experts.shared)
            .with_jitter(experts.jitter)
            .with_route_padding(experts.route_padding)
            .with_activation(self.activation)
            .with_gated(self.gated)
            .with_dropout(self.activation_dropout)
            .with_router_initializer(self.initializer.clone())
            .with_initializer(self.initializer.clone())
            .with_output_initializer(self.output_initializer.clone().or_else(|| self.initializer.clone()))
    }
}
