//! Times of what comes from memory.

use std::hint;

use burn::tensor::{Device, Tensor};

use crate::offload::is_host;

/// Takes out of the caches what lies there, so that what is timed next comes from memory, as in a step: others run between two
/// passes of a segment.
pub(crate) enum CacheFlush {
    /// A cache takes whole lines of memory.
    Host(Vec<[u64; CacheFlush::LINE / size_of::<u64>()]>),
    Device(Box<Tensor<1>>),
}

impl CacheFlush {
    /// More than the caches of most hosts have for a rank.
    const HOST_BYTES: usize = 32 << 20;
    /// More than those of a GPU: an H200 has 50 MiB.
    const DEVICE_BYTES: usize = 256 << 20;
    const LINE: usize = 64;

    pub fn new(device: &Device) -> Self {
        match is_host(device) {
            // Of zeros all pages may be one.
            true => Self::Host(vec![[1; _]; Self::HOST_BYTES / Self::LINE]),
            false => {
                Self::Device(Box::new(Tensor::ones([Self::DEVICE_BYTES / size_of::<f32>()], &device.clone().inner())))
            }
        }
    }

    /// Reads what nobody else reads, on all threads of the rank, each of which may have a cache of its own.
    pub fn run(&self) {
        match self {
            Self::Host(lines) => {
                drop(rayon::broadcast(|_| hint::black_box(lines.iter().fold(0, |sum, line| sum ^ line[0]))))
            }
            Self::Device(numbers) => drop(Tensor::clone(numbers).sum().into_data()),
        }
    }
}
