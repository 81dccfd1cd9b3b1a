//! Burn's supervised learner (`burn-train`) over ranks; and its metrics and loggers in EPL's evaluators and trainer.
//!
//! A program with `SupervisedTraining` and `Learner` gets [`DataParallel`] as its strategy, and runs as it did: the same
//! batches, metrics, display, early stopping and checkpoints, each batch divided over the ranks by its rows.
//!
//! ```text
//! SupervisedTraining ─ launch ─▶ DataParallel::fit ─▶ a rank a thread, with an engine each
//!
//! loader ──▶ batch ──┬─▶ rows of rank 0 ─▶ TrainStep::step ─▶ gradients ─┐        output ─┐
//!                    └─▶ rows of rank 1 ─▶ TrainStep::step ─▶ gradients ─┴▶ Σ ▶ …  output ─┴▶ whole ─▶ metrics, display
//! ```
//!
//! The other way, [`BurnMetrics`] are measures of an evaluator, and a [`BurnLogger`] is a hook of a trainer.
//!
//! - `strategy`: what a program gives to the learner.
//! - `batch`: a batch, and what of it a rank runs; `feed`: one loader for the ranks of a process.
//! - `output`: outputs of the parts of a batch, put together for the metrics.
//! - `rank`: epochs, as one rank runs them; `shared`: what those of a process have in common; `desk`: what the first rank does for all: events, checkpoints, stopping.
//! - `records`: what the learner keeps in records, for engines, and back; `check`: whether it has the strategy's optimizer.
//! - `metrics`: Burn's metrics for an evaluator; `logger`: its loggers for a trainer.
//!
//! # Features
//!
#![doc = document_features::document_features!()]
#![warn(missing_docs)]

mod batch;
mod feed;
mod output;
mod records;
mod check;
mod desk;
mod shared;
mod rank;
mod strategy;
mod metrics;
mod logger;

pub use logger::BurnLogger;
pub use metrics::BurnMetrics;
pub use output::{Parts, Result, StepOutput};
pub use strategy::DataParallel;
