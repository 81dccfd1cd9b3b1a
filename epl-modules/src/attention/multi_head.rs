//! Multi-head attention whose heads are split over the tensor axis.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_comm::{Copied, ProcessGroup, Split, shard_range};
use epl_core::model::precision::in_wide;
use epl_core::topology::cluster::Axis;
use epl_core::{Context, Place};

use super::cache::AttentionCache;
use super::checks::{check_batch, check_heads, check_kv_heads, check_scale, check_shapes, check_window};
use super::input::AttentionInput;
use super::rotary::{Angles, Rotary, RotaryConfig};
use super::scaled_dot_product::attend;
use super::weighing::{Sight, Weighing};
use crate::dropout::{Dropout, DropoutConfig};
use crate::invalid::{check_not_empty, refuse};
use crate::linear::{LinearCut, Operand, SplitLinear, SplitLinearConfig, default_initializer};
use crate::norm::{RmsNorm, RmsNormConfig};
use crate::placement;
use crate::softcap::Softcap;

/// Configuration to create a [`MultiHeadAttention`] layer using the [init function](MultiHeadAttentionConfig::init).
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::{AttentionInput, MultiHeadAttentionConfig, RotaryConfig};
///
/// testing::run((1, 2, 1), |epl| {
///     // As Llama has it: positions by rotation, no biases, and four heads of queries to each of keys and values.
///     let config = MultiHeadAttentionConfig::new(32, 8).with_n_kv_heads(Some(2)).with_bias(false);
///     let attention = config.with_rotary(Some(RotaryConfig::new())).init(&epl.place().child("attention"));
///     assert_eq!((attention.query.weight.dims(), attention.key.weight.dims()), ([32, 16], [32, 4])); // on each rank
///     let x = Tensor::<3>::ones([2, 5, 32], epl.place().device());
///     assert_eq!(attention.forward(AttentionInput::self_attention(x).causal()).dims(), [2, 5, 32]);
///     Ok(())
/// });
/// ```
#[derive(Config, Debug)]
pub struct MultiHeadAttentionConfig {
    /// The size of the input and output features.
    pub d_model: usize,
    /// The number of heads, over all ranks.
    pub n_heads: usize,
    /// The number of heads of keys and values, over all ranks, of which each is shared by as many heads of queries
    /// ([arXiv:2305.13245](https://arxiv.org/abs/2305.13245)). Default: `n_heads`
    pub n_kv_heads: Option<usize>,
    /// The size of each head. Default: `d_model / n_heads`
    pub head_dim: Option<usize>,
    /// How queries and keys of a self-attention are turned by their positions. Default: not at all
    pub rotary: Option<RotaryConfig>,
    /// The epsilon of RMS norms of each head's query and key, over the features of a head, before they are turned
    /// ([arXiv:2302.05442](https://arxiv.org/abs/2302.05442)). Default: no norms
    pub qk_norm: Option<f64>,
    /// Whether these norms have a [zero-centered gamma](RmsNormConfig::zero_centered_gamma). Default: false
    #[config(default = false)]
    pub zero_centered_gamma: bool,
    /// The dropout probability of the attention weights. Default: 0.1
    #[config(default = 0.1)]
    pub dropout: f64,
    /// Whether inputs come with a bias on the scores of each head ([`AttentionInput::with_bias`]): as that is divided over the tensor
    /// axis, so are the heads then, also where `dist.whole_layers` names the layer. Default: false
    #[config(default = false)]
    pub score_bias: bool,
    /// Whether the four linear layers have a bias. Default: true
    #[config(default = true)]
    pub bias: bool,
    /// Whether that of the keys has one, where it differs from the others. Default: `bias`
    pub key_bias: Option<bool>,
    /// What scores are multiplied by; T5 has 1. Default: `1 / sqrt(head_dim)`
    pub scale: Option<f64>,
    /// Whether scores are, in place of that scale, the cosines of queries and keys times e to a learned number of each head, at
    /// most 100 ([arXiv:2111.09883](https://arxiv.org/abs/2111.09883)). Default: false
    #[config(default = false)]
    pub cosine: bool,
    /// The limit that scores come near and do not pass: see [`softcap()`](crate::softcap()). Default: none
    pub softcap: Option<f64>,
    /// How many positions a query of a causal input sees, its own the last of them
    /// ([arXiv:2004.05150](https://arxiv.org/abs/2004.05150)). Default: all before it
    pub window: Option<usize>,
    /// How the parameters get their first values. Default: as Burn's `Linear`
    #[config(default = "default_initializer()")]
    pub initializer: Initializer,
    /// Another initializer for the query layer.
    pub query_initializer: Option<Initializer>,
    /// Another initializer for the output layer.
    pub output_initializer: Option<Initializer>,
    /// Another initializer for the biases.
    pub bias_initializer: Option<Initializer>,
}

