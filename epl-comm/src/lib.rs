//! Move tensors between ranks.
#![warn(missing_docs)]

mod rank;
mod error;
mod operation;
mod buffer;
mod transport;
mod trace;
mod pending;
mod process_group;
mod autodiff;
mod layout;
pub mod local;
pub mod testing;

pub use autodiff::{VjpInputs, all_to_all_rows, custom_vjp};
pub use buffer::Buffer;
pub use error::{Error, Result, catch, unwind};
pub use layout::{Copied, Partial, Split, copied, sliced};
pub use operation::{Call, Operation, ReduceOp};
pub use pending::Pending;
pub use process_group::ProcessGroup;
pub use rank::{Rank, shard_range};
pub use trace::{Event, EventKind, Trace};
pub use transport::Transport;
