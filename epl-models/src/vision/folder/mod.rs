//! Images from files: `root/class/*.png`, `*.jpg` or `*.jpeg`, a folder a class.
//!
//! - `list`: the classes and files of a folder;
//! - `view`: from a decoded image to a square of the right size;
//! - `dataset`: the images as a dataset.

mod list;
mod view;
mod dataset;

pub use dataset::{ImageFolder, ImageFolderConfig};