/// Multi-head attention of which every rank of the tensor axis computes some heads.
///
/// As described in [Attention is all you need](https://arxiv.org/abs/1706.03762); split as in Megatron-LM
/// ([arXiv:1909.08053](https://arxiv.org/abs/1909.08053)). Self- or cross-attention, padding, causal order and
/// a bias on the scores are chosen by the [`AttentionInput`].
///
/// ```
/// use burn::tensor::{Int, Tensor};
/// use epl_core::testing;
/// use epl_modules::{AttentionCache, AttentionInput, MultiHeadAttentionConfig};
///
/// testing::run((1, 2, 1), |epl| {
///     let attention = MultiHeadAttentionConfig::new(16, 4).with_dropout(0.0).init(&epl.place().child("attention"));
///     let x = Tensor::<1, Int>::arange(0..80, epl.place().device()).float().reshape([1, 5, 16]) / 80.0;
///     let whole = attention.forward(AttentionInput::self_attention(x.clone()).causal());
///
///     // One position after the other, with the keys and values of those before it.
///     let mut cache = AttentionCache::new();
///     let mut steps = Vec::new();
///     for position in 0..5_usize {
///         let new = AttentionInput::self_attention(x.clone().slice_dim(1, position..position + 1)).causal();
///         steps.push(attention.forward_cache(new, &mut cache));
///     }
///     let steps = Tensor::cat(steps, 1);
///     assert!(testing::relative_error(&steps.into_data(), &whole.into_data()) < 1e-4);
///     Ok(())
/// });
/// ```
///
/// Should be created with [`MultiHeadAttentionConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct MultiHeadAttention {
    /// `[d_model, n_heads * head_dim]`, cut by columns
    pub query: SplitLinear,
    /// `[d_model, n_kv_heads * head_dim]`, cut by columns
    pub key: SplitLinear,
    /// `[d_model, n_kv_heads * head_dim]`, cut by columns
    pub value: SplitLinear,
    /// `[n_heads * head_dim, d_model]`, cut by rows
    pub output: SplitLinear,
    /// The norm of each head's query; its scale `[head_dim]` is that of all heads.
    pub query_norm: Option<RmsNorm>,
    /// The norm of each head's key; its scale `[head_dim]` is that of all heads.
    pub key_norm: Option<RmsNorm>,
    /// Of scores that are cosines: the logarithm of what those of a head are multiplied by. This rank's part of `[n_heads, 1, 1]`
    pub logit_scale: Option<Param<Tensor<3>>>,
    /// Dropout of the attention weights.
    pub dropout: Dropout,
    /// The size of the input and output features.
    pub d_model: usize,
    /// The number of heads, over all ranks.
    pub n_heads: usize,
    /// The number of heads of keys and values, over all ranks.
    pub n_kv_heads: usize,
    /// The size of each head.
    pub head_dim: usize,
    /// What scores are multiplied by.
    pub scale: f64,
    #[module(skip)]
    softcap: Option<Softcap>,
    #[module(skip)]
    window: Option<usize>,
    #[module(skip)]
    rotary: Option<Rotary>,
    #[module(skip)]
    context: Context,
}

