//! Pipeline schedules and stages: literal grids, what holds for all sizes, brute force.

#![allow(clippy::unwrap_used)] // Also in the functions that the tests share.

mod epl;
mod grids;
mod oracle;
mod mutations;
mod properties;
mod stages;
