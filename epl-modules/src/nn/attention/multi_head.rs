//! Multi-head attention by Burn's formula, with its heads split over the tensor axis.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_comm::{ProcessGroup, Split, copied, shard_range};
use epl_core::{Context, Place};

use super::cache::MhaCache;
use super::input::{MhaInput, MhaOutput};
use super::weighing::{MaskedWeighing, ScoreScale, by_head, by_position};
use crate::attention::check_heads;
use crate::dropout::{Dropout, DropoutConfig};
use crate::invalid::{check_last_dim, check_not_empty, refuse};
use crate::linear::{LinearCut, default_initializer};
use crate::nn::activation::Gelu;
use crate::nn::linear::{Linear, LinearConfig};
use crate::placement;

/// Configuration to create a [`MultiHeadAttention`] layer using the [init function](MultiHeadAttentionConfig::init).
#[derive(Config, Debug)]
pub struct MultiHeadAttentionConfig {
    /// The size of the input and output features.
    pub d_model: usize,
    /// The number of heads, over all ranks.
    pub n_heads: usize,
    /// The dropout probability of the attention weights. Default: 0.1
    #[config(default = 0.1)]
    pub dropout: f64,
    /// The score of a pair that is masked. Default: -1.0e4
    #[config(default = -1.0e4)]
    pub min_float: f64,
    /// Whether a query may attend to nothing: see <https://www.evanmiller.org/attention-is-off-by-one.html>. Default: false
    #[config(default = false)]
    pub quiet_softmax: bool,
    /// How the parameters get their first values. Default: as Burn's
    #[config(default = "default_initializer()")]
    pub initializer: Initializer,
    /// Whether the key layer has a bias. Default: true
    #[config(default = true)]
    pub key_bias: bool,
    /// Whether the value layer has a bias. Default: true
    #[config(default = true)]
    pub value_bias: bool,
    /// Whether the query layer has a bias. Default: true
    #[config(default = true)]
    pub query_bias: bool,
    /// Whether the output layer has a bias. Default: true
    #[config(default = true)]
    pub output_bias: bool,
}

/// Burn's `MultiHeadAttention`, of which every rank of the tensor axis computes some heads.
///
/// See [Attention is all you need](https://arxiv.org/abs/1706.03762). Masks are Burn's, which fill the scores with
/// `min_float`; scores, masks, softmax and dropout are computed in f32 at least. Where no one asks for the weights, and a
/// query without keys may get zeros, [`crate::MultiHeadAttention`] is faster.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::nn::attention::{MhaCache, MhaInput, MultiHeadAttentionConfig};
///
/// testing::run((1, 2, 1), |epl| {
///     let attention = MultiHeadAttentionConfig::new(16, 4).init(&epl.place().child("attention"));
///     let x = Tensor::<3>::ones([1, 5, 16], epl.place().device());
///     assert_eq!(attention.forward_context(MhaInput::self_attn(x.clone()), None).dims(), [1, 5, 16]);
///     let mut cache = MhaCache::autoregressive(); // of this rank's two heads
///     for length in 1..=5 {
///         let so_far = x.clone().narrow(1, 0, length); // the whole sequence, of which the last position alone is computed
///         let output = attention.forward_cache(MhaInput::self_attn(so_far), &mut cache);
///         assert_eq!(output.weights.dims(), [1, 4, length, length]); // of the heads of both ranks
///     }
/// #     Ok(())
/// });
/// ```
///
/// Should be created with [`MultiHeadAttentionConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct MultiHeadAttention {
    /// From features to queries, cut by heads.
    pub query: Linear,
    /// From features to keys, cut by heads.
    pub key: Linear,
    /// From features to values, cut by heads.
    pub value: Linear,
    /// From the heads' values to features, cut by heads.
    pub output: Linear,
    /// Dropout of the attention weights.
    pub dropout: Dropout,
    /// As Burn's layer has it; attention does not use it.
    pub activation: Gelu,
    /// The size of the input and output features.
    pub d_model: usize,
    /// The number of heads, over all ranks.
    pub n_heads: usize,
    /// The size of each head.
    pub d_k: usize,
    /// The score of a pair that is masked.
    pub min_float: f64,
    /// Whether a query may attend to nothing.
    pub quiet_softmax: bool,
    #[module(skip)]
    context: Context,
}

