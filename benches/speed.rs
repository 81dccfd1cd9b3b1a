//! What the machine gives: the speed of products and of copies.

use std::time::Instant;

use burn::tensor::{Device, Distribution, Tensor};
use rayon::prelude::*;

/// The shortest of five runs, in seconds.
fn shortest(mut run: impl FnMut()) -> f64 {
    let seconds = (0..5).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min)
}

/// GFLOP/s of a large product of f32 on all threads.
pub fn product_speed() -> f64 {
    let device = Device::default();
    let [a, b] = [0; 2].map(|_| Tensor::<2>::random([2048, 1024], Distribution::Default, &device));
    let b = b.reshape([1024, 2048]);
    2.0 * 2048.0 * 1024.0 * 2048.0 / shortest(|| drop(a.clone().matmul(b.clone()).into_data())) / 1e9
}

/// GB/s of a copy of 64 MiB on all threads: what is read and what is written.
pub fn copy_speed() -> f64 {
    let from = vec![1u8; 1 << 26];
    let mut to = vec![0u8; from.len()];
    let block = 1 << 16;
    let seconds = shortest(|| {
        to.par_chunks_mut(block).zip(from.par_chunks(block)).for_each(|(to, from)| to.copy_from_slice(from));
    });
    2.0 * from.len() as f64 / seconds / 1e9
}
