//! Layout plus one record per parameter: resolved, immutable, printable. A `PlanBuilder` makes it, and
//! another one where something else is asked.
//!
//! - `builder`: from the configuration, the survey of a model, the mesh and the optimizer to a plan.
//! - `settings`: how a step is made, beside what lies where.
//! - `resolved`: the plan.
//! - `batch_views`: a micro-batch, as the segments and the loss of a plan see it.
//! - `units`: the buckets, divided.
//! - [`recompute`]: what is run again in backward, from numbers.
//! - `fuse`: EPL's rule by which tensors share a bucket.
//! - `bucket`: which gradients are reduced together, and in which order.
//! - `shards`: who keeps which elements of a bucket, under ZeRO.
//! - `owners`: to whom a segment belongs.
//! - `layers`: layers by number, as LiBai has them.
//! - `stages`: which stage runs which segments.
//! - `order`: in which order it runs them for several micro-batches.
//! - `kept`: which segments are run again in backward.
//! - `burn_layers`: layers of Burn that need something of a plan.
//! - `finding`: what was found of a segment whose layers do not divide themselves.
//! - `split`: segments that run in slices, though nothing in them knows of it.
//! - `survey`: reads names, shapes and layers from a lazy model without drawing anything.
//! - `memory`: what an estimate of bytes reads from it.
//! - `display`: the printed plan.

pub mod recompute;
mod fuse;
pub(crate) mod bucket;
mod settings;
mod display;
mod shards;
mod units;
mod resolved;
pub(crate) mod batch_views;
mod owners;
mod layers;
pub(crate) mod stages;
mod order;
pub(crate) mod kept;
pub(crate) mod burn_layers;
mod finding;
pub(crate) mod split;
pub(crate) mod survey;
mod memory;
pub(crate) mod builder;

pub use crate::params::{Bucket, Cut, ParamOrigin, ParamRecord, ParamTable, Shard, with_values};
pub use finding::{ExitSplit, SegmentSplit, SplitFinding};
pub use fuse::fuse;
pub use order::Order;
pub use resolved::Plan;
pub use settings::{Compression, EngineSettings, TraceWindow};
