//! Batches: drawn first, cut to the layout afterwards.
//!
//! ```text
//! Sampler        the global batch that follows `position` samples      pure; knows no layout
//!   -> cut       which rows of it this replica runs, micro by micro    pure
//!   -> Loader    dataset -> batcher -> Vec<MicroBatch> a step          on a thread, a bounded queue ahead
//! ```
//!
//! Which samples make up a step, and the *global sample number* of each of them, follow from the seed and from how
//! many samples were drawn before. The layout only decides who runs them.
//!
//! - [`sampler`]: what a sampler is; a global batch.
//! - `epoch`: the permutation of one epoch.
//! - [`shuffled`], [`length`]: the two samplers.
//! - [`cut`](mod@cut): from a global batch to the rows of one micro-batch.
//! - [`rows`]: batches that every rank has whole.
//! - [`source`]: a Burn dataset and a batcher.
//! - [`prefetch`]: a thread that works ahead.
//! - [`loader`]: the steps of a training run.
//! - [`evaluation`]: one pass over a dataset.

pub mod sampler;
mod epoch;
pub mod shuffled;
pub mod length;
pub mod cut;
pub mod rows;
pub mod source;
pub mod prefetch;
pub mod loader;
pub mod evaluation;

pub use cut::{Share, cut};
pub use evaluation::{EvaluationLoader, ValidData};
pub use length::{LengthSampler, LengthSamplerConfig};
pub use loader::{Loader, Step, TrainData};
pub use rows::{Rows, micro_batches};
pub use sampler::{GlobalBatch, Sampler};
pub use shuffled::ShuffledSampler;
pub use source::Source;
