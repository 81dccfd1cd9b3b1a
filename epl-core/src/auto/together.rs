//! Refusals of one rank, which are of all.

use epl_comm::{ProcessGroup, ReduceOp};

use crate::error::{Error, Result};

/// What this rank has, where all have theirs; else why it has none, or that another one has none: no rank goes on alone to a call
/// that the others do not make. Collective.
///
/// # Errors
///
/// When a peer fails.
pub(super) fn together<T>(world: &ProcessGroup, own: Result<T>, what: &str) -> Result<Result<T>> {
    let is_failed = world.all_reduce_values(&[f64::from(own.is_err())], ReduceOp::Max)?[0] > 0.0;
    Ok(match own {
        Ok(_) if is_failed => Err(Error::invalid(format!("another rank could not {what}"))),
        own => own,
    })
}
