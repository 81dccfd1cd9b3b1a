//! The table in f32, each part in a process of its own, in which nobody else draws from Burn's generator: Burn's numbers to 1e-6 of
//! the largest element of each tensor. Of encoders and decoders, in which norms stand behind each other, 4e-7 to 2e-6 were
//! found, by the parameters that are drawn: a layer norm sums in lanes, in one pass, where Burn's sums operation by operation,
//! which is off by 2e-7 for one norm.

use super::table::{Limits, Table};
use super::{attention, convolutions, layers, recurrent};

parts!(alone, Limits { burn: 1e-6, deep: 1e-5, strategies: 1e-4, half: Some(16.0) });
