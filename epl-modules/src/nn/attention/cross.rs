//! Attention to a context of other features, whose heads may share keys and values.

use burn::config::Config;
use burn::module::Module;
use burn::nn::Initializer;
use burn::tensor::{Bool, Tensor};
use epl_comm::{ProcessGroup, Split, copied, shard_range};
use epl_core::{Context, Place};

use super::weighing::{MaskedWeighing, ScoreScale, by_head, by_position};
use crate::attention::check_heads;
use crate::dropout::{Dropout, DropoutConfig};
use crate::invalid::{check_last_dim, check_not_empty, refuse};
use crate::linear::LinearCut;
use crate::nn::cache::TensorCache;
use crate::nn::linear::{Linear, LinearConfig};

/// Configuration to create a [`CrossAttention`] layer using the [init function](CrossAttentionConfig::init).
#[derive(Config, Debug)]
pub struct CrossAttentionConfig {
    /// The size of the query's features, and of the output's.
    pub d_model: usize,
    /// The size of the context's features.
    pub d_context: usize,
    /// The number of heads, over all ranks.
    pub n_heads: usize,
    /// The number of heads of keys and values, over all ranks: as many, or fewer that several heads share.
    pub n_heads_kv: usize,
    /// The size of each head.
    pub d_head: usize,
    /// The dropout probability of the attention weights. Default: 0.1
    #[config(default = 0.1)]
    pub dropout: f64,
    /// The score of a pair that is masked. Default: -1.0e4
    #[config(default = -1.0e4)]
    pub min_float: f64,
    /// Whether a query may attend to nothing. Default: false
    #[config(default = false)]
    pub quiet_softmax: bool,
}

/// Burn's `CrossAttention`, of which every rank of the tensor axis computes some heads.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::nn::attention::{CrossAttentionCache, CrossAttentionConfig};
///
/// testing::run((1, 2, 1), |epl| {
///     // Features of 16 attend to some of 12, by four heads of 8, of which two share keys and values.
///     let attention = CrossAttentionConfig::new(16, 12, 4, 2, 8).init(&epl.place().child("attention"));
///     let ones = |shape: [usize; 3]| Tensor::<3>::ones(shape, epl.place().device());
///     let output = attention.forward(ones([1, 5, 16]), ones([1, 7, 12]), None);
///     assert_eq!(output.dims(), [1, 5, 16]);
///     let mut cache = CrossAttentionCache::new();
///     let first = attention.forward_cache(ones([1, 5, 16]), ones([1, 7, 12]), None, &mut cache);
///     let later = attention.forward_cache(ones([1, 5, 16]), ones([1, 7, 12]) * 9.0, None, &mut cache); // it is not read again
///     assert_eq!(first.into_data(), later.into_data());
/// #     Ok(())
/// # });
/// ```
///
/// Should be created with [`CrossAttentionConfig`].
#[derive(Module, Debug)]
pub struct CrossAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    dropout: Dropout,
    #[module(skip)]
    config: CrossAttentionConfig,
    #[module(skip)]
    context: Context,
}

/// The keys and values of a context that stays the same, of this rank's heads.
pub struct CrossAttentionCache {
    /// The keys.
    pub k: TensorCache<4>,
    /// The values.
    pub v: TensorCache<4>,
}

impl CrossAttentionCache {
    /// An empty cache.
    pub fn new() -> Self {
        Self { k: TensorCache::empty(), v: TensorCache::empty() }
    }
}

impl Default for CrossAttentionCache {
    fn default() -> Self {
        Self::new()
    }
}

impl CrossAttentionConfig {
    /// Initializes a new [`CrossAttention`] layer.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a size is 0, the heads of keys and values do not divide the heads, or do not divide over the tensor axis.
    pub fn init(&self, place: &Place) -> CrossAttention {
        let place = &place.self_contained();
        let heads = [("n_heads", self.n_heads), ("n_heads_kv", self.n_heads_kv), ("d_head", self.d_head)];
        let features = [("d_model", self.d_model), ("d_context", self.d_context)];
        check_not_empty(place.path(), "attention", &[&features[..], &heads].concat());
        check_heads(place.context().tensor(), place.path(), self.n_heads_kv);
        if !self.n_heads.is_multiple_of(self.n_heads_kv) {
            refuse(format!(
                "{}: {} heads do not divide by {} heads of keys and values; give a number that they share evenly",
                place.path(),
                self.n_heads,
                self.n_heads_kv
            ));
        }
        let gain = 1.0 / (self.d_head as f64).sqrt();
        let linear = |name: &str, d_input, d_output, cut| {
            let initializer = Initializer::KaimingUniform { gain, fan_out_only: false };
            LinearConfig::new(d_input, d_output).with_initializer(initializer).init_cut(cut, &place.child(name))
        };
        let (heads, shared) = (self.n_heads * self.d_head, self.n_heads_kv * self.d_head);
        CrossAttention {
            query: linear("query", self.d_model, heads, LinearCut::Column),
            key: linear("key", self.d_context, shared, LinearCut::Column),
            value: linear("value", self.d_context, shared, LinearCut::Column),
            output: linear("output", heads, self.d_model, LinearCut::Row),
            dropout: DropoutConfig::new(self.dropout).init(place),
            config: self.clone(),
            context: place.context().clone(),
        }
    }
}