impl MultiHeadAttentionConfig {
    /// Initializes a new [`MultiHeadAttention`] layer.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a size is 0, heads (of queries, or of keys and values) do not divide over the tensor axis, those of
    /// queries over those of keys, or `d_model` over heads without a `head_dim`, or a number of scores, norms or positions cannot be.
    pub fn init(&self, place: &Place) -> MultiHeadAttention {
        // How the bias is divided the layer follows that makes it.
        let place = &if self.score_bias { place.clone() } else { place.self_contained() };
        let n_kv_heads = self.n_kv_heads.unwrap_or(self.n_heads);
        self.check(n_kv_heads, place);
        let head_dim = self.head_dim.unwrap_or_else(|| self.default_head_dim(place.path()));
        let scale = match (self.scale, self.cosine) {
            (Some(scale), true) => refuse(format!(
                "{}: a `scale` of {scale}, and scores by cosines, whose scale is learned; leave one of both out",
                place.path()
            )),
            (Some(scale), false) => scale,
            (None, true) => 1.0,
            (None, false) => (head_dim as f64).powf(-0.5),
        };
        check_scale(place.path(), scale);
        let softcap = |cap| Softcap::new(cap).unwrap_or_else(|fault| refuse(format!("{}: {fault}", place.path())));
        let inner = self.n_heads * head_dim;
        let linear = |name: &str, initializer: &Option<Initializer>, (d_input, d_output), cut| {
            SplitLinearConfig::new(d_input, d_output)
                .with_cut(cut)
                .with_bias(self.key_bias.filter(|_| name == "key").unwrap_or(self.bias))
                .with_initializer(initializer.as_ref().unwrap_or(&self.initializer).clone())
                .with_bias_initializer(self.bias_initializer.clone())
                .init(&place.child(name))
        };
        let norm = |name: &str| {
            let config = RmsNormConfig::new(head_dim).with_zero_centered_gamma(self.zero_centered_gamma);
            self.qk_norm.map(|epsilon| config.with_epsilon(epsilon).init(&place.child(name)))
        };
        let logit_scale = || {
            let first = Initializer::Constant { value: 10_f64.ln() };
            place.full_precision(place.split_param([self.n_heads, 1, 1], &[(Axis::Tensor, 0)], first))
        };
        let columns = (self.d_model, n_kv_heads * head_dim);
        MultiHeadAttention {
            query: linear("query", &self.query_initializer, (self.d_model, inner), LinearCut::Column),
            key: linear("key", &None, columns, LinearCut::Column),
            value: linear("value", &None, columns, LinearCut::Column),
            output: linear("output", &self.output_initializer, (inner, self.d_model), LinearCut::Row),
            query_norm: norm("query_norm"),
            key_norm: norm("key_norm"),
            logit_scale: self.cosine.then(logit_scale),
            dropout: DropoutConfig::new(self.dropout).init(place),
            d_model: self.d_model,
            n_heads: self.n_heads,
            n_kv_heads,
            head_dim,
            scale,
            softcap: self.softcap.map(softcap),
            window: self.window,
            rotary: self.rotary.map(|rotary| Rotary::new(&rotary, head_dim, place.path())),
            context: place.context().clone(),
        }
    }

    fn check(&self, n_kv_heads: usize, place: &Place) {
        let sizes = [
            ("d_model", self.d_model),
            ("n_heads", self.n_heads),
            ("head_dim", self.head_dim.unwrap_or(1)),
            ("n_kv_heads", n_kv_heads),
            ("window", self.window.unwrap_or(1)),
        ];
        check_not_empty(place.path(), "attention", &sizes);
        check_heads(place.context().tensor(), place.path(), self.n_heads);
        check_kv_heads(place.context().tensor(), place.path(), [self.n_heads, n_kv_heads]);
    }

