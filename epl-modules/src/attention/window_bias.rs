//! A bias by the distance inside a window, a number each or what a small network makes of it.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::Initializer;
use burn::tensor::{Tensor, TensorData};
use epl_core::topology::cluster::Axis;
use epl_core::{Context, Place};

use super::checks::check_heads;
use super::relative_bias::{diagonal_sums, gathered_biases};
use super::windows::Windows;
use crate::activation::Activation;
use crate::invalid::{check_not_empty, refuse};
use crate::linear::{ReplicatedLinear, ReplicatedLinearConfig, SplitLinear, SplitLinearConfig, default_initializer};
use crate::placement;

/// What a network's bias stays below.
const LARGEST: f64 = 16.0;

/// Configuration to create a [`WindowBias`] layer using the [init function](WindowBiasConfig::init).
#[derive(Config, Debug)]
pub struct WindowBiasConfig {
    /// The number of heads, over all ranks.
    pub n_heads: usize,
    /// The positions of a side of a window.
    pub side: usize,
    /// Whether a network makes the bias of a distance, as in Swin V2; otherwise each distance has a number of its own.
    /// Default: false
    #[config(default = false)]
    pub continuous: bool,
    /// The side of the windows by whose distances the network has learned. Default: `side`
    pub pretrained_side: Option<usize>,
    /// The width of the network. Default: 512
    #[config(default = 512)]
    pub hidden: usize,
    /// How the numbers of distances get their first values. Default: normal with mean 0 and deviation 0.02
    #[config(default = "Initializer::Normal{mean:0.0, std:0.02}")]
    pub initializer: Initializer,
    /// How the weights of the network do. Default: as Burn's `Linear`
    #[config(default = "default_initializer()")]
    pub network_initializer: Initializer,
}

/// A learned bias on the scores of each head, by how many rows and columns lie between query and key in a window.
///
/// A number for each distance, as in *Swin Transformer*, Liu et al., 2021
/// ([arXiv:2103.14030](https://arxiv.org/abs/2103.14030)); or 16 σ of what a network of two layers makes of the distance, on a
/// logarithmic scale, so that windows may grow: *Swin Transformer V2*, Liu et al., 2022
/// ([arXiv:2111.09883](https://arxiv.org/abs/2111.09883)). Split by heads over the tensor axis; under mixed precision all of it
/// stays in f32.
///
/// ```
/// # use epl_core::testing;
/// use epl_modules::{WindowBiasConfig, Windows};
///
/// testing::run((1, 2, 1), |epl| {
///     let bias = WindowBiasConfig::new(4, 2).init(&epl.place().child("bias")); // of windows of 2 × 2 positions
///     // For `AttentionInput::with_bias`, of this rank's two heads: of all windows alike, or of each, where they are shifted.
///     assert_eq!(bias.forward(&Windows::new([4, 4], 2, 0)).dims(), [1, 2, 4, 4]);
///     assert_eq!(bias.forward(&Windows::new([4, 4], 2, 1)).dims(), [4, 2, 4, 4]);
///     Ok(())
/// });
/// ```
///
/// Should be created with [`WindowBiasConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct WindowBias {
    /// This rank's columns of `[(2 side - 1)², n_heads]`
    pub table: Option<Param<Tensor<2>>>,
    /// From a distance to the bias of this rank's heads.
    pub network: Option<DistanceNetwork>,
    /// The number of heads, over all ranks.
    pub n_heads: usize,
    /// The positions of a side of a window.
    pub side: usize,
    #[module(skip)]
    context: Context,
}

/// The two layers behind a distance.
#[derive(Module, Debug)]
pub struct DistanceNetwork {
    /// `[2, hidden]`
    pub input: ReplicatedLinear,
    /// `[hidden, n_heads]`, cut by columns
    pub output: SplitLinear,
    /// What a distance of rows or columns is divided by.
    pub farthest: usize,
}

impl WindowBiasConfig {
    /// Initializes a new [`WindowBias`] layer.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a size is 0, the heads do not divide over the tensor axis, or there is a `pretrained_side` that
    /// nothing reads or that has no distances.
    pub fn init(&self, place: &Place) -> WindowBias {
        let sizes = [("n_heads", self.n_heads), ("side", self.side), ("hidden", self.hidden)];
        check_not_empty(place.path(), "window bias", &sizes);
        check_heads(place.context().tensor(), place.path(), self.n_heads);
        if let Some(side) = self.pretrained_side.filter(|side| !self.continuous || *side < 2) {
            refuse(format!(
                "{}: a `pretrained_side` of {side}, which is for a continuous bias, and is 2 at least; leave it out where windows \
                 are those of pretraining",
                place.path()
            ));
        }
        let shape = [(2 * self.side - 1).pow(2), self.n_heads];
        let table = || place.full_precision(place.split_param(shape, &[(Axis::Tensor, 1)], self.initializer.clone()));
        WindowBias {
            table: (!self.continuous).then(table),
            network: self.continuous.then(|| self.network(&place.child("network"))),
            n_heads: self.n_heads,
            side: self.side,
            context: place.context().clone(),
        }
    }