impl MultiHeadAttentionConfig {
    /// Initializes a new [`MultiHeadAttention`] layer.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a size is 0, the heads do not divide `d_model`, or do not divide over the tensor axis.
    pub fn init(&self, place: &Place) -> MultiHeadAttention {
        let place = &place.self_contained();
        let Self { d_model, n_heads, .. } = *self;
        check_not_empty(place.path(), "attention", &[("d_model", d_model), ("n_heads", n_heads)]);
        check_heads(place.context().tensor(), place.path(), n_heads);
        if !d_model.is_multiple_of(n_heads) {
            refuse(format!(
                "{}: d_model {d_model} does not divide into {n_heads} heads; give another number of heads",
                place.path()
            ));
        }
        let linear = |name: &str, bias, cut| {
            let config = LinearConfig::new(d_model, d_model).with_bias(bias);
            config.with_initializer(self.initializer.clone()).init_cut(cut, &place.child(name))
        };
        MultiHeadAttention {
            query: linear("query", self.query_bias, LinearCut::Column),
            key: linear("key", self.key_bias, LinearCut::Column),
            value: linear("value", self.value_bias, LinearCut::Column),
            output: linear("output", self.output_bias, LinearCut::Row),
            dropout: DropoutConfig::new(self.dropout).init(place),
            activation: Gelu::new(),
            d_model,
            n_heads,
            d_k: d_model / n_heads,
            min_float: self.min_float,
            quiet_softmax: self.quiet_softmax,
            context: place.context().clone(),
        }
    }
}

impl MultiHeadAttention {
    /// Applies attention. The weights of all ranks are gathered; a caller that does not need them takes
    /// [`forward_context`](Self::forward_context).
    ///
    /// # Shapes
    ///
    /// - query: `[batch_size, seq_length_1, d_model]`
    /// - key, value: `[batch_size, seq_length_2, d_model]`
    /// - context: `[batch_size, seq_length_1, d_model]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a shape is another, or a peer fails.
    pub fn forward(&self, input: MhaInput) -> MhaOutput {
        self.whole(self.apply(input, None))
    }

