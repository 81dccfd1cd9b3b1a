//! EPL on Burn: train ordinary Burn models across many devices.
//!
//! Two ranks, threads of this process that share a model's batches, in ten lines:
//!
//! ```
//! use burn::{nn::{Linear, LinearConfig}, optim::SgdConfig, tensor::Tensor};
//! use epl::prelude::*;
//!
//! # fn main() -> epl::Result<()> {
//! let loss = |net: &Linear, inputs: &Tensor<2>| net.forward(inputs.clone()).powi_scalar(2).mean();
//! let losses = epl::launch(&Config::new().with("cluster.ranks", 2)?, |epl| {              // on each rank
//!     let mut net = Engine::build(&epl, |at| WithLoss::new(LinearConfig::new(8, 1).init(at), loss), &SgdConfig::new())?;
//!     let batch = Tensor::ones([16, 8], epl.place().device());                            // the same everywhere: each takes rows of it
//!     (0..10).map(|_| Ok(net.train_batch(&batch, 0.01)?.loss)).collect::<epl::Result<Vec<f64>>>()
//! })?;
//! assert!(losses[0] == losses[1] && losses[0][9] < losses[0][0]);
//! # Ok(())
//! # }
//! ```
//!
//! From here: [`Engine`] makes steps, [`Trainer`] whole runs with data, evaluation and checkpoints, [`Chain`] cuts a model into
//! segments for stages, recomputation and ZeRO v3; [`nn`] has Burn's layers under every strategy, [`models`] whole models with
//! weights of Hugging Face, [`config`] all options. The book is `docs/book` in the repository.
//!
//! This crate is what a user depends on: it re-exports the crates below it and a [`prelude`].
//!
//! ```text
//! epl-launch  <-  epl-comm  <-  epl-core  <-  epl-modules  <-  epl-models  <-  epl
//!                                         <-  epl-train (feature `train`)   <-
//! ```
//!
//! # Features
//!
#![doc = document_features::document_features!()]

pub use epl_core::*;

/// Communication between ranks: `epl-comm`; and of `epl-launch`, where workers meet.
pub mod comm {
    pub use epl_comm::*;
}

/// Burn's layers under every strategy: `epl_modules::nn`.
pub mod nn {
    pub use epl_modules::nn::*;
}

/// Layers that are divided over ranks: `epl-modules`.
pub mod modules {
    pub use epl_modules::*;
}

/// Whole models: `epl-models`.
pub mod models {
    pub use epl_models::*;
}

/// Burn's supervised learner over ranks: `epl-train`.
#[cfg(feature = "train")]
pub mod train {
    pub use epl_train::*;
}

/// What most programs need.
pub mod prelude {
    pub use epl_core::config::Config;
    pub use epl_core::trainer::{Trainer, TrainerConfig};
    pub use epl_core::{
        Chain, Context, Decay, Engine, EngineSettings, Epl, Error, LearningRate, Loss, LossWeights, LrSchedule,
        MicroBatch, Model, Place, Result, Strategy, WithLoss, launch,
    };
}

/// The code in these pages compiles; `cargo test` sees to it.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;

    #[doc = include_str!("../examples/README.md")]
    struct Examples;

    #[doc = include_str!("../ARCHITECTURE.md")]
    struct Architecture;

    /// A page of the book.
    macro_rules! page {
        ($($name:ident: $path:literal),+) => {
            $(#[doc = include_str!(concat!("../docs/book/src/", $path))]
            struct $name;)+
        };
    }

    page! {
        Start: "start.md",
        Own: "own.md",
        Learner: "learner.md",
        BurnIssues: "burn_issues.md",
        Auto: "strategies/auto.md",
        MixedPrecision: "strategies/mixed-precision.md",
        Evaluating: "evaluating.md",
        HuggingFace: "huggingface.md",
        Seeing: "seeing.md"
    }
}
