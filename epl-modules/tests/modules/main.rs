//! Layers under layouts and element types, against Burn and against references: one program for all tests of this crate.
//!
//! What needs f64 has a process of its own (`epl_testing`), as the element type of a device is a whole process's.

mod f32;
mod f64;
mod global;
mod layers;
mod layers_f32;
mod layers_f64;
mod moe;
mod nn;
mod transformer;
