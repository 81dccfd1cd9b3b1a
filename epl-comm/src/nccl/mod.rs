//! Ranks with a GPU each, and NCCL between them.
//!
//! # The way of one call
//!
//! ```text
//! ProcessGroup ─▶ NcclTransport
//!                  council    have all come, and do they make the same call? who has failed?     host
//!                  shape      16-bit sums in f32; another dim than the first; NaN                device
//!                  memory     where the buffer lies, once it has been computed                   device
//!                  lane       NCCL's function on a stream of its own, until it is over           device
//! ```
//!
//! A group is an NCCL communicator with a stream of its own; a part of a group is made by dividing its communicator, a
//! link when both ends first use it. A call comes back when the device is done with it: what is computed next needs no
//! further care, and started calls of several groups are under way together.
//!
//! # Nobody hangs
//!
//! Communicators do not block: a call is begun, and NCCL is asked whether it is over. In between the member looks whether
//! the communicator has failed (`ncclCommGetAsyncError`), whether the world has, and whether the time limit has passed.
//! Then it aborts its communicator and tells the others, who do the same. Memory that a failed call was working on is
//! kept until the group is dropped, as a peer's device may still reach it.
//!
//! # Calls are compared before memory is touched
//!
//! Ranks that are threads of one process meet on the boards of [`local`](crate::local), as they would for a call in host
//! memory, only that nothing is looked at but the call. So they find mismatches, circles of waits, orders, delays, ranks
//! that returned too early, and failures, just as they do there.
//!
//! Ranks that are processes ([`Worker`]) tell each other a digest of the call over NCCL itself, before the data goes the
//! same way: [`Worker::compare_every`] says how often. Failures, ends, and who is missing when a call takes too long,
//! are told by a few values of a [`Store`](crate::Store). Circles of waits between processes end by the time limit.
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
//! What is specific to CUDA is behind [`Memory`]: with a library that has NCCL's functions over host memory, the rest
//! runs on any machine, which is how it is tested.

mod abi;
mod remedy;
mod library;
mod memory;
mod communicator;
mod lane;
mod shape;
mod work;
mod council;
mod joined;
mod workers;
mod transport;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod presence;
mod run;
mod worker;

#[cfg(feature = "cuda")]
pub use device::{CudaBlock, CudaMemory, CudaQueue};
pub use library::Library;
pub use memory::{Memory, Stream};
#[cfg(feature = "cuda")]
pub use presence::devices;
pub use run::Launcher;
#[cfg(feature = "cuda")]
pub use run::run;
pub use worker::Worker;
