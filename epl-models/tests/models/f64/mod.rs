//! No layout changes what a model computes: in f64, all errors are at most 1e-10.

mod bert;
mod mae;
mod moco;
mod resnet;
mod t5;
mod vit;
