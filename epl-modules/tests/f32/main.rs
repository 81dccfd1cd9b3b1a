//! Layers under layouts and element types, in f32, and what they refuse.

#[path = "../layers/mod.rs"]
mod layers;
#[path = "../moe/mod.rs"]
mod moe;
#[path = "../transformer/mod.rs"]
mod transformer;

mod attention;
mod dropout;
mod experts;
mod flops;
mod half;
mod precision;
mod refusals;
mod top_k;
mod transformers;
