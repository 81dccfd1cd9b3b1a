//! Losses: `burn::nn::loss`, in f32 at least.
//!
//! Under mixed precision a loss that is computed inside a segment gets outputs in 16 bits, beside targets that may have f32. Each
//! loss of this module raises what it is given in 16 bits to f32, and is Burn's of that: the result is f32, and a gradient
//! returns in the type of what was given. Of f32 and f64 it is Burn's very call.
//!
//! Errors are Burn's. Over replicas and micro-batches a loss that is a mean over rows needs nothing: the engine weighs it by rows.
//! A [`CrossEntropyLoss`] with `weights` or `pad_tokens` is a mean over these, of another number in each micro-batch: its model
//! says so, with [`WithLoss::weighted_by`](epl_core::WithLoss::weighted_by). [`Reduction::Sum`] is no mean: a model with such a
//! loss implements [`Model`](epl_core::Model), whose `weights` say what its sum is divided by; those of
//! [`cross_entropy`](crate::cross_entropy) are sums.

use burn::tensor::{AsIndex, Int, Tensor};
use epl_core::model::precision::widen;

// As it is.
pub use burn::nn::loss::Reduction;

/// What a loss is given.
trait Argument {
    /// The same in f32 at least, if it has a type.
    fn raised(self) -> Self;
}

impl<const D: usize> Argument for Tensor<D> {
    fn raised(self) -> Self {
        widen(self)
    }
}

impl<const D: usize> Argument for Tensor<D, Int> {
    fn raised(self) -> Self {
        self
    }
}

impl Argument for Reduction {
    fn raised(self) -> Self {
        self
    }
}

impl<I: AsIndex> Argument for &[I] {
    fn raised(self) -> Self {
        self
    }
}

/// A loss with a configuration, around Burn's, whose fields it shows. The configuration has the fields of Burn's.
macro_rules! configured {
    ($(#[$doc:meta])* $loss:ident, $config:ident($($device:ident)?) {
        $($(#[$of_field:meta])* $field:ident: $type:ty,)*
    }) => {
        #[doc = concat!("Configuration to create a [`", stringify!($loss), "`] using the [init function](Self::init).")]
        #[derive(burn::config::Config, Debug)]
        pub struct $config {
            $($(#[$of_field])* pub $field: $type,)*
        }

        impl $config {
            #[doc = concat!("Initializes a new [`", stringify!($loss), "`].")]
            ///
            /// # Panics
            ///
            /// As Burn's.
            pub fn init(&self $(, $device: &burn::tensor::Device)?) -> $loss {
                let Self { $($field),* } = self.clone();
                burn::nn::loss::$config { $($field),* }.init($($device)?).into()
            }
        }

        $(#[$doc])*
        #[doc = concat!("Should be created with [`", stringify!($config), "`].")]
        #[derive(burn::module::Module, Debug)]
        #[module(custom_display)]
        pub struct $loss {
            burns: burn::nn::loss::$loss,
        }

        impl $loss {
            fn burns(&self) -> &burn::nn::loss::$loss {
                &self.burns
            }
        }

        impl From<burn::nn::loss::$loss> for $loss {
            fn from(burns: burn::nn::loss::$loss) -> Self {
                Self { burns }
            }
        }

        impl core::ops::Deref for $loss {
            type Target = burn::nn::loss::$loss;

            fn deref(&self) -> &Self::Target {
                &self.burns
            }
        }

        impl core::ops::DerefMut for $loss {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.burns
            }
        }

        impl burn::module::ModuleDisplay for $loss {
            fn custom_settings(&self) -> Option<burn::module::DisplaySettings> {
                burn::module::ModuleDisplay::custom_settings(&self.burns)
            }

            fn custom_content(&self, content: burn::module::Content) -> Option<burn::module::Content> {
                burn::module::ModuleDisplay::custom_content(&self.burns, content)
            }
        }
    };
}

/// A loss without a configuration.
macro_rules! plain {
    ($(#[$doc:meta])* $loss:ident) => {
        $(#[$doc])*
        #[derive(burn::module::Module, Debug, Default)]
        pub struct $loss;

        impl $loss {
            /// Creates the loss.
            pub fn new() -> Self {
                Self
            }

            fn burns(&self) -> &burn::nn::loss::$loss {
                &burn::nn::loss::$loss
            }
        }
    };
}

/// The methods of a loss: Burn's, of arguments in f32 at least.
macro_rules! raised {
    ($loss:ident: $(
        $method:ident$(<const $dims:ident>)?($($argument:ident: $type:ty),*) -> $result:ty;
    )+) => {
        impl $loss {
            $(
                #[doc = concat!(
                    "[Burn's](burn::nn::loss::", stringify!($loss), "::", stringify!($method), "), which says the shapes and \
                     the errors, of what is given in f32 at least."
                )]
                pub fn $method$(<const $dims: usize>)?(&self, $($argument: $type),*) -> $result {
                    self.burns().$method($($crate::nn::loss::Argument::raised($argument)),*)
                }
            )+
        }
    };
}

mod classes;
mod numbers;
mod pairs;
mod sequences;

pub use classes::{
    BinaryCrossEntropyLoss, BinaryCrossEntropyLossConfig, CrossEntropyLoss, CrossEntropyLossConfig, MultiMarginLoss,
    MultiMarginLossConfig, SoftMarginLoss,
};
pub use numbers::{
    GaussianNLLLoss, GaussianNLLLossConfig, HuberLoss, HuberLossConfig, KLDivLoss, KLDivLossConfig, LpLoss,
    LpLossConfig, MseLoss, PoissonNllLoss, PoissonNllLossConfig, SmoothL1Loss, SmoothL1LossConfig,
};
pub use pairs::{
    CosineEmbeddingLoss, CosineEmbeddingLossConfig, HingeEmbeddingLoss, HingeEmbeddingLossConfig, MarginRankingLoss,
    MarginRankingLossConfig, TripletMarginLoss, TripletMarginLossConfig,
};
pub use sequences::{CTCLoss, CTCLossConfig, RNNTLoss, RNNTLossConfig};
