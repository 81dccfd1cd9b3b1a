//! Coloured shapes by rule: images for tests and a first training run, without a download.
//!
//! - `form`: which points belong to a shape;
//! - `painter`: one image from (seed, number, class);
//! - `dataset`: the images as datasets, split in training and held-out images.

mod form;
mod painter;
mod dataset;

pub use dataset::{CLASSES, Shapes, ShapesConfig, ShapesSplit};
