//! No layout changes what layers compute: in f64, all errors are at most 1e-10.

mod experts;
mod transformers;
