//! Buffers in the memory of the host and ranks on its threads: what transports share that work there.

pub(crate) mod number;
pub(crate) mod arena;
pub(crate) mod staging;
pub(crate) mod mismatch;
pub(crate) mod fit;
pub(crate) mod failure;
pub(crate) mod guard;
pub(crate) mod wire;
pub(crate) mod ranks;
pub(crate) mod watchdog;
