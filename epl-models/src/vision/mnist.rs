//! MNIST, and what is published in its format, as Fashion-MNIST.
//!
//! An IDX file begins with four bytes, of which the third says that its values are bytes and the fourth how many sides they have, and
//! the lengths of these sides, each in four bytes, the highest first. *Gradient-based learning applied to document recognition*,
//! LeCun et al., 1998.

use std::path::{Path, PathBuf};

use super::error::{Error, Result};
use super::stored::{Split, StoredImages, check_labels, read_bytes};

/// The classes of either data set.
const CLASSES: usize = 10;

/// MNIST or Fashion-MNIST: 60,000 images of 10 classes to learn from, 10,000 to be judged by, of 28×28 grey pixels, which are given
/// as red, green and blue that are alike.
///
/// `folder` has `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, and the same of `t10k`, each perhaps packed by gzip, with `.gz`
/// behind its name.
///
/// ```no_run
/// use epl_models::vision::{Split, mnist};
///
/// let (training, test) = (mnist("data/mnist", Split::Training)?, mnist("data/mnist", Split::Test)?);
/// assert_eq!((training.classes(), test.size()), (10, [28, 28]));
/// # Ok::<_, epl_models::vision::Error>(())
/// ```
///
/// # Errors
///
/// When a file is missing or begins otherwise, has more or fewer bytes than it says, or another class; when there are not as many
/// classes as images.
pub fn mnist(folder: impl AsRef<Path>, split: Split) -> Result<StoredImages> {
    let part = match split {
        Split::Training => "train",
        Split::Test => "t10k",
    };
    let folder = folder.as_ref();
    let (path, [count, height, width], planes) = read(folder, &format!("{part}-images"))?;
    let (other, [labelled], labels) = read(folder, &format!("{part}-labels"))?;
    if count != labelled {
        return Err(Error::Counts { path, images: count, other, labels: labelled });
    }
    if planes.is_empty() {
        return Err(Error::Empty { path, sides: [count, height, width] });
    }
    check_labels(&other, &labels, CLASSES)?;
    Ok(StoredImages { planes: planes.into(), labels: labels.into(), channels: 1, height, width, classes: CLASSES })
}

/// A file, the lengths of the sides of its values, and the values.
fn read<const SIDES: usize>(folder: &Path, name: &str) -> Result<(PathBuf, [usize; SIDES], Vec<u8>)> {
    let names = ["-", "."].map(|between| format!("{name}{between}idx{SIDES}-ubyte"));
    let names = names.map(|name| [format!("{name}.gz"), name]).concat();
    let Some(path) = names.iter().map(|name| folder.join(name)).find(|path| path.is_file()) else {
        return Err(Error::NoFile { folder: folder.to_path_buf(), names: names.join(", ") });
    };
    let mut bytes = read_bytes(&path)?;
    let expected = [0, 0, 0x08, SIDES as u8];
    if !bytes.starts_with(&expected) {
        let found = bytes[..bytes.len().min(expected.len())].to_vec();
        return Err(Error::Magic { path, found, expected: expected.to_vec(), kind: "an IDX file of bytes" });
    }
    let head = 4 + 4 * SIDES;
    let mut sides = [0; SIDES];
    let words = bytes.get(4..head).into_iter().flat_map(|words| words.chunks_exact(4));
    for (side, word) in sides.iter_mut().zip(words) {
        *side = word.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    }
    let values = sides.iter().try_fold(1_usize, |product, side| product.checked_mul(*side));
    let whole = values.and_then(|values| values.checked_add(head));
    if whole != Some(bytes.len()) {
        let expected = whole.map_or_else(|| "more than can be".to_string(), |whole| whole.to_string());
        let reason = format!("{head} in front of {sides:?} values");
        return Err(Error::Length { path, found: bytes.len(), expected, reason });
    }
    Ok((path, sides, bytes.split_off(head)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use burn::data::dataset::Dataset;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn idx(sides: &[u32], values: &[u8]) -> Vec<u8> {
        let lengths = sides.iter().flat_map(|side| side.to_be_bytes());
        [0, 0, 8, sides.len() as u8].into_iter().chain(lengths).chain(values.iter().copied()).collect()
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn files_become_grey_images() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: Vec<u8>| fs::write(root.path().join(name), bytes).unwrap();
        write("train-images-idx3-ubyte.gz", packed(&idx(&[2, 2, 3], &(0..12).collect::<Vec<_>>())));
        write("train-labels-idx1-ubyte", idx(&[2], &[4, 9]));
        write("t10k-images.idx3-ubyte", idx(&[1, 1, 1], &[200]));
        write("t10k-labels.idx1-ubyte.gz", packed(&idx(&[1], &[0])));
        let training = mnist(root.path(), Split::Training).unwrap();
        assert_eq!((training.len(), training.classes(), training.size()), (2, 10, [2, 3]));
        let image = training.get(1).unwrap();
        assert_eq!((image.label, image.pixel(0, 0), image.pixel(1, 2)), (9, [6; 3], [11; 3]));
        assert_eq!(mnist(root.path(), Split::Test).unwrap().get(0).unwrap().pixels, [200; 3]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let root = tempfile::tempdir().unwrap();
        let (images, labels) =
            (root.path().join("train-images-idx3-ubyte"), root.path().join("train-labels-idx1-ubyte"));
        let message = || mnist(root.path(), Split::Training).unwrap_err().to_string();
        assert!(
            message().contains("none of the files train-images-idx3-ubyte.gz, train-images-idx3-ubyte"),
            "{}",
            message()
        );
        fs::write(&labels, idx(&[2], &[4, 9])).unwrap();
        for (bytes, said) in [
            (idx(&[2], &[0; 2]), "begins with [00, 00, 08, 01] and should with [00, 00, 08, 03]"),
            (vec![0, 0], "begins with [00, 00] and should"),
            (idx(&[2, 2, 3], &[0; 11]), "has 27 bytes and should have 28 (16 in front of [2, 2, 3] values)"),
            (idx(&[2, 2, 3], &[0; 13]), "has 29 bytes and should have 28"),
            (idx(&[2, 2, 3], &[])[..9].to_vec(), "has 9 bytes and should have "),
            (idx(&[u32::MAX, u32::MAX, u32::MAX], &[]), "should have more than can be"),
            (idx(&[3, 1, 1], &[0; 3]), "has 3 images and "),
            (packed(&idx(&[2, 2, 3], &[0; 12]))[..20].to_vec(), "is no whole gzip file"),
        ] {
            fs::write(&images, bytes).unwrap();
            assert!(message().contains(said), "{said}: {}", message());
        }
        fs::write(&images, idx(&[2, 1, 1], &[0; 2])).unwrap();
        fs::write(&labels, idx(&[2], &[4, 10])).unwrap();
        assert!(
            message().contains("train-labels-idx1-ubyte: image 1 is of class 10; there are the classes 0 to 9"),
            "{}",
            message()
        );
    }
}
