//! A library with NCCL's functions over host memory, between the threads of one process: what the transport is tested
//! with where there is no GPU. Made by the tests themselves, with rustc alone.
//!
//! - A device pointer is a host pointer. Streams, events and time are those of `device`: calls read memory when they run,
//!   on the device, and write it then.
//! - Communicators do not block, as the transport asks for: a call has only begun when it comes back, and goes out when
//!   the library is asked whether it is over. Whoever does not ask is never served; whoever calls again too early is
//!   counted as `misused`.
//! - Floats of 16 bits are added one after the other, each rounded, and a NaN loses against numbers: the worst that NCCL
//!   may do.
//!
//! Two functions more, for the tests: `fake_nccl_set` sets a switch, `fake_nccl_count` tells how often something was
//! done. Switches are `fail`, `async` and `hang`, each with `FUNCTION` or `FUNCTION:RANK`: the call is refused, or the
//! communicator fails afterwards, or the call never ends; `version`; and those of `device`. Variables of the environment set them from the
//! beginning: `FAKE_NCCL_FAIL` and so on.
//!
//! With `--cfg without_split`, the library lacks a function.
#![allow(missing_docs, clippy::missing_safety_doc)]

mod api;
mod clique;
mod device;
mod half;
mod reduce;
mod switches;
