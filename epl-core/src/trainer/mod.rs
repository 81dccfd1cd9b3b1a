//! Many steps: data, schedule, and the hooks that show, write, evaluate, save and end a run.
//!
//! ```text
//! before_run
//!   [ before_step   load, engine.step   after_step   between_steps
//!       [ before_save         save       after_save       ]    if a hook asked for it
//!       [ before_evaluation   evaluate   after_evaluation ] ]  if a hook asked for it; it may ask to save
//! after_run
//!
//! every method: folder, log, curve, progress │ stop, check, save, best, evaluation, measures │ the user's hooks
//!               on the first rank (log … progress)   on every rank, in the same order
//! ```
//!
//! - [`learning_rate`]: the rate of each step.
//! - [`settings`]: what a run is told; the best checkpoint.
//! - [`stop`]: asks a run to end from outside.
//! - `interruption`: what a signal does to a run that was told nothing of signals.
//! - [`record`]: what a run tells: of a step, of an evaluation, of its end.
//! - `json_lines`: files that outlive a crash.
//! - `plot`: lines over steps, as a picture; `compared`: those of several runs.
//! - [`lock`]: one run at a time in a folder.
//! - [`launch_mark`]: which launch a run's folder belongs to.
//! - [`checkpoint`]: the checkpoints of a run.
//! - [`run`]: a run as its hooks see it.
//! - [`hook`]: what takes part in a run.
//! - [`hooks`]: the trainer's own.
//! - `cycle`: the loop.
//! - [`fit`]: the trainer, which puts a run together.

pub mod learning_rate;
pub mod settings;
pub mod stop;
mod interruption;
pub mod record;
pub(crate) mod json_lines;
mod plot;
mod compared;
pub mod lock;
pub mod launch_mark;
pub mod checkpoint;
pub mod run;
pub mod hook;
pub mod hooks;
mod cycle;
pub mod fit;

pub use checkpoint::{CheckpointId, Checkpoints, FailedSave, RunState, fingerprint};
pub use compared::plot_runs;
pub use fit::{Trained, Trainer};
pub use hook::Hook;
pub use hooks::{Curve, MetricsLog, Progress, TensorBoard};
pub use lock::check_unused;
pub use record::{Evaluation, StepRecord, StepValue, Summary};
pub use run::Run;
pub use settings::{Best, TrainerConfig};
pub use stop::StopHandle;
