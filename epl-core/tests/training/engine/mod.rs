//! The engine: equal to one tape of Burn's own, on one rank and on several, and what it refuses.
#![allow(clippy::unwrap_used)] // Also in the functions that the tests share.

mod agreeing;
mod averages;
mod built;
mod chain;
mod changed;
mod clipping;
mod decoding;
mod first_values;
mod mean_weight;
mod not_finite;
mod one_rank;
mod order;
mod outputs;
mod refusals;
mod replicas;
mod sum;
mod without_gradient;
