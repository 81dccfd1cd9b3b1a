//! Operations with a gradient of their own.
//!
//! | file | what |
//! |---|---|
//! | `custom_vjp` | any forward and backward function as one differentiable operation |
//! | `inputs` | its inputs: tuples of tensors |
//! | `step` | what Burn's tape runs |
//! | `operations` | what operations take |

mod inputs;
mod operations;
mod step;
mod custom_vjp;

pub use custom_vjp::{custom_vjp, custom_vjp_needed};
pub use inputs::VjpInputs;
pub use operations::{OperationPhase, OperationProfile, count_work, profile_operations, timed};
