//! Ranks with a GPU each, and NCCL between them.
//!
//! # The way of one call
//!
//! ```text
//! ProcessGroup ─▶ NcclTransport
//!                  work, shape          16-bit sums in f32; NaN                                 the rank's thread
//!                  memory               where buffers lie; events of the rank's stream          the rank's thread
//!                  group_control        have all come, and do they make the same call?          helper thread of the group
//!                  gate, launch_order   when, and in which order, calls go to the device        helper thread
//!                  comm_stream          NCCL's function on a stream of its own                  helper thread, device
//! ```
//!
//! A group is an NCCL communicator with a stream of its own; a part of a group is made by dividing its communicator, a
//! link in its first call, when both ends have come to it.
//!
//! # Who waits for whom
//!
//! All that is computed is put on the rank's stream by the rank's thread; NCCL's streams wait for events on it, and it for
//! events on theirs (`flight` has the picture). A call comes back when NCCL has it: the thread goes on, and what it
//! computes with the result comes behind it on the device. Two things must not happen meanwhile:
//!
//! - **Two devices see kernels of several communicators in different orders**, and each holds what the other needs. Calls
//!   are put on the device in the order of the rank's calls, or in that in which ranks of a process have met (`launch_order`).
//! - **The driver waits for the whole device** while a kernel of NCCL waits there for a peer: when memory is taken by
//!   `cuMemAlloc`, a kernel is loaded or a communicator is made. CubeCL's memory is taken in the order of streams instead
//!   (`allocator`), and in a rank's warm-up calls go out while it waits (`gate`).
//!
//! What still waits for the device: kernels that are loaded after the warm-up, beside which links, which are in no order,
//! may be running (`gate`); memory that the driver's pool must first get from the system, and memory of the host that is
//! pinned, for which the driver may wait until its device is idle. Warm up with the largest batch.
//!
//! # Nobody hangs
//!
//! Communicators do not block: a call is begun, and a thread asks whether it is over. In between it looks whether
//! the communicator has failed (`ncclCommGetAsyncError`), whether the world has, and whether the time limit has passed.
//! Then it aborts its communicator and tells the others, who do the same. Memory that a failed call was working on is
//! kept until the group is dropped, as a peer's device may still reach it. A rank that has gone on learns of the failure
//! in its next call, or when it takes a result.
//!
//! # Calls are compared before memory is touched
//!
//! Ranks that are threads of one process meet on the boards of [`local`](crate::local), as they would for a call in host
//! memory, only that nothing is looked at but the call. So they find mismatches, circles of waits, orders, delays, ranks
//! that returned too early, and failures, just as they do there.
//!
//! Ranks that are processes ([`Worker`]) meet by values of a [`Store`](crate::Store) while they warm up and in the first
//! calls of each group, or in all: [`Worker::compare_first`]. Failures, ends, and who is missing when a call takes too long,
//! are told by a few values more. Circles of waits between processes end by the time limit.
//!
//! # What NCCL does otherwise, and what is done about it
//!
//! | | NCCL | here |
//! |---|---|---|
//! | sums of 16-bit floats | rounded after each addition | reduced in f32 and rounded once, where there is more than one |
//! | mean | numbers times a rounded reciprocal, added | the sum, divided |
//! | min, max | a NaN may be lost | a NaN wins: a second reduction says where |
//! | whole numbers of 16 bits | none | reduced in 32; moved as bytes |
//! | truth values | none | moved as bytes |
//! | order of additions | its own, but the same bits on all members | the same; not those of [`local`](crate::local) |
//!
//! # Without a GPU
//!
//! What is specific to CUDA is behind [`Memory`]: with a library that has NCCL's functions over host memory, and a device
//! with streams and time, the rest runs on any machine, which is how it is tested.

mod abi;
mod remedy;
mod library;
mod memory;
mod communicator;
mod gate;
mod comm_stream;
mod shape;
mod work;
mod launch_order;
mod group_control;
mod store_plane;
mod meeting;
mod workers;
mod transport;
mod flight;
#[cfg(feature = "cuda")]
mod presence;
#[cfg(feature = "cuda")]
mod allocator;
#[cfg(feature = "cuda")]
mod device;
mod setup;
mod run;
mod worker;

#[cfg(feature = "cuda")]
pub use device::{CudaBlock, CudaMemory, CudaPoint, CudaQueue};
pub use library::Library;
pub use memory::{Event, Memory, Stream};
#[cfg(feature = "cuda")]
pub use presence::devices;
#[cfg(feature = "cuda")]
pub use run::run;
pub use run::{Launcher, Local};
pub use setup::Nccl;
#[doc(hidden)]
pub use transport::Safeguards;
pub use worker::{Distributed, Worker};
