//! Norms over groups of channels, sample by sample.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::{GroupNorm as BurnGroupNorm, Initializer};
use burn::tensor::Tensor;
use epl_core::Place;
use epl_core::model::precision::in_wide;

use crate::invalid::{check_epsilon, refuse};
use crate::placement::REPLICATED;

/// Configuration to create a [`GroupNorm`] layer using the [init function](GroupNormConfig::init).
#[derive(Config, Debug)]
pub struct GroupNormConfig {
    /// The number of groups that the channels are divided into.
    pub num_groups: usize,
    /// The number of channels.
    pub num_channels: usize,
    /// A value required for numerical stability. Default: 1e-5
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// Whether each channel is scaled and shifted. Default: true
    #[config(default = true)]
    pub affine: bool,
}

/// Burn's `GroupNorm`, whole on every rank and computed in f32 at least.
///
/// See [Group Normalization](https://arxiv.org/abs/1803.08494). Should be created with [`GroupNormConfig`].
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::nn::GroupNormConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let norm = GroupNormConfig::new(2, 4).init(&epl.place().child("norm"));
///     // The second group of two channels has ten times the numbers of the first: the norm takes that away.
///     let x = Tensor::<3>::from_floats([[[1.0, 1.0], [3.0, 3.0], [10.0, 10.0], [30.0, 30.0]]], epl.place().device());
///     let y = norm.forward(x).into_data().to_vec::<f32>().unwrap();
///     assert!(y.iter().zip([-1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0, 1.0]).all(|(y, expected)| (y - expected).abs() < 1e-4));
///     Ok(())
/// });
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct GroupNorm {
    /// The learnable scale, `[num_channels]`
    pub gamma: Option<Param<Tensor<1>>>,
    /// The learnable shift, `[num_channels]`
    pub beta: Option<Param<Tensor<1>>>,
    /// The number of groups that the channels are divided into.
    pub num_groups: usize,
    /// The number of channels.
    pub num_channels: usize,
    /// A value required for numerical stability.
    pub epsilon: f64,
    /// Whether each channel is scaled and shifted.
    pub affine: bool,
}

/// Configuration to create an [`InstanceNorm`] layer using the [init function](InstanceNormConfig::init).
#[derive(Config, Debug)]
pub struct InstanceNormConfig {
    /// The number of channels.
    pub num_channels: usize,
    /// A value required for numerical stability. Default: 1e-5
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// Whether each channel is scaled and shifted. Default: true
    #[config(default = true)]
    pub affine: bool,
}

/// Burn's `InstanceNorm`, whole on every rank and computed in f32 at least: a [`GroupNorm`] of one channel a group.
///
/// See [Instance Normalization](https://arxiv.org/abs/1607.08022). Should be created with [`InstanceNormConfig`].
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::nn::InstanceNormConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let norm = InstanceNormConfig::new(2).init(&epl.place().child("norm"));
///     let x = Tensor::<3>::from_floats([[[1.0, 3.0], [20.0, 60.0]]], epl.place().device()); // two channels of one sample
///     let y = norm.forward(x).into_data().to_vec::<f32>().unwrap();
///     assert!(y.iter().zip([-1.0, 1.0, -1.0, 1.0]).all(|(y, expected)| (y - expected).abs() < 1e-4)); // each by itself
///     Ok(())
/// });
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct InstanceNorm {
    /// The learnable scale, `[num_channels]`
    pub gamma: Option<Param<Tensor<1>>>,
    /// The learnable shift, `[num_channels]`
    pub beta: Option<Param<Tensor<1>>>,
    /// The number of channels.
    pub num_channels: usize,
    /// A value required for numerical stability.
    pub epsilon: f64,
    /// Whether each channel is scaled and shifted.
    pub affine: bool,
}

/// One, and zero, of which mixed precision leaves both in f32.
fn scale_and_shift(place: &Place, num_channels: usize, affine: bool) -> [Option<Param<Tensor<1>>>; 2] {
    [Initializer::Ones, Initializer::Zeros]
        .map(|initializer| affine.then(|| place.full_precision(place.param([num_channels], initializer))))
}

