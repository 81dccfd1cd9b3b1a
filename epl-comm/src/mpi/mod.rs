//! Ranks in several processes, on one host or several: over an MPI library (feature `mpi`).
//!
//! ```text
//! mpirun -n 2 program          process 0                          process 1
//!                    ┌───────────────────────────┐      ┌───────────────────────────┐
//! Launcher::ranks(2) │ rank 0  rank 1    watcher │      │ rank 2  rank 3    watcher │
//!                    └───┬───────┬──────────┬────┘      └───┬───────┬──────────┬────┘
//!                        │       │          └── control: failures, who has ended, who waits
//!                        └───────┴── data ──────────────────┴───────┘
//! ```
//!
//! ```no_run
//! use burn::tensor::{Device, Tensor};
//! use epl_comm::{Error, ReduceOp, mpi};
//!
//! // In each process that mpirun has started:
//! let sums = mpi::run(|group| {
//!     let x = Tensor::<1>::full([1], group.rank() as f32 + 1.0, &Device::flex());
//!     Ok::<_, Error>(group.all_reduce(x, ReduceOp::Sum)?.into_scalar::<f32>())
//! });
//! println!("{sums:?}");
//! ```
//!
//! # One call
//!
//! ```text
//! member 0                                    member 1
//! ────────────────────────────────────────    ────────────────────────────────────────
//! digest of the call, small data ───────┐ ┌── digest of the call, small data
//! wait for all digests ◀────────────────┼─┘
//! compare                               └───▶ wait for all digests, compare         both come to the same verdict
//! large data, straight from the buffer ◀────▶ large data, straight into the result  each to each
//! ```
//!
//! Every message is a non-blocking send or receive between two members, and every wait looks whether the world has
//! failed: no call of the library is made in which a rank could be held by one that does not come. That is also why
//! groups are not communicators of the library, whose making is a blocking call, but numbers in the tags of messages:
//! all members learn the number when they split: the least that none of them has had. A tag also says which thread of a
//! process sends, and of a link which receives.
//!
//! Reductions are computed here, in the order of the members: MPI promises neither an order nor what becomes of a NaN in
//! a maximum, and has no 16-bit floats. With one rank in each process, the results are the bits of
//! [`local`](crate::local). Counts of MPI are 32 bits wide; what is longer goes in several messages.
//!
//! # Several ranks in a process
//!
//! They are threads, and one world with those of the other processes: any ranks may form a group. One that lies in a
//! process meets in its memory, as in `local`; one with a rank in each of several processes over MPI; any other in
//! stages, inside the processes and between one leader of each. So as much goes between processes as if each had one
//! rank; sums are taken process by process then, which changes their last bits, though not between runs or members.
//!
//! # When a rank fails
//!
//! | a rank | others |
//! |---|---|
//! | returns an error, panics, makes another call | are told by its process, and leave the call they wait in |
//! | returns although a call of others needs it | are told that it has ended, and which calls it has begun before |
//! | waits in a circle with others | ask each other, after two seconds, what they wait for, and find it; when started calls of several processes are part of it, at the time limit |
//! | does not come within the time limit | ask its process for what it did last; that may not answer |
//! | is gone with its process | are ended by `mpirun`, which names it |

mod keeper;
mod library;
mod waits;
mod message;
mod failure;
mod tags;
mod world;
mod wait_query;
mod control;
mod backoff;
mod endpoint;
mod request_set;
mod cut;
mod headers;
mod reduction;
mod moves;
mod broadcast;
mod work;
mod group;
mod hybrid;
mod join;
mod run;
#[cfg(test)]
mod testing;

pub use library::Place;
pub use run::{Launcher, PerProcess, hosts, is_launched, place, run};
