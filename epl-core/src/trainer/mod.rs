//! Many steps: data, schedule, evaluation, saving, and what is shown of them.
//!
//! ```text
//! begin   [before_step   engine.step   after_step   [evaluate   after_evaluation]   [before_save   save]] ...   end
//! ```
//!
//! - [`settings`]: what a run is told; the best checkpoint.
//! - [`stop`]: ends a run from outside, on all ranks after the same step.
//! - [`observer`]: what watches a run, and what it is shown.
//! - `durable`, `json_lines`: files that outlive a crash.
//! - [`metrics_log`]: the log, `metrics.jsonl`.
//! - [`progress`]: a bar, or lines where there is no terminal.
//! - [`curve`]: the loss as a picture.
//! - [`checkpoint`]: saving and resuming under the same layout.
//! - `evaluate`: the loss on other data, and the user's own measures.
//! - `run`: the loop.
//! - [`fit`]: the trainer, which opens a run.

pub mod settings;
pub mod stop;
pub mod observer;
mod durable;
mod json_lines;
pub mod metrics_log;
pub mod progress;
pub mod curve;
pub mod checkpoint;
mod evaluate;
mod run;
pub mod fit;

pub use checkpoint::{Checkpoints, Saved, Which, fingerprint};
pub use curve::Curve;
pub use fit::{Trained, Trainer};
pub use metrics_log::MetricsLog;
pub use observer::{Begin, Evaluation, Observer, StepRecord, Summary};
pub use progress::Progress;
pub use settings::{Best, TrainerConfig};
pub use stop::Stop;
