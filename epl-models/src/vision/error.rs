use std::io;
use std::path::PathBuf;

use ::image::ImageError;

/// What can be wrong with images and their files.
///
/// Every message names the file or the number, and says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A folder or a file is missing or may not be read.
    #[error("cannot read {}: {cause}; check the path", path.display())]
    Read {
        /// The folder or file.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },

    /// A file is not an image, or only a part of one.
    #[error("{} is not a whole PNG or JPEG image: {cause}; replace the file or remove it", path.display())]
    Decode {
        /// The file.
        path: PathBuf,
        /// What the decoder said.
        cause: ImageError,
    },

    /// A folder without classes.
    #[error("{} has no folder in it; put the images of each class into a folder of its own", folder.display())]
    NoClasses {
        /// The folder.
        folder: PathBuf,
    },

    /// A class without images.
    #[error(
        "{} has no image in it, only {others} other file(s); put .png, .jpg or .jpeg files there, or remove the folder",
        folder.display()
    )]
    NoImages {
        /// The folder of the class.
        folder: PathBuf,
        /// Files that are no images.
        others: usize,
    },

    /// A class that the model was not made for.
    #[error(
        "{} is the folder of a class that the {classes} known ones do not contain; remove it, or add it to the \
         training images",
        folder.display()
    )]
    UnknownClass {
        /// The folder of the class.
        folder: PathBuf,
        /// How many classes are known.
        classes: usize,
    },

    /// The name of a class is not UTF-8.
    #[error("{} is a folder whose name is not UTF-8; rename it", folder.display())]
    ClassName {
        /// The folder of the class.
        folder: PathBuf,
    },

    /// More rows than can be counted.
    #[error("{variants} variants of each of {images} images are too many to be counted; ask for at most {}", usize::MAX / images)]
    Variants {
        /// The images of the folder.
        images: usize,
        /// The setting.
        variants: usize,
    },

    /// A number that cannot be.
    #[error("`{name}` is {found}; it should be at least {least}")]
    Number {
        /// The setting.
        name: &'static str,
        /// Its value.
        found: usize,
        /// The smallest possible value.
        least: usize,
    },
}

/// What the functions of this module return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
