//! One training step: forward and backward segment by segment, reduction, clipping, update.
//!
//! - `micro_batch`, `report`: what goes in and what comes out.
//! - `rank`: the engine; `accumulated`: what a step has before its update.
//! - `state`: what a step changes; what it runs on; `diagnostics`: what it tells beside its report.
//! - `communicators`: the groups over which ranks reduce, gather and send.
//! - `meter`, `memory_usage`: how many bytes of each kind a rank holds, now, at most, and in a trace.
//! - `weights`: the global divisors.
//! - `batches`: whether ranks were given the batches that they are to have in common.
//! - `parameters`: the model, as segments see it.
//! - `tape`: a micro-batch through consecutive segments and back.
//! - `parcel`, `row_exchange`, `links`: what stages send each other; `idle`: how long they wait for each other.
//! - `repeatable`: a segment's forward that does the same again, `draws`: where that takes care; `statistics`: running statistics
//!   over a step.
//! - `run`: the schedule's actions, one after the other; `explained`: what a panic in them means; `step`: from the gradients
//!   to the parameters.
//! - `gradients`, `reduce`: gradients kept, bucketed and summed while backward goes on.
//! - `compress`, `sparse`: fewer bytes for that.
//! - `norm`: the global norm, and `not_finite` why it is none; `local_clip`: each replica's own.
//! - `update`: the optimizer, on what this rank keeps the state of; `one_pass`: where the state lies away from the
//!   device, and `away` what lies there.
//! - `profile`: what segments store and cost, and what is run again because of it.
//! - `recomputation`, `difference`: whether it changes a gradient, and by how much.
//! - `replicas`: whether replicas hold the same bits.
//! - `forward`: segments without a graph, through all stages; `evaluation`: the loss, and what is measured, over many
//!   micro-batches; `decoding`: generation, step after step.
//! - `snapshot`, `states`: what this rank writes of a checkpoint; `restore`, `restore_states`: what it reads of one, or of a
//!   `state_source` in memory; `save`: all ranks together.
//! - `gather`: whole tensors from the ranks' slices, for tests and parity checks.

mod accumulated;
mod away;
mod batches;
mod communicators;
mod compress;
pub(crate) mod difference;
mod decoding;
mod diagnostics;
mod draws;
mod evaluation;
mod explained;
mod forward;
mod flops;
mod gather;
mod gradients;
mod memory_usage;
mod idle;
mod links;
mod local_clip;
mod meter;
mod micro_batch;
mod norm;
mod not_finite;
mod one_pass;
mod parameters;
mod parcel;
mod profile;
mod rank;
mod recomputation;
mod reduce;
mod repeatable;
mod replicas;
mod report;
mod restore;
mod restore_states;
mod row_exchange;
mod run;
mod save;
mod snapshot;
mod sparse;
mod state;
mod state_source;
mod states;
mod statistics;
mod step;
mod tape;
mod update;
mod weights;

pub use crate::plan::{Compression, EngineSettings, TraceWindow};
pub use accumulated::Accumulated;
pub(crate) use batches::Given;
pub use decoding::Decoding;
pub use memory_usage::{MemoryUsage, PeakMemory};
pub use micro_batch::MicroBatch;
pub(crate) use norm::Squares;
pub use rank::Engine;
pub use report::{EvalReport, StepReport};
