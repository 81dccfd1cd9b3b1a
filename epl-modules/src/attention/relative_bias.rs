//! T5's relative position bias.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::Initializer;
use burn::tensor::{Int, Tensor, TensorData};
use epl_core::topology::cluster::Axis;
use epl_core::{Context, Place};

use super::multi_head::check_heads;
use crate::invalid::refuse;
use crate::placement;

/// Configuration to create a [`RelativeBias`] layer using the [init function](RelativeBiasConfig::init).
#[derive(Config, Debug)]
pub struct RelativeBiasConfig {
    /// The number of heads, over all ranks.
    pub n_heads: usize,
    /// The number of buckets of distances. Default: 32
    #[config(default = 32)]
    pub n_buckets: usize,
    /// All distances from here on share the last bucket. Default: 128
    #[config(default = 128)]
    pub max_distance: usize,
    /// Whether keys to the right have buckets of their own (an encoder), or all share one (a decoder).
    /// Default: true
    #[config(default = true)]
    pub bidirectional: bool,
    /// How the biases get their first values. Default: normal with mean 0 and deviation 1
    #[config(default = "Initializer::Normal{mean:0.0, std:1.0}")]
    pub initializer: Initializer,
}

/// A learned bias on the scores of each head, by the bucket of the distance between query and key.
///
/// See [Exploring the limits of transfer learning](https://arxiv.org/abs/1910.10683), section 2.1: half of the
/// buckets hold one distance each, the others grow logarithmically. The table is split by heads over the tensor axis.
/// Its gradient is a sum over all pairs of a bucket: under mixed precision it stays in f32.
///
/// Should be created with [`RelativeBiasConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct RelativeBias {
    /// This rank's columns of `[n_buckets, n_heads]`
    pub weight: Param<Tensor<2>>,
    /// The number of heads, over all ranks.
    pub n_heads: usize,
    /// The number of buckets of distances.
    pub n_buckets: usize,
    /// All distances from here on share the last bucket.
    pub max_distance: usize,
    /// Whether keys to the right have buckets of their own.
    pub bidirectional: bool,
    #[module(skip)]
    context: Context,
}

impl RelativeBiasConfig {
    /// Initializes a new [`RelativeBias`] layer.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the heads do not divide over the tensor axis, or the buckets are too few for the
    /// largest distance.
    pub fn init(&self, place: &Place) -> RelativeBias {
        check_heads(place.context().tensor(), place.path(), self.n_heads);
        let one_side = if self.bidirectional { self.n_buckets / 2 } else { self.n_buckets };
        if one_side < 2 || self.max_distance <= one_side / 2 {
            refuse(format!(
                "{}: {} buckets for distances up to {} leave no logarithmic bucket; use at least {} buckets and a \
                 max_distance above {}",
                place.path(),
                self.n_buckets,
                self.max_distance,
                if self.bidirectional { 4 } else { 2 },
                one_side / 2
            ));
        }
        let shape = [self.n_buckets, self.n_heads];
        RelativeBias {
            weight: place.full_precision(place.split_param(shape, &[(Axis::Tensor, 1)], self.initializer.clone())),
            n_heads: self.n_heads,
            n_buckets: self.n_buckets,
            max_distance: self.max_distance,
            bidirectional: self.bidirectional,
            context: place.context().clone(),
        }
    }
}

impl RelativeBias {
    /// The bias of queries at the positions `offset..offset + queries` on keys at `0..keys`.
    ///
    /// # Shapes
    ///
    /// - output: `[1, local heads, queries, keys]`
    pub fn forward(&self, queries: usize, keys: usize, offset: usize) -> Tensor<4> {
        self.context.count_flops(Some(self.weight.id), 0.0);
        // One gather of the heads' rows: the result is contiguous, as attention wants it.
        let table = self.weight.val().transpose();
        let heads = table.dims()[0];
        let buckets: Vec<i64> = (0..queries * keys)
            .map(|pair| self.bucket((pair % keys) as i64 - (offset + pair / keys) as i64) as i64)
            .collect();
        let buckets = Tensor::<1, Int>::from_data(TensorData::new(buckets, [queries * keys]), &table.device());
        table.select(1, buckets).reshape([1, heads, queries, keys])
    }

    /// The bucket of a key's position minus a query's.
    fn bucket(&self, distance: i64) -> usize {
        let (buckets, first, distance) = match self.bidirectional {
            true => {
                let half = self.n_buckets / 2;
                (half, if distance > 0 { half } else { 0 }, distance.unsigned_abs() as usize)
            }
            false => (self.n_buckets, 0, usize::try_from(-distance).unwrap_or(0)),
        };
        let exact = buckets / 2;
        if distance < exact {
            return first + distance;
        }
        // In f32, as the published models were trained: a rounding decides at the edges.
        let ratio = (distance as f32 / exact as f32).ln() / (self.max_distance as f32 / exact as f32).ln();
        let bucket = exact + (ratio * (buckets - exact) as f32) as usize;
        first + bucket.min(buckets - 1)
    }
}

impl ModuleDisplay for RelativeBias {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("n_heads", &self.n_heads)
            .add("n_buckets", &self.n_buckets)
            .add("max_distance", &self.max_distance)
            .add("bidirectional", &self.bidirectional)
            .add("placement", placement::split(self.context.tensor(), "head", self.n_heads).as_str())
            .optional()
    }
}
