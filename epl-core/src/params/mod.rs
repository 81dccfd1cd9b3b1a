//! The parameters of a model, and what is known of them.
//!
//! - `record`: what is known of one parameter; checkpoints, norms and reductions read nothing else.
//! - `walk`: the one way over a model's parameters beside their records.
//! - `values`: a parameter with other values.

pub(crate) mod record;
mod values;
pub(crate) mod walk;

pub use record::{Cut, Origin, ParamRecord, Shard};
pub use values::with_values;
pub(crate) use values::{replaced, with};
