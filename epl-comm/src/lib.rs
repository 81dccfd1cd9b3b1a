//! Move tensors between ranks.
//!
//! A *rank* is one device driven by one thread. Ranks meet in *groups* and run *collectives*: operations in which all
//! members of a group take part, each with a tensor of its own.
//!
//! ```text
//!        rank 0                              rank 1                      what it is
//! ┌──────────────────────┐          ┌──────────────────────┐
//! │ Copied Split Partial │          │ Copied Split Partial │   layouts: which member holds what, as types
//! │    differentiable    │          │    differentiable    │   collectives that are part of a graph
//! ├──────────────────────┤          ├──────────────────────┤
//! │     ProcessGroup     │          │     ProcessGroup     │   tensors; order; who may call
//! │  all_reduce ...      │          │  all_reduce ...      │   blocking
//! │  start_* ─▶ Pending  │          │  start_* ─▶ Pending  │   on a helper thread of the group
//! ├──────────────────────┤          ├──────────────────────┤
//! │  Traced (optional)   │          │  Traced (optional)   │   a record of every call
//! │      Transport       │◀────────▶│      Transport       │   buffers
//! └──────────────────────┘  local:  └──────────────────────┘
//!                       threads of one
//!                       process, in place
//! ```
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use epl_comm::{ReduceOp, testing::run_ranks};
//!
//! let sums = run_ranks(2, |group| {
//!     let x = Tensor::<1>::full([3], group.rank() as f32, &Device::flex());
//!     let started = group.start_all_reduce(x.clone(), ReduceOp::Sum).unwrap();
//!     // ... compute something meanwhile ...
//!     let all = group.all_gather(x, 0).unwrap();
//!     assert_eq!(all.dims(), [6]);
//!     started.wait().unwrap().into_data().iter::<f32>().collect::<Vec<_>>()
//! });
//! assert_eq!(sums, [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]);
//! ```
//!
//! # What holds
//!
//! - **The same bits everywhere.** A sum is taken in the order of the members, on every member and in every run.
//! - **Calls are compared before memory is touched.** Members that call different things all get an
//!   [`Error::Mismatch`] with both calls.
//! - **Nobody waits for ever.** A rank that fails, panics or leaves releases the others with an error that names it;
//!   ranks that wait for each other in different groups all get an [`Error::Deadlock`] that names the calls; a rank that
//!   does not come within the time limit ([`local::Launcher`]) is named by an [`Error::Timeout`], with its last call
//!   from the [`Log`] that every rank keeps. What has failed stays failed. Code without `Result` carries an error by
//!   [`unwind`] to [`catch`].
//! - **One order.** Blocking and started collectives of a group run in the order of the calls. One thread uses all
//!   groups of a rank.
//! - **Nothing is freed that a peer reads.** A call owns its buffers until all members have left it.
//!
//! # What is not here
//!
//! Which rank holds what, and when to communicate: that is the business of the crates above. Stopping a rank that hangs:
//! its peers are released, but a thread ends by itself or with the process.
//!
//! # Features
//!
#![doc = document_features::document_features!()]
#![warn(missing_docs)]

mod system;
mod rank;
mod error;
mod scoped;
mod awake;
mod call_hooks;
mod per_member;
mod operation;
mod log;
mod buffer;
mod transport;
mod hierarchy;
mod trace;
mod traced;
mod pending;
mod process_group;
mod pool;
mod autodiff;
pub mod differentiable;
mod layout;
mod host;
mod launch;
pub mod local;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod dry;
pub mod nccl;
mod memory;
pub mod testing;

pub use autodiff::{
    OperationPhase, OperationProfile, VjpInputs, count_work, custom_vjp, custom_vjp_needed, profile_operations, timed,
};
pub use buffer::Buffer;
pub use call_hooks::{CallHooks, with_call_hooks};
pub use epl_launch::{
    Carrier, Launch, Meeting, MeetingPoint, MemoryStore, Source, Store, Worker, host_name, rendezvous, watch,
};
pub use error::{Error, LaunchError, Result, catch, unwind};
pub use launch::Launcher;
pub use layout::{Copied, Partial, Split, copied, first_term, sliced};
pub use log::{LastCall, Log, LogEntry};
pub use memory::{CountingAllocator, ThreadMemory};
pub use operation::{Call, Operation, ReduceOp};
pub use pending::Pending;
pub use per_member::PerMember;
pub use pool::Pool;
pub use process_group::{ProcessGroup, Recording};
pub use rank::{Rank, shard_range};
pub use trace::{Event, EventKind, Span, Trace, TraceWatch};
pub use transport::{Launched, Staged, Transport, Watch};
