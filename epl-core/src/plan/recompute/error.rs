//! What can be wrong with a choice of what to recompute.

use crate::schedule::partition::CostError;

/// A chain and a budget that do not fit together, with both numbers and the remedy.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RecomputeError {
    /// Nothing to choose from.
    #[error("the chain has 0 segments; it must have at least 1")]
    NoSegment,
    /// One list is longer than the other.
    #[error("{segments} segments are measured, but {kinds} have a kind; give one kind for every segment")]
    KindsDisagree {
        /// Segments measured.
        segments: usize,
        /// Kinds given.
        kinds: usize,
    },
    /// A forward cost that cannot be compared.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// No micro-batch would ever be stored.
    #[error("0 micro-batches are in flight; at least 1 is, the one whose backward runs")]
    NoneInFlight,
    /// The bytes do not fit a number.
    #[error(
        "{in_flight} micro-batches in flight of {segments} segments store more than {} bytes; \
         check the segments' bytes",
        u64::MAX
    )]
    TooManyBytes {
        /// Micro-batches in flight.
        in_flight: u64,
        /// Segments of the chain.
        segments: usize,
    },
    /// No choice stays within the budget.
    #[error(
        "{budget} bytes are allowed, but with {in_flight} micro-batches in flight the smallest choice stores {needed}; \
         allow {needed} bytes, or use smaller micro-batches, more stages, or segments cut smaller"
    )]
    BudgetTooSmall {
        /// Bytes that may be stored.
        budget: u64,
        /// Micro-batches in flight.
        in_flight: u64,
        /// The least peak of all choices.
        needed: u64,
    },
    /// The search would not end in useful time.
    #[error(
        "{segments} segments have more than {most} choices of almost equal merit; \
         round their bytes and costs, so that segments alike measure the same, or use fewer segments"
    )]
    TooManyChoices {
        /// Segments of the chain.
        segments: usize,
        /// Choices that are compared at most.
        most: usize,
    },
}
