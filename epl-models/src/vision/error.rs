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

    /// A file that is not of the kind that its name says.
    #[error(
        "{} begins with {found:02x?} and should with {expected:02x?}, as {kind}; give the file that was published",
        path.display()
    )]
    Magic {
        /// The file.
        path: PathBuf,
        /// Its first bytes.
        found: Vec<u8>,
        /// What they should be.
        expected: Vec<u8>,
        /// What begins so.
        kind: &'static str,
    },

    /// A file with more or fewer bytes than its images have.
    #[error(
        "{} has {found} bytes and should have {expected} ({reason}); it was not copied whole: copy it again", path.display()
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Its bytes, unpacked.
        found: usize,
        /// How many there should be.
        expected: String,
        /// Why so many.
        reason: String,
    },

    /// A packed file that ends early, or is damaged.
    #[error("{} is no whole gzip file: {cause}; copy it again", path.display())]
    Packed {
        /// The file.
        path: PathBuf,
        /// What cannot be unpacked.
        cause: io::Error,
    },

    /// A file without a pixel.
    #[error(
        "{} has {} images of {} × {} pixels; give the file that was published, with one of each at least",
        path.display(), sides[0], sides[1], sides[2]
    )]
    Empty {
        /// The file.
        path: PathBuf,
        /// Images, rows, columns.
        sides: [usize; 3],
    },

    /// A class that the data does not have.
    #[error(
        "{}: image {image} is of class {label}; there are the classes 0 to {}: give the file that was published",
        path.display(), classes - 1
    )]
    Label {
        /// The file.
        path: PathBuf,
        /// The image, from 0.
        image: usize,
        /// Its class.
        label: usize,
        /// How many classes there are.
        classes: usize,
    },

    /// Images and classes that do not belong together.
    #[error(
        "{} has {images} images and {} {labels} classes of images; give two files of one part of the data",
        path.display(), other.display()
    )]
    Counts {
        /// The file of images.
        path: PathBuf,
        /// How many there are.
        images: usize,
        /// The file of classes.
        other: PathBuf,
        /// How many there are.
        labels: usize,
    },

    /// None of the files that there should be.
    #[error("{} has none of the files {names}; give the folder that they are in", folder.display())]
    NoFile {
        /// The folder.
        folder: PathBuf,
        /// The names that were looked for.
        names: String,
    },

    /// An image whose bytes are not those of its sides.
    #[error("an image of {height}×{width} pixels has {bytes} bytes; give three for each, and at least one pixel")]
    Pixels {
        /// Its bytes.
        bytes: usize,
        /// Rows.
        height: usize,
        /// Pixels of a row.
        width: usize,
    },

    /// A transform with a number that cannot be, or of an image that it is not made for.
    #[error("{transform}: {reason}")]
    Transform {
        /// Its name.
        transform: &'static str,
        /// What is wrong, and what to do.
        reason: String,
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

impl From<Error> for epl_core::Error {
    fn from(error: Error) -> Self {
        Self::invalid(error.to_string())
    }
}
