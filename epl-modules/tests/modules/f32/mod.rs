//! Layers under layouts and element types, in f32, and what they refuse.

mod attention;
mod discover;
mod dropout;
mod experts;
mod flops;
mod half;
mod precision;
mod refusals;
mod top_k;
mod transformers;