impl GroupNormConfig {
    /// Initializes a new [`GroupNorm`] layer; `gamma` is one, `beta` zero.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the groups do not divide the channels, or epsilon is not finite and positive.
    pub fn init(&self, place: &Place) -> GroupNorm {
        let Self { num_groups, num_channels, epsilon, affine } = *self;
        check_epsilon(place.path(), epsilon);
        if num_groups == 0 || num_channels == 0 || num_channels % num_groups != 0 {
            refuse(format!(
                "{}: {num_channels} channels do not divide into {num_groups} groups; give a number of groups that divides them",
                place.path()
            ));
        }
        let [gamma, beta] = scale_and_shift(place, num_channels, affine);
        GroupNorm { gamma, beta, num_groups, num_channels, epsilon, affine }
    }
}

impl GroupNorm {
    /// Normalises each group of channels of each sample.
    ///
    /// # Shapes
    ///
    /// - input: `[batch_size, num_channels, ...]`
    /// - output: `[batch_size, num_channels, ...]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when dim 1 is another, or there are less than 3 numbers, as Burn's does.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        normalise("group norm", input, [&self.gamma, &self.beta], [self.num_groups, self.num_channels], self.epsilon)
    }
}

impl InstanceNormConfig {
    /// Initializes a new [`InstanceNorm`] layer; `gamma` is one, `beta` zero.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when there is no channel, or epsilon is not finite and positive.
    pub fn init(&self, place: &Place) -> InstanceNorm {
        let Self { num_channels, epsilon, affine } = *self;
        check_epsilon(place.path(), epsilon);
        if num_channels == 0 {
            refuse(format!("{}: an instance norm of 0 channels; give it the channels of its input", place.path()));
        }
        let [gamma, beta] = scale_and_shift(place, num_channels, affine);
        InstanceNorm { gamma, beta, num_channels, epsilon, affine }
    }
}

impl InstanceNorm {
    /// Normalises each channel of each sample.
    ///
    /// # Shapes
    ///
    /// - input: `[batch_size, num_channels, ...]`
    /// - output: `[batch_size, num_channels, ...]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when dim 1 is another, or there are less than 3 numbers, as Burn's does.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let channels = [self.num_channels; 2];
        normalise("instance norm", input, [&self.gamma, &self.beta], channels, self.epsilon)
    }
}

/// Burn's formula in f32 at least; the result returns to the type of the input.
fn normalise<const D: usize>(
    layer: &str,
    input: Tensor<D>,
    [gamma, beta]: [&Option<Param<Tensor<1>>>; 2],
    [num_groups, num_channels]: [usize; 2],
    epsilon: f64,
) -> Tensor<D> {
    let dims = input.dims();
    if dims.get(1) != Some(&num_channels) {
        refuse(format!(
            "{layer} of num_channels {num_channels} got an input of {dims:?}: give it [batch, {num_channels}, ...], or make \
             the layer with the channels of its input"
        ));
    }
    if dims.iter().product::<usize>() < 3 {
        refuse(format!(
            "{layer} got an input of {dims:?}: Burn's layer takes at least 3 numbers; give it [batch, {num_channels}, ...] of more"
        ));
    }
    in_wide(input, |input| {
        let wide = |param: &Param<Tensor<1>>| Param::initialized(param.id, param.val().cast(input.dtype()));
        let layer = BurnGroupNorm {
            gamma: gamma.as_ref().map(wide),
            beta: beta.as_ref().map(wide),
            num_groups,
            num_channels,
            epsilon,
            affine: gamma.is_some(),
        };
        layer.forward(input)
    })
}

impl ModuleDisplay for GroupNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("num_groups", &self.num_groups)
            .add("num_channels", &self.num_channels)
            .add("epsilon", &self.epsilon)
            .add("affine", &self.affine)
            .add("placement", REPLICATED)
            .optional()
    }
}

impl ModuleDisplay for InstanceNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("num_channels", &self.num_channels)
            .add("epsilon", &self.epsilon)
            .add("affine", &self.affine)
            .add("placement", REPLICATED)
            .optional()
    }
}
