//! Checks of numbers that transforms are made with.

use crate::vision::error::{Error, Result};

/// Refuses a setting of a transform.
pub(super) fn refused<T>(transform: &'static str, reason: String) -> Result<T> {
    Err(Error::Transform { transform, reason })
}

/// A share or a probability.
pub(super) fn check_share(transform: &'static str, name: &str, share: f64) -> Result<()> {
    match (0.0..=1.0).contains(&share) {
        true => Ok(()),
        false => refused(transform, format!("`{name}` is {share}; it should be from 0 to 1")),
    }
}

/// A number of pixels.
pub(super) fn check_pixels(transform: &'static str, name: &str, pixels: usize) -> Result<()> {
    // Half of what the numbers of an image's sides can be, so that a padded side can be one.
    match (1..=1 << 30).contains(&pixels) {
        true => Ok(()),
        false => refused(transform, format!("`{name}` is {pixels}; it should be from 1 to {}", 1 << 30)),
    }
}

/// Two positive numbers, of which the second one is not smaller.
pub(super) fn check_range(transform: &'static str, name: &str, [low, high]: [f64; 2]) -> Result<()> {
    match low > 0.0 && high >= low && high.is_finite() {
        true => Ok(()),
        false => {
            let reason = format!("`{name}` is from {low} to {high}; give two positive numbers, the smaller one first");
            refused(transform, reason)
        }
    }
}