    /// Applies attention to a sequence, of which all positions but the last were in earlier calls.
    ///
    /// # Shapes
    ///
    /// As [`forward`](Self::forward): the whole sequence.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn forward_cache(&self, input: MhaInput, cache: &mut MhaCache) -> MhaOutput {
        self.whole(self.apply(input, Some(cache)))
    }

    /// The context alone of [`forward`](Self::forward), or with a cache of [`forward_cache`](Self::forward_cache).
    ///
    /// # Shapes
    ///
    /// As there.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn forward_context(&self, input: MhaInput, cache: Option<&mut MhaCache>) -> Tensor<3> {
        self.apply(input, cache).1
    }

    fn group(&self) -> &ProcessGroup {
        self.context.tensor()
    }

    fn whole(&self, (weights, context): (Tensor<4>, Tensor<3>)) -> MhaOutput {
        MhaOutput { weights: Split::from_local(weights, 1, self.n_heads, self.group()).all_gather(), context }
    }

    /// The weights of this rank's heads, and the context.
    fn apply(&self, input: MhaInput, mut cache: Option<&mut MhaCache>) -> (Tensor<4>, Tensor<3>) {
        let [batch_size, queries, keys] = self.check(&input);
        let MhaInput { query, key, value, mask_pad, mask_attn } = input;
        let [query, key, value] = match cache.as_deref_mut() {
            None => {
                // What is the same tensor is copied once, so that its gradient is reduced once.
                let query = copied(query, self.group());
                let features = match (key, value) {
                    (None, None) => Linear::columns_each([&self.query, &self.key, &self.value], query),
                    (key, value) => {
                        let key = key.map_or_else(|| query.clone(), |key| copied(key, self.group()));
                        let [key, value] = match value {
                            None => Linear::columns_each([&self.key, &self.value], key),
                            Some(value) => [self.key.columns(key), self.value.columns(copied(value, self.group()))],
                        };
                        [self.query.columns(query), key, value]
                    }
                };
                features.map(|features| by_head(features.local(), self.d_k))
            }
            Some(cache) => {
                let project = |linear: &Linear, x| by_head(linear.columns(copied(x, self.group())).local(), self.d_k);
                let key = key.unwrap_or_else(|| query.clone());
                let value = value.unwrap_or_else(|| key.clone());
                [
                    cache.query.forward(query, |x| project(&self.query, x)),
                    cache.key.forward(key, |x| project(&self.key, x)),
                    cache.value.forward(value, |x| project(&self.value, x)),
                ]
            }
        };
        // Of the scores and of the weighted values, each 2.
        self.context.count_flops(None, 4.0 * (batch_size * queries * keys * self.d_model) as f64);
        let masks = [
            mask_pad.map(|mask| mask.reshape([batch_size, 1, 1, keys])),
            mask_attn.map(|mask| mask.reshape([batch_size, 1, queries, keys])),
        ];
        let first_head = shard_range(self.n_heads, self.group().size(), self.group().rank()).start;
        let dropout = self.dropout.mask(&[batch_size], 1, first_head);
        let weights = self.weighing().weigh(query, key, masks.into_iter().flatten(), dropout);
        let context = by_position(weights.clone().matmul(value));
        let output = |x| self.output.rows(Split::from_local(x, 2, self.d_model, self.group()));
        let context = match cache {
            Some(cache) => cache.output.forward(context, output),
            None => output(context),
        };
        (weights, context)
    }

    fn weighing(&self) -> MaskedWeighing {
        // Burn's root is an f32.
        let scale = ScoreScale::Divide(f64::from((self.d_k as f32).sqrt()));
        MaskedWeighing { scale, min_float: self.min_float, quiet: self.quiet_softmax }
    }

    /// The sequences, queries and keys.
    fn check(&self, input: &MhaInput) -> [usize; 3] {
        let [batch_size, queries, _] = input.query.dims();
        let given = [Some(&input.query), input.key.as_ref(), input.value.as_ref()];
        for x in given.into_iter().flatten() {
            check_last_dim("multi-head attention", ("d_model", self.d_model), x.dims());
        }
        let key = input.key.as_ref().unwrap_or(&input.query).dims();
        let value = input.value.as_ref().map_or(key, Tensor::dims);
        if key[0] != batch_size || value[..2] != key[..2] {
            refuse(format!(
                "attention of {batch_size} sequences got keys of {key:?} and values of {value:?}: give both of the same \
                 positions of each sequence"
            ));
        }
        let keys = key[1];
        let pad = input.mask_pad.as_ref().map(Tensor::dims).filter(|dims| *dims != [batch_size, keys]);
        let attn = input.mask_attn.as_ref().map(Tensor::dims).filter(|dims| *dims != [batch_size, queries, keys]);
        let wrong = pad.map(|dims| format!("{dims:?}")).or_else(|| attn.map(|dims| format!("{dims:?}")));
        if let Some(wrong) = wrong {
            refuse(format!(
                "attention of {batch_size} sequences with {queries} queries and {keys} keys got a mask of {wrong}; \
                 mask_pad is [{batch_size}, {keys}], mask_attn [{batch_size}, {queries}, {keys}]"
            ));
        }
        [batch_size, queries, keys]
    }
}

impl ModuleDisplay for MultiHeadAttention {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_model", &self.d_model)
            .add("n_heads", &self.n_heads)
            .add("d_k", &self.d_k)
            .add("dropout", &self.dropout.prob)
            .add("min_float", &self.min_float)
            .add("quiet_softmax", &self.quiet_softmax)
            .add("placement", placement::split(self.group(), "head", self.n_heads).as_str())
            .optional()
    }
}
