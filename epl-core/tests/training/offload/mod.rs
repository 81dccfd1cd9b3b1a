//! Arrays in host memory and in files, and the optimizers that update them: the tiers agree to the bit, with each other
//! and with Burn.
#![allow(clippy::unwrap_used)]

mod arrays;
mod burn;
mod errors;

use epl_core::offload::{Ledger, Storage};

/// The smallest bound that a folder takes: windows of one block, so that arrays of a few blocks need several.
pub const LEAST: u64 = 10 * 256 * 1024;

/// Host memory, and files in a folder with the smallest bound.
pub fn tiers() -> [Storage; 2] {
    let ledger = Ledger::new();
    [Storage::host(&ledger), Storage::files(std::env::temp_dir(), LEAST, &ledger).unwrap()]
}

/// Numbers of all sizes and both signs, with zeros of both.
pub fn values(seed: u64, len: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let value = |random: u64| match random % 50 {
        0 => 0.0,
        1 => -0.0,
        2 => 1e-30,
        _ => (random >> 11) as f64 / (1_u64 << 53) as f64 * 4.0 - 2.0,
    };
    (0..len).map(|_| value(next())).collect()
}
