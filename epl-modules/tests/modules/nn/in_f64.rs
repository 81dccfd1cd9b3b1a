//! The table in f64: Burn's numbers to 1e-12, and one rank's to 1e-10.

use super::table::{Limits, Table};
use super::{attention, convolutions, layers, recurrent};

parts!(in_f64, Limits { burn: 1e-12, strategies: 1e-10, half: None });