impl CrossAttention {
    /// Attends to a context.
    ///
    /// # Shapes
    ///
    /// - query: `[batch_size, queries, d_model]`
    /// - context: `[batch_size, keys, d_context]`
    /// - mask: `[batch_size, keys]`, true where a key is not seen
    /// - output: `[batch_size, queries, d_model]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a shape is another, or a peer fails.
    pub fn forward(&self, query: Tensor<3>, context: Tensor<3>, mask: Option<Tensor<2, Bool>>) -> Tensor<3> {
        self.check(&query, &context);
        let of_context = Linear::columns_each([&self.key, &self.value], copied(context, self.group()));
        let [key, value] = of_context.map(|features| by_head(features.local(), self.config.d_head));
        self.attend(query, key, value, mask)
    }

    /// Attends to a context whose keys and values are computed in the first call.
    ///
    /// # Shapes
    ///
    /// As [`forward`](Self::forward).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn forward_cache(
        &self,
        query: Tensor<3>,
        context: Tensor<3>,
        mask: Option<Tensor<2, Bool>>,
        cache: &mut CrossAttentionCache,
    ) -> Tensor<3> {
        self.check(&query, &context);
        let project = |linear: &Linear, x| by_head(linear.columns(copied(x, self.group())).local(), self.config.d_head);
        let key = cache.k.forward_full(context.clone(), |x| project(&self.key, x));
        let value = cache.v.forward_full(context, |x| project(&self.value, x));
        self.attend(query, key, value, mask)
    }

    fn group(&self) -> &ProcessGroup {
        self.context.tensor()
    }

    fn check(&self, query: &Tensor<3>, context: &Tensor<3>) {
        check_last_dim("cross-attention", ("d_model", self.config.d_model), query.dims());
        check_last_dim("cross-attention's context", ("d_context", self.config.d_context), context.dims());
        let [sequences, contexts] = [query.dims()[0], context.dims()[0]];
        if sequences != contexts {
            refuse(format!("attention of {sequences} sequences got {contexts} contexts: give each its own"));
        }
    }

    fn attend(&self, query: Tensor<3>, key: Tensor<4>, value: Tensor<4>, mask: Option<Tensor<2, Bool>>) -> Tensor<3> {
        let CrossAttentionConfig { n_heads, n_heads_kv, d_head, min_float, quiet_softmax, .. } = self.config;
        let ([batch_size, queries, _], keys, group) = (query.dims(), key.dims()[2], self.group());
        if let Some(mask) = mask.as_ref().map(Tensor::dims).filter(|dims| *dims != [batch_size, keys]) {
            refuse(format!("attention of {batch_size} sequences over {keys} keys got a mask of {mask:?}"));
        }
        let query = by_head(self.query.columns(copied(query, group)).local(), d_head);
        let [key, value] = [key, value].map(|shared| repeated(shared, n_heads / n_heads_kv));
        self.context.count_flops(None, 4.0 * (batch_size * n_heads * queries * keys * d_head) as f64);
        let first_head = shard_range(n_heads, group.size(), group.rank()).start;
        let dropout = self.dropout.mask(&[batch_size], 1, first_head);
        let scale = ScoreScale::Multiply((d_head as f64).sqrt().recip());
        let weighing = MaskedWeighing { scale, min_float, quiet: quiet_softmax };
        let weights = weighing.weigh(query, key, mask.map(|mask| mask.reshape([batch_size, 1, 1, keys])), dropout);
        let heads = by_position(weights.matmul(value));
        self.output.rows(Split::from_local(heads, 2, n_heads * d_head, group))
    }
}

/// Each head of keys or values for the heads that share it.
fn repeated(x: Tensor<4>, times: usize) -> Tensor<4> {
    let [batch_size, heads, positions, size] = x.dims();
    x.reshape([batch_size, heads, 1, positions, size]).expand([batch_size, heads, times, positions, size]).reshape([
        batch_size,
        heads * times,
        positions,
        size,
    ])
}
