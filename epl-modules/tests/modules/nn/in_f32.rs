//! The table in f32, each part in a process of its own, in which nobody else draws from Burn's generator: Burn's numbers to 1e-6 of
//! the largest element of each tensor. Encoders and decoders, in which norms stand behind each other, are as near to Burn's numbers
//! in f64 as Burn's in f32 are, or nearer, or within that limit.

use super::table::{Limits, Table};
use super::{attention, convolutions, layers, recurrent};

parts!(alone, Limits { burn: 1e-6, strategies: 1e-4, half: Some(16.0) });
