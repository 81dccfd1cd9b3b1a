//! Images of one size, kept in memory as their files have them.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use burn::data::dataset::{Dataset, DatasetError};
use flate2::read::MultiGzDecoder;

use super::error::{Error, Result};
use super::image::LabelledImage;

/// Which part of a published data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// To learn from.
    Training,
    /// To be judged by.
    Test,
}

/// Images of one size with their classes, in memory. A cheap clone.
///
/// Read by [`cifar10`](super::cifar10), [`cifar100`](super::cifar100) or [`mnist`](super::mnist()).
#[derive(Clone, Debug)]
pub struct StoredImages {
    /// Image after image: rows of a channel, channel after channel.
    pub(super) planes: Arc<[u8]>,
    pub(super) labels: Arc<[u8]>,
    pub(super) channels: usize,
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) classes: usize,
}

impl StoredImages {
    /// How many classes there are, whether or not each occurs.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Height and width of all images.
    pub fn size(&self) -> [usize; 2] {
        [self.height, self.width]
    }

    /// What tells these images from others, for a run's checkpoints: see `Trainer::with_invariant`.
    pub fn fingerprint(&self) -> String {
        epl_core::trainer::fingerprint([&self.planes[..], &self.labels[..]])
    }
}

impl Dataset<LabelledImage> for StoredImages {
    fn get(&self, index: usize) -> Result<LabelledImage, DatasetError> {
        assert!(index < self.len(), "image {index} of {}", self.len());
        let plane = self.height * self.width;
        let image = &self.planes[index * self.channels * plane..(index + 1) * self.channels * plane];
        // A single channel is grey: three times the same.
        let byte = |pixel: usize, channel: usize| image[channel.min(self.channels - 1) * plane + pixel];
        let pixels = (0..plane).flat_map(|pixel| [0, 1, 2].map(|channel| byte(pixel, channel))).collect();
        let label = usize::from(self.labels[index]);
        Ok(LabelledImage { pixels, height: self.height, width: self.width, label })
    }

    fn len(&self) -> usize {
        self.labels.len()
    }
}

/// How a file begins that is packed by gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// What a file holds, unpacked.
pub(super) fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(path).map_err(|cause| Error::Read { path: path.to_path_buf(), cause })?;
    if !bytes.starts_with(&GZIP) {
        return Ok(bytes);
    }
    let mut unpacked = Vec::new();
    MultiGzDecoder::new(&bytes[..])
        .read_to_end(&mut unpacked)
        .map_err(|cause| Error::Packed { path: path.to_path_buf(), cause })?;
    Ok(unpacked)
}

/// Refuses a class beyond those that there are.
pub(super) fn check_labels(path: &Path, labels: &[u8], classes: usize) -> Result<()> {
    match labels.iter().position(|label| usize::from(*label) >= classes) {
        None => Ok(()),
        Some(image) => {
            let label = labels[image].into();
            Err(Error::Label { path: path.to_path_buf(), image, label, classes })
        }
    }
}
