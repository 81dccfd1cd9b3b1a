//! Models against Hugging Face and under layouts: one program for all tests of this crate.
//!
//! What needs f64 has a process of its own (`epl_testing`), as the element type of a device is a whole process's.

mod f32;
mod f64;
mod layouts;
