//! The trainer's own hooks. Each could be a user's: they use what every hook may use.
//!
//! In the order in which a trainer calls them:
//!
//! - `folder`: opens the folder of a run, new or to be resumed.
//! - `metrics_log`: the log, `metrics.jsonl`. On the first rank only, as the next three.
//! - `tensorboard`: the same numbers as events of TensorBoard.
//! - `curve`: the loss as a picture.
//! - `progress`: a bar, or lines where there is no terminal.
//! - `stopping`: ends the run on all ranks after the same step. From here on all know whether it was the last.
//! - `replicas`: checks that replicas hold the same bits, also before they are saved.
//! - `saving`: saves every so many steps.
//! - `best`: keeps the best checkpoint.
//! - `prediction`: holds a predicted step against those of the run.
//! - `evaluating`: evaluates every so many steps; the loss on other data, and measures of one's own.

mod folder;
mod metrics_log;
mod tensorboard;
mod curve;
mod progress;
mod stopping;
mod replicas;
mod saving;
mod best;
mod prediction;
mod evaluating;

pub use best::KeepBest;
pub use curve::Curve;
pub use evaluating::{EvaluateEvery, EvaluateWith, ValidLoss};
pub use folder::OpenFolder;
pub use metrics_log::MetricsLog;
pub use prediction::CheckPrediction;
pub use progress::Progress;
pub use replicas::CheckReplicas;
pub use saving::SaveEvery;
pub use stopping::StopOnRequest;
pub use tensorboard::TensorBoard;
