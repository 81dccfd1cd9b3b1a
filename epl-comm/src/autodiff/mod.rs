//! Operations with a gradient of their own.
//!
//! | file | what |
//! |---|---|
//! | `custom_vjp` | any forward and backward function as one differentiable operation |
//! | `inputs` | its inputs: tuples of tensors |
//! | `step` | what Burn's tape runs |
//! | `collectives` | collectives with their transposes |

mod inputs;
mod step;
mod custom_vjp;
mod collectives;

pub use collectives::all_to_all_rows;
pub(crate) use collectives::{
    all_gather_of_copied, all_gather_of_split, all_reduce_of_partial, exchange_of_split, reduce_scatter_of_partial,
    slice_of_replicated, to_copied,
};
pub use custom_vjp::custom_vjp;
pub use inputs::VjpInputs;