    fn default_head_dim(&self, path: &str) -> usize {
        if !self.d_model.is_multiple_of(self.n_heads) {
            refuse(format!(
                "{path}: d_model {} does not divide into {} heads; give head_dim or another number of heads",
                self.d_model, self.n_heads
            ));
        }
        self.d_model / self.n_heads
    }
}

impl MultiHeadAttention {
    /// Applies attention.
    ///
    /// # Shapes
    ///
    /// - query: `[batch_size, queries, d_model]`
    /// - memory: `[batch_size, keys, d_model]`
    /// - output: `[batch_size, queries, d_model]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the memory is that of another batch, or there is one and positions are rotary, there is a window
    /// and the input is not causal, a mask or bias has another shape, or a peer fails.
    pub fn forward(&self, input: AttentionInput) -> Tensor<3> {
        let query = input.query.clone().copied(self.group());
        let angles = self.angles(&query, input.memory.is_some(), 0);
        let (query, keys_values) = match input.memory.clone() {
            Some(memory) => (self.query.forward(query), self.of_memory(memory)),
            None => self.of_itself(query),
        };
        let keys_values = self.keys_values(keys_values, angles.as_ref());
        self.attend(self.queries(query, angles.as_ref()), keys_values, (input, 0))
    }

    /// Applies attention to new positions only, with the keys and values of earlier calls.
    ///
    /// Self-attention appends the new positions to the cache. Cross-attention computes the memory's keys and values
    /// in the first call and ignores the memory of later ones.
    ///
    /// # Shapes
    ///
    /// - query: `[batch_size, new positions, d_model]`
    /// - memory: `[batch_size, keys, d_model]`
    /// - output: `[batch_size, new positions, d_model]`
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn forward_cache(&self, input: AttentionInput, cache: &mut AttentionCache) -> Tensor<3> {
        let query = input.query.clone().copied(self.group());
        let angles = self.angles(&query, input.memory.is_some(), cache.len());
        let forgotten = cache.forgotten();
        let (query, keys_values) = match input.memory.clone() {
            Some(memory) => {
                let keys_values = cache.get_or_fill(|| self.keys_values(self.of_memory(memory), None));
                (self.query.forward(query), keys_values)
            }
            None => {
                let (query, keys_values) = self.of_itself(query);
                let (keys, values) = self.keys_values(keys_values, angles.as_ref());
                check_batch(keys.dims()[0], cache.batch_size().unwrap_or(keys.dims()[0]));
                (query, cache.append(keys, values, self.window))
            }
        };
        self.attend(self.queries(query, angles.as_ref()), keys_values, (input, forgotten))
    }

    fn group(&self) -> &ProcessGroup {
        self.context.tensor()
    }

    /// The angles of new positions, of which `start` is the first.
    fn angles(&self, query: &Copied<3>, has_memory: bool, start: usize) -> Option<Angles> {
        let rotary = self.rotary.as_ref()?;
        if has_memory {
            refuse(
                "attention with rotary positions got a memory, whose positions are not those of the queries: make a \
                 cross-attention without `rotary`"
                    .to_string(),
            );
        }
        let query = query.clone().local();
        Some(rotary.angles(start, query.dims()[1], &query.device()))
    }

    /// The features of queries, and those of keys and values, which are of the same positions.
    fn of_itself(&self, source: Copied<3>) -> (Split<3>, [Split<3>; 2]) {
        let [query, key, value] = SplitLinear::forward_each([&self.query, &self.key, &self.value], source.into());
        (query, [key, value])
    }

    /// The features of keys and values.
    fn of_memory(&self, memory: Operand<3>) -> [Split<3>; 2] {
        SplitLinear::forward_each([&self.key, &self.value], memory)
    }

