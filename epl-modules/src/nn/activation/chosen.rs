//! An activation that is chosen by its configuration.

use burn::config::Config;
use burn::module::Module;
use burn::nn::Identity;
use burn::nn::activation::{
    Celu, CeluConfig, Elu, EluConfig, HardShrink, HardShrinkConfig, HardSigmoid, HardSigmoidConfig, HardSwish,
    LeakyRelu, LeakyReluConfig, Selu, Shrink, ShrinkConfig, SoftShrink, SoftShrinkConfig, Softplus, SoftplusConfig,
    Softsign, ThresholdedRelu, ThresholdedReluConfig,
};
use burn::tensor::Tensor;
use epl_core::Place;
use epl_core::model::precision::in_wide;

use super::elementwise::{Gelu, Relu, Sigmoid, Tanh};
use super::prelu::{PRelu, PReluConfig};
use super::swiglu::{SwiGlu, SwiGluConfig};

/// Makes the enums of activations, which Burn's have the same variants as, so that their parameters have the same paths.
macro_rules! activations {
    (
        own: $($own:ident = $made:expr),+;
        plain: $($plain:ident = $new:expr),+;
        configured: $($with:ident($with_config:ident)),+;
        learned: $($learned:ident($learned_config:ident)),+
    ) => {
        /// Configuration to create an [`Activation`] using the [init function](ActivationConfig::init).
        #[derive(Config, Debug)]
        #[non_exhaustive]
        pub enum ActivationConfig {
            $(#[doc = concat!("[`", stringify!($own), "`]")]
            $own,)+
            $(#[doc = concat!("[`", stringify!($plain), "`]")]
            $plain,)+
            /// [`Gelu`], approximated by tanh
            GeluApproximate,
            $(#[doc = concat!("[`", stringify!($with), "`]")]
            $with($with_config),)+
            $(#[doc = concat!("[`", stringify!($learned), "`]")]
            $learned($learned_config),)+
        }

        /// One of the activations.
        #[derive(Module, Debug)]
        #[non_exhaustive]
        #[allow(clippy::large_enum_variant, reason = "as Burn's: a model has few, and they are not moved")]
        pub enum Activation {
            $(#[doc = concat!("[`", stringify!($own), "`]")]
            $own($own),)+
            $(#[doc = concat!("[`", stringify!($plain), "`]")]
            $plain($plain),)+
            $(#[doc = concat!("[`", stringify!($with), "`]")]
            $with($with),)+
            $(#[doc = concat!("[`", stringify!($learned), "`]")]
            $learned($learned),)+
        }

        $(impl From<$own> for Activation {
            fn from(layer: $own) -> Self {
                Self::$own(layer)
            }
        })+

        $(impl From<$plain> for Activation {
            fn from(layer: $plain) -> Self {
                Self::$plain(layer)
            }
        })+

        $(impl From<$with> for Activation {
            fn from(layer: $with) -> Self {
                Self::$with(layer)
            }
        }

        impl From<$with_config> for ActivationConfig {
            fn from(config: $with_config) -> Self {
                Self::$with(config)
            }
        })+

        $(impl From<$learned> for Activation {
            fn from(layer: $learned) -> Self {
                Self::$learned(layer)
            }
        }

        impl From<$learned_config> for ActivationConfig {
            fn from(config: $learned_config) -> Self {
                Self::$learned(config)
            }
        })+

        impl ActivationConfig {
            /// Initializes a new [`Activation`].
            ///
            /// # Errors
            ///
            /// As the activation's own configuration.
            pub fn init(&self, place: &Place) -> Activation {
                match self {
                    $(Self::$own => Activation::$own($made),)+
                    $(Self::$plain => Activation::$plain($new),)+
                    Self::GeluApproximate => Activation::Gelu(Gelu::new_approximate()),
                    $(Self::$with(config) => Activation::$with(config.init()),)+
                    $(Self::$learned(config) => Activation::$learned(config.init(place)),)+
                }
            }
        }

        impl Activation {
            /// Applies the activation. What has no parameters is computed in f32 at least.
            ///
            /// # Shapes
            ///
            /// As the activation's own.
            pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
                match self {
                    $(Self::$own(layer) => layer.forward(input),)+
                    $(Self::$plain(layer) => in_wide(input, |input| layer.forward(input)),)+
                    $(Self::$with(layer) => in_wide(input, |input| layer.forward(input)),)+
                    $(Self::$learned(layer) => layer.forward(input),)+
                }
            }
        }
    };
}

activations! {
    own:
        Gelu = Gelu::new(), Relu = Relu, Sigmoid = Sigmoid, Tanh = Tanh;
    plain:
        Identity = Identity::new(), Selu = Selu, HardSwish = HardSwish, Softsign = Softsign;
    configured:
        LeakyRelu(LeakyReluConfig), HardSigmoid(HardSigmoidConfig), Softplus(SoftplusConfig), Elu(EluConfig),
        Celu(CeluConfig), ThresholdedRelu(ThresholdedReluConfig), HardShrink(HardShrinkConfig),
        SoftShrink(SoftShrinkConfig), Shrink(ShrinkConfig);
    learned:
        PRelu(PReluConfig), SwiGlu(SwiGluConfig)
}
