//! CIFAR-10 and CIFAR-100 from their binary files.
//!
//! A file is a list of records: the class (of CIFAR-100 the one of 20 and the one of 100), then 32×32 bytes of red, of green and of
//! blue. *Learning Multiple Layers of Features from Tiny Images*, Krizhevsky, 2009.

use std::path::{Path, PathBuf};

use super::error::{Error, Result};
use super::stored::{Split, StoredImages, check_labels, read_bytes};

/// Rows of an image, and its columns.
const SIDE: usize = 32;
/// Bytes of an image.
const IMAGE: usize = 3 * SIDE * SIDE;

/// CIFAR-10: 50,000 images of 10 classes to learn from, 10,000 to be judged by.
///
/// `folder` has `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`, or is the folder above `cifar-10-batches-bin`, which
/// has them.
///
/// ```
/// use burn::data::dataset::Dataset;
/// use epl_models::vision::{Split, cifar10};
///
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// # let folder = folder.path();
/// // A record is a class, then 32×32 bytes of red, of green and of blue: here one red image of class 7.
/// let record = [&[7_u8][..], &[255; 32 * 32], &[0; 2 * 32 * 32]].concat();
/// std::fs::write(folder.join("test_batch.bin"), record).expect("it can be written");
/// let test = cifar10(folder, Split::Test)?;
/// let image = test.get(0).expect("there is one");
/// assert_eq!((test.classes(), image.label, image.pixel(3, 5)), (10, 7, [255, 0, 0]));
/// # Ok::<_, epl_models::vision::Error>(())
/// ```
///
/// # Errors
///
/// When a file is missing, is no list of whole records, or has another class.
pub fn cifar10(folder: impl AsRef<Path>, split: Split) -> Result<StoredImages> {
    let files = match split {
        Split::Training => (1..=5).map(|number| format!("data_batch_{number}.bin")).collect(),
        Split::Test => vec!["test_batch.bin".to_string()],
    };
    read(&below(folder.as_ref(), "cifar-10-batches-bin"), &files, (1, 10))
}

/// CIFAR-100, as [`cifar10`]: 100 classes, whose 20 groups are not read. `folder` has `train.bin` and `test.bin`, or is the folder
/// above `cifar-100-binary`, which has them.
///
/// # Errors
///
/// As [`cifar10`].
pub fn cifar100(folder: impl AsRef<Path>, split: Split) -> Result<StoredImages> {
    let file = match split {
        Split::Training => "train.bin",
        Split::Test => "test.bin",
    };
    read(&below(folder.as_ref(), "cifar-100-binary"), &[file.to_string()], (2, 100))
}

/// The folder of that name, if there is one; else the folder itself.
fn below(folder: &Path, name: &str) -> PathBuf {
    let inner = folder.join(name);
    if inner.is_dir() { inner } else { folder.to_path_buf() }
}

/// Records that begin with so many labels, of which the last one is the class, of so many.
fn read(folder: &Path, files: &[String], (labels, classes): (usize, usize)) -> Result<StoredImages> {
    let (mut planes, mut all) = (Vec::new(), Vec::new());
    for file in files {
        let path = folder.join(file);
        let bytes = read_bytes(&path)?;
        let record = labels + IMAGE;
        if bytes.is_empty() || !bytes.len().is_multiple_of(record) {
            let expected = format!("a multiple of {record}");
            let reason = format!("{labels} of the class and {IMAGE} of the pixels for each image");
            return Err(Error::Length { path, found: bytes.len(), expected, reason });
        }
        let own: Vec<u8> = bytes.chunks_exact(record).map(|record| record[labels - 1]).collect();
        check_labels(&path, &own, classes)?;
        all.extend(own);
        bytes.chunks_exact(record).for_each(|record| planes.extend_from_slice(&record[labels..]));
    }
    Ok(StoredImages { planes: planes.into(), labels: all.into(), channels: 3, height: SIDE, width: SIDE, classes })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use burn::data::dataset::Dataset;

    use super::*;

    /// Red is the class, green the column, blue the row.
    fn record(labels: &[u8]) -> Vec<u8> {
        let pixels =
            (0..SIDE * SIDE).map(|pixel| [labels[labels.len() - 1], (pixel % SIDE) as u8, (pixel / SIDE) as u8]);
        let pixels: Vec<[u8; 3]> = pixels.collect();
        let planes = (0..3).flat_map(|channel| pixels.iter().map(move |pixel| pixel[channel]));
        labels.iter().copied().chain(planes).collect()
    }

    fn written(folder: &Path, file: &str, records: &[&[u8]]) {
        fs::write(folder.join(file), records.iter().flat_map(|labels| record(labels)).collect::<Vec<_>>()).unwrap();
    }

    #[test]
    fn records_become_images() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("cifar-10-batches-bin");
        fs::create_dir(&folder).unwrap();
        (1..=5).for_each(|number: u8| written(&folder, &format!("data_batch_{number}.bin"), &[&[number], &[9]]));
        written(&folder, "test_batch.bin", &[&[7]]);
        for given in [root.path(), &folder] {
            let training = cifar10(given, Split::Training).unwrap();
            assert_eq!((training.len(), training.classes(), training.size()), (10, 10, [32, 32]));
            let image = training.get(4).unwrap();
            assert_eq!((image.label, image.height, image.width), (3, 32, 32));
            assert_eq!([image.pixel(0, 0), image.pixel(30, 2)], [[3, 0, 0], [3, 2, 30]]);
            let test = cifar10(given, Split::Test).unwrap();
            assert_eq!((test.len(), test.get(0).unwrap().label), (1, 7));
            assert_ne!(test.fingerprint(), training.fingerprint());
        }
        written(root.path(), "train.bin", &[&[3, 99], &[0, 20]]);
        let hundred = cifar100(root.path(), Split::Training).unwrap();
        assert_eq!((hundred.classes(), hundred.get(0).unwrap().label, hundred.get(1).unwrap().label), (100, 99, 20));
        assert_eq!(hundred.get(1).unwrap().pixel(1, 5), [20, 5, 1]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let root = tempfile::tempdir().unwrap();
        let message = || cifar10(root.path(), Split::Test).unwrap_err().to_string();
        assert!(message().contains("test_batch.bin: "), "{}", message());
        fs::write(root.path().join("test_batch.bin"), &record(&[1])[..3000]).unwrap();
        assert!(message().contains("has 3000 bytes and should have a multiple of 3073"), "{}", message());
        fs::write(root.path().join("test_batch.bin"), "").unwrap();
        assert!(message().contains("has 0 bytes"), "{}", message());
        written(root.path(), "test_batch.bin", &[&[1], &[10]]);
        assert!(message().contains("image 1 is of class 10; there are the classes 0 to 9"), "{}", message());
    }
}
