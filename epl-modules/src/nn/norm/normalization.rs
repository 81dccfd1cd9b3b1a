//! A norm that is chosen by its configuration.

use burn::config::Config;
use burn::module::Module;
use burn::nn::Identity;
use burn::tensor::Tensor;
use epl_core::Place;

use super::batch::{BatchNorm, BatchNormConfig};
use super::group::{GroupNorm, GroupNormConfig, InstanceNorm, InstanceNormConfig};
use crate::norm::{LayerNorm, LayerNormConfig, RmsNorm, RmsNormConfig};

/// Makes the enums of norms, which Burn's have the same variants as, so that their parameters have the same paths.
macro_rules! norms {
    ($($variant:ident($layer:ident, $config:ident: $features:ident)),+) => {
        /// Configuration to create a [`Normalization`] using the [init function](NormalizationConfig::init).
        ///
        /// It may be made with any number of features, and given those of its input by
        /// [`with_num_features`](Self::with_num_features).
        #[derive(Config, Debug)]
        #[non_exhaustive]
        pub enum NormalizationConfig {
            /// Nothing.
            Identity,
            $(#[doc = concat!("That of a [`", stringify!($layer), "`].")]
            $variant($config),)+
        }

        /// One of the norms.
        #[derive(Module, Debug)]
        #[non_exhaustive]
        pub enum Normalization {
            /// Nothing.
            Identity(Identity),
            $(#[doc = concat!("A [`", stringify!($layer), "`].")]
            $variant($layer),)+
        }

        impl From<Identity> for Normalization {
            fn from(layer: Identity) -> Self {
                Self::Identity(layer)
            }
        }

        $(impl From<$config> for NormalizationConfig {
            fn from(config: $config) -> Self {
                Self::$variant(config)
            }
        }

        impl From<$layer> for Normalization {
            fn from(layer: $layer) -> Self {
                Self::$variant(layer)
            }
        })+

        impl NormalizationConfig {
            /// Initializes a new [`Normalization`].
            ///
            /// # Errors
            ///
            /// As the norm's own configuration.
            pub fn init(&self, place: &Place) -> Normalization {
                match self {
                    Self::Identity => Identity::new().into(),
                    $(Self::$variant(config) => config.init(place).into(),)+
                }
            }

            /// The same norm for another number of features.
            #[must_use]
            pub fn with_num_features(self, num_features: usize) -> Self {
                match self {
                    Self::Identity => self,
                    $(Self::$variant(config) => $config { $features: num_features, ..config }.into(),)+
                }
            }

            /// The number of features; 0 for none.
            pub fn num_features(&self) -> usize {
                match self {
                    Self::Identity => 0,
                    $(Self::$variant(config) => config.$features,)+
                }
            }
        }

        impl Normalization {
            /// Applies the norm: see there for the shapes and errors.
            pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
                match self {
                    Self::Identity(norm) => norm.forward(input),
                    $(Self::$variant(norm) => norm.forward(input),)+
                }
            }

            /// The number of features; 0 for none.
            pub fn num_features(&self) -> usize {
                match self {
                    Self::Identity(_) => 0,
                    $(Self::$variant(norm) => norm.$features,)+
                }
            }
        }
    };
}

norms! {
    Batch(BatchNorm, BatchNormConfig: num_features),
    Group(GroupNorm, GroupNormConfig: num_channels),
    Instance(InstanceNorm, InstanceNormConfig: num_channels),
    Layer(LayerNorm, LayerNormConfig: d_model),
    Rms(RmsNorm, RmsNormConfig: d_model)
}
