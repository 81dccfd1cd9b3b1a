//! What all ranks do, or none: refusals of one rank are of all.

use epl_comm::{ProcessGroup, ReduceOp};

use crate::error::{Error, Result};

/// What this rank has, where all have theirs; else why it has none, or that another one has none: no rank goes on alone to a call
/// that the others do not make. Collective.
///
/// # Errors
///
/// When a peer fails.
pub(super) fn together<T>(world: &ProcessGroup, own: Result<T>, what: &str) -> Result<Result<T>> {
    let all_have = all(world, own.is_ok())?;
    Ok(match own {
        Ok(_) if !all_have => Err(Error::invalid(format!("another rank could not {what}"))),
        own => own,
    })
}

/// Whether it is so on every rank. Collective.
///
/// # Errors
///
/// When a peer fails.
pub(super) fn all(world: &ProcessGroup, is_so: bool) -> Result<bool> {
    Ok(world.all_reduce_values(&[f64::from(is_so)], ReduceOp::Min)?[0] > 0.0)
}
