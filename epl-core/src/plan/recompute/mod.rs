//! Which segments run their forward again in backward, so that less is stored between the two.
//!
//! ```text
//! segments    0   1   2   3   4   5      runs 1..3 and 3..5 are recomputed
//! stored      a   ┊c      ┊c      a      a  what a stored segment keeps: its activations
//!                 └─run─┘ └─run─┘        c  what a run keeps: the carry that enters it
//! ```
//!
//! [`epl_auto`] places the boundaries as EPL does. [`least_recompute`] is given the bytes that may be stored, and
//! recomputes as little as they allow.

mod error;
mod segment;
mod choice;
mod automatic;
mod least;

pub use automatic::epl_auto;
pub use choice::Recomputation;
pub use error::RecomputeError;
pub use least::{Budget, least_recompute};
pub use segment::SegmentMemory;