    fn network(&self, place: &Place) -> DistanceNetwork {
        let input = ReplicatedLinearConfig::new(2, self.hidden).with_initializer(self.network_initializer.clone());
        let output = SplitLinearConfig::new(self.hidden, self.n_heads)
            .with_bias(false)
            .with_initializer(self.network_initializer.clone());
        DistanceNetwork {
            input: place.full_precision(input.init(&place.child("input"))),
            output: place.full_precision(output.init(&place.child("output"))),
            farthest: self.pretrained_side.unwrap_or(self.side).max(2) - 1,
        }
    }
}

impl WindowBias {
    /// The bias of all pairs of each window; pairs that only a shift has brought into one window do not see each other.
    ///
    /// # Shapes
    ///
    /// - output: `[1, local heads, side * side, side * side]`, of shifted windows `[windows, ...]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the windows have another side.
    pub fn forward(&self, windows: &Windows) -> Tensor<4> {
        if windows.side() != self.side {
            refuse(format!("windows of {} positions a side, for a bias of {}", windows.side(), self.side));
        }
        let table = match (&self.table, &self.network) {
            (Some(table), _) => {
                self.context.count_flops(Some(table.id), 0.0);
                table.val()
            }
            (None, Some(network)) => network.forward(self.side),
            (None, None) => refuse("a window bias has neither numbers nor a network".to_string()),
        };
        let biases = biases(table, windows).unsqueeze::<4>();
        match windows.mask(&biases.device()) {
            Some(mask) => {
                let dtype = biases.dtype();
                biases + mask.cast(dtype)
            }
            None => biases,
        }
    }
}

/// The bias of each pair of a window's positions, by the distance between them.
///
/// # Shapes
///
/// - table: `[(2 side - 1)², heads]`
/// - output: `[heads, side * side, side * side]`
fn biases(table: Tensor<2>, windows: &Windows) -> Tensor<3> {
    let (side, area) = (windows.side(), windows.side() * windows.side());
    gathered_biases(table, windows.distances(), [area, area], move |grad| distance_sums(grad, side))
}

/// The sums over all pairs of each distance: over the pairs of columns of each distance, then over those of rows.
///
/// # Shapes
///
/// - x: `[heads, side * side, side * side]`
/// - output: `[(2 side - 1)², heads]`
fn distance_sums(x: Tensor<3>, side: usize) -> Tensor<2> {
    let (heads, distances) = (x.dims()[0], 2 * side - 1);
    // The row and column of a query, then those of a key, from which distances are counted: its place comes first.
    let pairs = x.reshape([heads, side, side, side, side]).permute([0, 1, 3, 4, 2]);
    let of_columns = diagonal_sums(pairs.reshape([heads * side * side, side, side]));
    let pairs = of_columns.reshape([heads, side, side, distances]).permute([0, 3, 2, 1]);
    let of_both = diagonal_sums(pairs.reshape([heads * distances, side, side]));
    of_both.reshape([heads, distances, distances]).permute([2, 1, 0]).reshape([distances * distances, heads])
}

impl DistanceNetwork {
    /// The biases of all distances in windows of so many positions a side, in their order.
    ///
    /// # Shapes
    ///
    /// - output: `[(2 side - 1)², local heads]`
    fn forward(&self, side: usize) -> Tensor<2> {
        let weight = self.input.weight.val();
        let coordinate = |at: usize| {
            let distance = 8.0 * (at as f64 - (side - 1) as f64) / self.farthest as f64;
            distance.signum() * (distance.abs() + 1.0).log2() / 3.0
        };
        let count = 2 * side - 1;
        let coordinates: Vec<f64> =
            (0..count * count).flat_map(|at| [coordinate(at / count), coordinate(at % count)]).collect();
        let coordinates = TensorData::new(coordinates, [count * count, 2]);
        let coordinates = Tensor::<2>::from_data(coordinates, (&weight.device(), weight.dtype()));
        let hidden = Activation::Relu.forward(self.input.forward(coordinates));
        burn::tensor::activation::sigmoid(self.output.forward(hidden).local()) * LARGEST
    }
}

impl ModuleDisplay for WindowBias {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("n_heads", &self.n_heads)
            .add("side", &self.side)
            .add("continuous", &self.network.is_some())
            .add("placement", placement::split(self.context.tensor(), "head", self.n_heads).as_str())
            .optional()
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device, Distribution};

    use super::super::relative_bias::tests::{assert_same, gathered, with_gradient};
    use super::*;

    /// In f64, where the order of a sum does not count.
    #[test]
    fn the_gradient_is_the_sum_over_the_pairs_of_each_distance() {
        for side in [1, 2, 3, 5] {
            let (device, windows) = (Device::flex(), Windows::new([side, side], side, 0));
            let (heads, distances, area) = (3, (2 * side - 1).pow(2), side * side);
            let random = |shape| Tensor::<3>::random(shape, Distribution::Default, (&device, DType::F64));
            let table = random([1, distances, heads]).squeeze_dim::<2>(0);
            let factors = random([heads, area, area]);
            let found = with_gradient(&table, &factors, |table| biases(table, &windows));
            assert_same(&found, &gathered(&table, &factors, &windows.distances()));
        }
    }
}