    fn queries(&self, features: Split<3>, angles: Option<&Angles>) -> Tensor<4> {
        let queries = self.heads(features, self.query_norm.as_ref(), angles);
        match &self.logit_scale {
            Some(scale) => {
                let scale = scale.val().clamp_max(100_f64.ln()).exp().unsqueeze::<4>();
                in_wide(queries, |queries| {
                    let dtype = queries.dtype();
                    of_length_one(queries) * scale.cast(dtype)
                })
            }
            None => queries,
        }
    }

    fn keys_values(&self, [keys, values]: [Split<3>; 2], angles: Option<&Angles>) -> (Tensor<4>, Tensor<4>) {
        let keys = self.heads(keys, self.key_norm.as_ref(), angles);
        let keys = if self.logit_scale.is_some() { in_wide(keys, of_length_one) } else { keys };
        (keys, self.heads(values, None, None))
    }

    /// `[batch_size, positions, features]`, split, to `[batch_size, local heads, positions, head_dim]`, normalised and turned.
    fn heads(&self, features: Split<3>, norm: Option<&RmsNorm>, angles: Option<&Angles>) -> Tensor<4> {
        let local = features.local();
        let [batch_size, positions, inner] = local.dims();
        let mut heads = local.reshape([batch_size, positions, inner / self.head_dim, self.head_dim]);
        if let Some(norm) = norm {
            heads = norm.forward_part(heads, self.group());
        }
        if let Some(angles) = angles {
            heads = angles.turn(heads);
        }
        heads.swap_dims(1, 2)
    }

    /// Of what the input says of keys, the first so many are forgotten.
    fn attend(
        &self,
        query: Tensor<4>,
        (keys, values): (Tensor<4>, Tensor<4>),
        (input, forgotten): (AttentionInput, usize),
    ) -> Tensor<3> {
        let [batch_size, heads, queries, _] = query.dims();
        let [memories, _, positions, _] = keys.dims();
        check_batch(batch_size, memories);
        check_shapes(&input, [batch_size, heads, queries, forgotten + positions]);
        let input = input.without_first(forgotten);
        if let Some(window) = self.window {
            check_window(&input, window);
        }
        let first_head = shard_range(self.n_heads, self.group().size(), self.group().rank()).start;
        let weighing = Weighing {
            scale: self.scale,
            softcap: self.softcap,
            sight: if input.causal { Sight::Causal { window: self.window } } else { Sight::All },
            padding: input.padding,
            dropout: self.dropout.mask_of_parts(&[batch_size], input.windows, (1, first_head)),
        };
        // Of the scores and of the weighted values, each 2.
        let seen = self.window.map_or(positions, |window| window.min(positions));
        let pairs = (batch_size * self.n_heads) as f64 * (queries * seen) as f64;
        self.context.count_flops(None, 4.0 * pairs * self.head_dim as f64);
        let context = attend((query, keys, values), input.bias, weighing);
        let context = context.swap_dims(1, 2).reshape([batch_size, queries, heads * self.head_dim]);
        self.output.forward(Split::from_local(context, 2, self.n_heads * self.head_dim, self.group()))
    }
}

/// Vectors along the last dim, divided by their lengths; a length below 1e-12 counts as that.
fn of_length_one(x: Tensor<4>) -> Tensor<4> {
    // Bounded before the root, whose slope at zero is infinite.
    let lengths = (x.clone() * x.clone()).sum_dim(3).clamp_min(1e-24).sqrt();
    x / lengths
}

impl ModuleDisplay for MultiHeadAttention {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_model", &self.d_model)
            .add("n_heads", &self.n_heads)
            .add("n_kv_heads", &self.n_kv_heads)
            .add("head_dim", &self.head_dim)
            .add("rotary", &self.rotary.is_some())
            .add("qk_norm", &self.query_norm.is_some())
            .add("cosine", &self.logit_scale.is_some())
            .add("dropout", &self.dropout.prob)
            .add("scale", &self.scale)
            .add_debug_attribute("softcap", &self.softcap)
            .add_debug_attribute("window", &self.window)
            .add("placement", placement::split(self.group(), "head", self.n_heads).as_str())
            .optional()
    }
}
