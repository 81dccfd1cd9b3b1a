//! The images of a folder as a dataset.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::image::{ImageReader, RgbImage};
use burn::data::dataset::{Dataset, DatasetError};

use super::list::{Listing, list};
use crate::vision::error::{Error, Result};
use crate::vision::image::LabelledImage;

/// Images of a folder, decoded when they are asked for, each as large as its file says: see
/// [`Transforms`](crate::vision::transform::Transforms) for what brings them to one size.
///
/// ```no_run
/// use burn::data::dataset::Dataset;
/// use epl_models::vision::ImageFolder;
///
/// let training = ImageFolder::open("flowers/train")?;
/// let valid = ImageFolder::open_with_classes("flowers/valid", training.classes())?;
/// println!("{} images of {} classes, {} to judge by", training.len(), training.classes().len(), valid.len());
/// # Ok::<(), epl_models::vision::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImageFolder {
    classes: Vec<String>,
    files: Arc<[(PathBuf, usize)]>,
    others: usize,
}

impl ImageFolder {
    /// Lists the images below `root`. The classes are the names of the folders in it, in order.
    ///
    /// # Errors
    ///
    /// When a folder cannot be read, there is no class, or a class has no image.
    pub fn open(root: impl AsRef<Path>) -> Result<Self> {
        Ok(Self::of(list(root.as_ref(), None)?))
    }

    /// Lists images whose classes have the numbers that they have among `classes`, such as those of the training
    /// images. Not every class need be there.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), and when there is a class that is not among `classes`.
    pub fn open_with_classes(root: impl AsRef<Path>, classes: &[String]) -> Result<Self> {
        Ok(Self::of(list(root.as_ref(), Some(classes))?))
    }

    fn of(Listing { classes, files, others }: Listing) -> Self {
        Self { classes, files: files.into(), others }
    }

    /// The names of the classes, by number.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// How many files were left out, since they are no images by their names or lie in no class.
    pub fn left_out(&self) -> usize {
        self.others
    }

    /// What tells these images from others, for a run's checkpoints: see `Trainer::with_invariant`. Files are told by their names,
    /// classes and lengths.
    ///
    /// # Errors
    ///
    /// When a file is not there any more.
    pub fn fingerprint(&self) -> Result<String> {
        let mut parts = Vec::new();
        for (path, class) in self.files.iter() {
            let unreadable = |cause| Error::Read { path: path.clone(), cause };
            let length = path.metadata().map_err(unreadable)?.len();
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            parts.extend([name.to_vec(), format!("\0{}\0{length}\0", self.classes[*class]).into_bytes()]);
        }
        Ok(epl_core::trainer::fingerprint(parts))
    }

    fn read(&self, index: usize) -> Result<LabelledImage> {
        let (path, label) = &self.files[index];
        Ok(LabelledImage::of(decode(path)?, *label))
    }
}

impl Dataset<LabelledImage> for ImageFolder {
    fn get(&self, index: usize) -> Result<LabelledImage, DatasetError> {
        assert!(index < self.len(), "image {index} of {}", self.len());
        self.read(index).map_err(DatasetError::new)
    }

    fn len(&self) -> usize {
        self.files.len()
    }
}

/// What the file holds, whatever its ending says of the format.
fn decode(path: &Path) -> Result<RgbImage> {
    let unreadable = |cause| Error::Read { path: path.to_path_buf(), cause };
    let reader = ImageReader::open(path).and_then(ImageReader::with_guessed_format).map_err(unreadable)?;
    let decoded = reader.decode().map_err(|cause| Error::Decode { path: path.to_path_buf(), cause })?;
    Ok(decoded.into_rgb8())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ::image::Rgb;

    use super::*;

    /// A folder with classes `bee` (a wide red PNG, a green JPEG) and `ant` (a grey PNG).
    fn folder() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let save = |name: &str, (width, height), colour| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            RgbImage::from_pixel(width, height, Rgb(colour)).save(path).unwrap();
        };
        save("bee/a.png", (40, 20), [200, 0, 0]);
        save("bee/b.JPG", (10, 30), [0, 200, 0]);
        save("ant/c.png", (16, 16), [90, 90, 90]);
        fs::write(root.path().join("bee/notes.txt"), "two bees").unwrap();
        root
    }

    fn message<T>(result: Result<T>) -> String {
        result.err().expect("it is refused").to_string()
    }

    #[test]
    fn classes_are_sorted_and_images_are_as_large_as_they_are() {
        let root = folder();
        let images = ImageFolder::open(root.path()).unwrap();
        assert_eq!(images.classes(), ["ant", "bee"]);
        assert_eq!((images.len(), images.left_out()), (3, 1));
        let read: Vec<LabelledImage> = images.iter().map(|image| image.unwrap()).collect();
        let seen = |image: &LabelledImage| (image.height, image.width, image.label);
        assert_eq!(read.iter().map(seen).collect::<Vec<_>>(), [(16, 16, 0), (20, 40, 1), (30, 10, 1)]);
        assert_eq!([read[0].pixel(8, 8), read[1].pixel(0, 39)], [[90; 3], [200, 0, 0]]);
        let green = read[2].pixel(8, 8);
        assert!(green[0] < 5 && green[1].abs_diff(200) < 5 && green[2] < 5, "{green:?}");
    }

    #[test]
    fn other_images_have_another_fingerprint() {
        let (root, same) = (folder(), folder());
        let of = |root: &tempfile::TempDir| ImageFolder::open(root.path()).unwrap().fingerprint().unwrap();
        let own = of(&root);
        assert_eq!(own, of(&same));
        RgbImage::from_pixel(50, 50, Rgb([1, 2, 3])).save(same.path().join("bee/a.png")).unwrap();
        assert_ne!(own, of(&same));
        fs::rename(root.path().join("bee/a.png"), root.path().join("ant/a.png")).unwrap();
        assert_ne!(own, of(&root));
    }

    #[test]
    fn validation_keeps_the_numbers_of_training() {
        let root = folder();
        let classes = ["ant", "bear", "bee"].map(String::from);
        let images = ImageFolder::open_with_classes(root.path(), &classes).unwrap();
        assert_eq!(images.iter().map(|image| image.unwrap().label).collect::<Vec<_>>(), [0, 2, 2]);
        let refused = message(ImageFolder::open_with_classes(root.path(), &classes[..2]));
        assert!(refused.contains("bee is the folder of a class that the 2 known ones do not contain"), "{refused}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let root = tempfile::tempdir().unwrap();
        assert!(message(ImageFolder::open(root.path().join("none"))).contains("none: "));
        fs::write(root.path().join("loose.png"), "").unwrap();
        assert!(message(ImageFolder::open(root.path())).contains("has no folder in it"));
        fs::create_dir(root.path().join("cat")).unwrap();
        fs::write(root.path().join("cat/x.gif"), "").unwrap();
        assert!(message(ImageFolder::open(root.path())).contains("cat has no image in it, only 1 other file(s)"));
        fs::write(root.path().join("cat/y.png"), "no image").unwrap();
        let images = ImageFolder::open(root.path()).unwrap();
        assert_eq!((images.len(), images.left_out()), (1, 2));
        let refused = images.get(0).unwrap_err().to_string();
        assert!(refused.contains("y.png is not a whole PNG or JPEG image"), "{refused}");
    }
}
