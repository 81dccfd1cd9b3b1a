//! How a layer refuses what its user asked for.
//!
//! Burn's `init` and `forward` return no `Result`. A layer that cannot be built, or whose input does not fit,
//! unwinds with an [`epl_comm::Error`]; the launch, or the step, catches it and returns it as an `Err`.

use epl_comm::{Error, unwind};

/// Unwinds with what is wrong: both numbers and the remedy.
#[cold]
pub(crate) fn refuse(message: String) -> ! {
    unwind(Error::invalid(message))
}
