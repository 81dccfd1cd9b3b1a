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

/// By rank, what each says: numbers of at least 0. Collective.
///
/// # Errors
///
/// When a peer fails.
pub(super) fn of_each<const N: usize>(world: &ProcessGroup, own: [f64; N]) -> Result<Vec<[f64; N]>> {
    let mut told = vec![[0.0; N]; world.size()];
    told[world.rank()] = own;
    let told = world.all_reduce_values(told.as_flattened(), ReduceOp::Max)?;
    Ok(told.as_chunks().0.to_vec())
}
