//! `epl_modules::nn`: every layer against Burn's own, and under every strategy against one rank.

pub(crate) mod attention;
pub(crate) mod case;
pub(crate) mod convolutions;
pub(crate) mod layers;
pub(crate) mod recurrent;
pub(crate) mod strategy;
pub(crate) mod table;

mod biases;
mod half;
mod in_f32;
mod in_f64;
mod losses;
mod refusals;
