//! The parameters of a model: what is known of them, and where they are.
//!
//! - `record`: what is known of one parameter; checkpoints, norms and reductions read nothing else.
//! - `unit`: parameters that travel and lie as one flat tensor, and where each of them lies in it.
//! - `residency`: where a unit's parameters, gradients and optimizer state lie between their uses.
//! - `table`: all records and units of a rank.
//! - `walk`: the one way over a model's parameters beside their records.
//! - `values`: a parameter with other values.
//! - `storage`: the means to keep state away from the device.
//! - `store`: a model whose parameters lie where their residency says.
//! - `statistics`: running statistics of Burn's layers.
//! - `averages`: parameters that follow others.
//! - `init`: first values.

pub(crate) mod record;
pub(crate) mod residency;
mod unit;
mod table;
mod values;
pub(crate) mod walk;
pub(crate) mod storage;
pub(crate) mod store;
pub(crate) mod statistics;
pub(crate) mod averages;
pub(crate) mod init;

pub use record::{Cut, ParamOrigin, ParamRecord, Shard};
pub use residency::{Form, Home, Residency};
pub use table::ParamTable;
pub use unit::{Bucket, Slot};
pub use values::with_values;
pub(crate) use values::{replaced, with};
