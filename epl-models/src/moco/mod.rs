//! MoCo v3: a ViT that learns images without classes, by telling views of an image from those of others.
//!
//! ```text
//!               encoder (learns)            momentum encoder (follows)
//! segment 0     patches ─ layer             patches ─ layer            ─┐ carry, of each of two views:
//! segments 1..L layer                       layer                       │ [rows, patches + 1, d_model], twice
//! segment L     norm ─ projector ─ predictor   norm ─ projector        ─┘ [rows, 1, dim], twice
//! loss          queries of a view against the other view's keys, of all replicas
//! ```
//!
//! The queries come from the encoder, the keys from the momentum encoder, whose parameters are
//! [moving averages](epl_core::Place::moving_average) of the encoder's, and through which no gradient goes.
//!
//! **What a query is told from** are the keys of its micro-batch, of all replicas: their number changes nothing, nor does it
//! change the batch norms of projector and predictor, which are over the same rows. Each micro-batch of a step is contrasted by
//! itself: several are not the same as one large one, and then which images stand beside each other depends on the number of
//! replicas, too. Who wants the whole batch gives a step one micro-batch (`pipeline.num_micro_batch = 1`, which stages run as
//! well, one after the other).
//!
//! **An evaluation** ([`ValidData`](epl_core::data::ValidData)) goes in rounds of `batch` images on each replica, and a query is told
//! from those of its round: give `batch` as the images of a round divided by the replicas where losses of several layouts are compared.
//!
//! - [`config`]: the shape of a model; [`batch`]: two views of each image as tensors, such as [`Views`](crate::vision::Views) makes;
//! - [`head`]: projector and predictor; [`encoder`]: what a model has twice;
//! - [`model`]: the whole; `contrast`: its loss; [`segments`]: the whole as a chain for the engine.
//!
//! *An Empirical Study of Training Self-Supervised Vision Transformers*, Chen, Xie and He, 2021
//! ([arXiv:2104.02057](https://arxiv.org/abs/2104.02057)).

pub mod config;
pub mod batch;
pub mod head;
pub mod encoder;
pub mod model;
mod contrast;
pub mod segments;

pub use batch::{MocoBatch, MocoBatcher};
pub use config::MocoConfig;
pub use encoder::MocoEncoder;
pub use head::MocoHead;
pub use model::{Moco, encoder_map};
pub use segments::ViewStates;
