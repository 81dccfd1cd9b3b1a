//! Measures over a validation set: sums over its samples, added up over the replicas once.
//!
//! ```text
//! ValidData ──▶ micro-batch ──stages──▶ output ──add──▶ sums of this rank ──all_reduce──▶ sums ──▶ named values
//!               one pass                one for         each measure has its          once         one or more
//!                                       all measures    part of one vector                         a measure
//! ```
//!
//! Outputs are made on the last stage, of what leaves the last segment; no rank has more of the model than in training.
//!
//! A sample counts once, whatever the layout: the last, uneven batch is divided over the replicas, a stand-in is run
//! and not added, and of the ranks that hold parts of one replica one is counted.
//!
//! A measure of whole batches is shown those that one rank would run: each replica runs one of them at a time, and their outputs
//! are brought to one rank, in the order of the rows.
//!
//! - [`measure`]: what a measure is; its named values.
//! - [`batch_measure`]: what a measure of whole batches is.
//! - [`evaluator`]: one pass over a validation set for several measures.
//! - [`classified`]: what a classifier said of some samples.
//! - [`accuracy`]: the share of samples whose class is among the first k.
//! - [`f1`]: F1 over classes: macro, micro, of one class.
//! - [`loss`]: the mean of a loss term, and its perplexity.

pub mod measure;
pub mod batch_measure;
pub mod evaluator;
pub mod classified;
pub mod accuracy;
pub mod f1;
pub mod loss;

pub use accuracy::Accuracy;
pub use batch_measure::{BatchMeasure, BatchPart};
pub use classified::Classified;
pub use evaluator::Evaluator;
pub use f1::{Average, F1};
pub use loss::{LossTerms, MeanLoss, Perplexity};
pub use measure::{Measure, Values, join};
