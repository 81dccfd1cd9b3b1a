//! Batches: drawn first, cut to the layout afterwards.
//!
//! ```text
//! Sampler        the global batch that follows `position` samples      pure; knows no layout
//!   -> cut       which rows of it this replica runs, micro by micro    pure
//!   -> Loader    dataset -> batcher -> Vec<MicroBatch> a step          on threads, a bounded queue ahead
//! ```
//!
//! Which samples make up a step, and the *global sample number* of each of them, follow from the seed and from how
//! many samples were drawn before. The layout only decides who runs them. So the position, a count of samples, is all
//! that a resumed run needs, on any number of ranks. [`LengthSampler`] alone wants to go on with its own bounds, as these
//! decide its order.
//!
//! Data may end, after so many epochs: then the run ends on all ranks after the same step, however uneven their data is.
//!
//! - [`sampler`]: what a sampler is; a global batch.
//! - `epoch`: the permutation of one epoch.
//! - [`shuffled`], [`length`]: two samplers.
//! - [`slicing`]: which files a replica reads.
//! - `file_sampler`: the sampler of files.
//! - `sliced_files`: files as one dataset.
//! - [`cut`](mod@cut): from a global batch to the rows of one micro-batch.
//! - [`rows`]: batches that every rank has whole.
//! - [`source`]: a Burn dataset and a batcher, which may know the samples' numbers.
//! - [`prefetch`]: threads that work ahead.
//! - [`loader`]: the steps of a training run.
//! - [`evaluation`]: one pass over a dataset.

pub mod sampler;
mod epoch;
pub mod shuffled;
pub mod length;
pub mod slicing;
mod file_sampler;
pub mod cut;
pub mod rows;
pub mod source;
mod sliced_files;
pub mod prefetch;
pub mod loader;
pub mod evaluation;

pub use cut::{BatchShard, cut};
pub(crate) use evaluation::Division;
pub use evaluation::{EvaluationLoader, ValidData};
pub use file_sampler::{FileSampler, FileSamplerConfig};
pub use length::{LengthSampler, LengthSamplerConfig};
pub use loader::{Loader, StepData, TrainData};
pub use prefetch::PrefetchConfig;
pub use rows::{Rows, micro_batches};
pub use sampler::{GlobalBatch, Owned, Sampler};
pub use shuffled::ShuffledSampler;
pub use sliced_files::SlicedFiles;
pub use slicing::{FileSlices, SliceRule};
pub use source::{DataSource, Sample, SampleBatcher, Samples};
