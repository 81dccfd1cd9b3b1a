//! Cross-entropy over classes that are split over the tensor axis, without gathering them.
//!
//! A rank holds the logits of its classes. Two numbers a row cross the axis, whatever the number of classes:
//! the largest logit, then the sum of the exponentials (with the target's logit, and the sum of the logits when
//! labels are smoothed). The gradient, softmax − target, is local.
//!
//! ```text
//! m = max x          all-reduce (max)
//! s = Σ e^(x − m)    t = x[target] − m    u = Σ (x − m)        all-reduce (sum)
//! loss of a row = ln s − (1 − ε) t − ε u / classes
//! ```
//!
//! A row may have two classes with shares, as of two images that are mixed: then t is that of both by their shares.

mod targets;
mod classes;
mod rows;
mod tensors;
mod loss;

pub use loss::{SplitCrossEntropy, SplitCrossEntropyConfig, token_weight};
pub use targets::{MixedTargets, Targets};
