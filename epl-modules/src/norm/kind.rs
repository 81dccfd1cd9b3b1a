//! A norm whose formula is chosen when the layer is made.

use core::fmt;

use burn::config::Config;
use burn::module::{Content, Devices, DisplaySettings, Module, ModuleDisplay, ModuleDisplayDefault};
use burn::module::{ModuleMapper, ModuleVisitor};
use burn::nn::Initializer;
use burn::tensor::{Device, Tensor};
use epl_core::Place;

use super::layer_norm::{LayerNorm, LayerNormConfig};
use super::rms_norm::{RmsNorm, RmsNormConfig};

/// Which formula normalises.
#[derive(Config, Debug, Copy, PartialEq)]
pub enum NormKind {
    /// [`LayerNorm`]: mean and variance, scale and shift.
    LayerNorm,
    /// [`RmsNorm`]: root mean square and scale.
    RmsNorm,
}

/// Configuration to create a [`Norm`] using the [init function](NormConfig::init).
#[derive(Config, Debug)]
pub struct NormConfig {
    /// The size of the input features.
    pub d_model: usize,
    /// The formula. Default: LayerNorm
    #[config(default = "NormKind::LayerNorm")]
    pub kind: NormKind,
    /// A value required for numerical stability. Default: 1e-5
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// Whether the scale is one and `gamma`, as of Gemma: see [`RmsNormConfig::zero_centered_gamma`]. Default: false
    #[config(default = false)]
    pub zero_centered_gamma: bool,
    /// How `gamma` gets its first values. Default: such that the scale is one
    pub gamma_initializer: Option<Initializer>,
}

/// One of the norms. Its parameters have the paths that they have in the norm itself, whichever it is.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::{NormConfig, NormKind};
///
/// testing::run((1, 1, 1), |epl| {
///     for kind in [NormKind::LayerNorm, NormKind::RmsNorm] {
///         let norm = NormConfig::new(8).with_kind(kind).init(&epl.place().child("norm"));
///         assert_eq!(norm.kind(), kind);
///         let of_ones = norm.forward(Tensor::<2>::ones([2, 8], epl.place().device())).mean().into_scalar::<f32>();
///         // One subtracts the mean, the other does not.
///         assert!((of_ones - if kind == NormKind::LayerNorm { 0.0 } else { 1.0 }).abs() < 1e-4);
///     }
/// #     Ok(())
/// # });
/// ```
///
/// Should be created with [`NormConfig`].
#[derive(Clone, Debug)]
pub enum Norm {
    /// Mean and variance, scale and shift.
    LayerNorm(LayerNorm),
    /// Root mean square and scale.
    RmsNorm(RmsNorm),
}

impl NormConfig {
    /// Initializes a new [`Norm`].
    ///
    /// # Errors
    ///
    /// Unwinds with an error when epsilon is not positive.
    pub fn init(&self, place: &Place) -> Norm {
        let Self { d_model, kind, epsilon, zero_centered_gamma, .. } = *self;
        let gamma_initializer = self.gamma_initializer.clone();
        match kind {
            NormKind::LayerNorm => Norm::LayerNorm(
                LayerNormConfig::new(d_model)
                    .with_epsilon(epsilon)
                    .with_zero_centered_gamma(zero_centered_gamma)
                    .with_gamma_initializer(gamma_initializer)
                    .init(place),
            ),
            NormKind::RmsNorm => {
                Norm::RmsNorm(RmsNormConfig { d_model, epsilon, zero_centered_gamma, gamma_initializer }.init(place))
            }
        }
    }
}

impl Norm {
    /// Normalises along the last dim.
    ///
    /// # Shapes
    ///
    /// - input: `[..., d_model]`
    /// - output: `[..., d_model]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the last dim is another.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        match self {
            Self::LayerNorm(norm) => norm.forward(input),
            Self::RmsNorm(norm) => norm.forward(input),
        }
    }

    /// The formula.
    pub fn kind(&self) -> NormKind {
        match self {
            Self::LayerNorm(_) => NormKind::LayerNorm,
            Self::RmsNorm(_) => NormKind::RmsNorm,
        }
    }
}

/// As the module inside, without a level of its own: Burn's derive would put the variant's name into the paths.
impl Module for Norm {
    fn collect_devices(&self, devices: Devices) -> Devices {
        match self {
            Self::LayerNorm(norm) => norm.collect_devices(devices),
            Self::RmsNorm(norm) => norm.collect_devices(devices),
        }
    }

    fn fork(self, device: &Device) -> Self {
        match self {
            Self::LayerNorm(norm) => Self::LayerNorm(norm.fork(device)),
            Self::RmsNorm(norm) => Self::RmsNorm(norm.fork(device)),
        }
    }

    fn to_device(self, device: &Device) -> Self {
        match self {
            Self::LayerNorm(norm) => Self::LayerNorm(norm.to_device(device)),
            Self::RmsNorm(norm) => Self::RmsNorm(norm.to_device(device)),
        }
    }

    fn train(self) -> Self {
        match self {
            Self::LayerNorm(norm) => Self::LayerNorm(norm.train()),
            Self::RmsNorm(norm) => Self::RmsNorm(norm.train()),
        }
    }

    fn valid(&self) -> Self {
        match self {
            Self::LayerNorm(norm) => Self::LayerNorm(norm.valid()),
            Self::RmsNorm(norm) => Self::RmsNorm(norm.valid()),
        }
    }

    fn materialize(self) -> Self {
        match self {
            Self::LayerNorm(norm) => Self::LayerNorm(norm.materialize()),
            Self::RmsNorm(norm) => Self::RmsNorm(norm.materialize()),
        }
    }

    fn visit<Visitor: ModuleVisitor>(&self, visitor: &mut Visitor) {
        match self {
            Self::LayerNorm(norm) => norm.visit(visitor),
            Self::RmsNorm(norm) => norm.visit(visitor),
        }
    }

    fn map<Mapper: ModuleMapper>(self, mapper: &mut Mapper) -> Self {
        match self {
            Self::LayerNorm(norm) => Self::LayerNorm(norm.map(mapper)),
            Self::RmsNorm(norm) => Self::RmsNorm(norm.map(mapper)),
        }
    }
}

impl ModuleDisplayDefault for Norm {
    fn content(&self, content: Content) -> Option<Content> {
        match self {
            Self::LayerNorm(norm) => content.add_single(norm).optional(),
            Self::RmsNorm(norm) => content.add_single(norm).optional(),
        }
    }
}

impl ModuleDisplay for Norm {}

impl fmt::Display for Norm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.format(DisplaySettings::new()))
    }
}
