//! Images from files: `root/class/*.png`, `*.jpg` or `*.jpeg`, a folder a class.
//!
//! - `list`: the classes and files of a folder;
//! - `dataset`: the images as a dataset.

mod list;
mod dataset;

pub use dataset::ImageFolder;
