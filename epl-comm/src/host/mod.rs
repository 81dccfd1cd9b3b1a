//! Buffers in the memory of the host: what transports share that compute there.

pub(crate) mod number;
pub(crate) mod arena;
pub(crate) mod staging;
pub(crate) mod quarrel;
pub(crate) mod fit;
#[cfg(any(feature = "mpi", feature = "nccl"))]
pub(crate) mod wire;
