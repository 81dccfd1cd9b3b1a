//! Images as normalised tensors.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use epl_comm::{Error, unwind};
use epl_modules::{MixedTargets, Targets, token_weight};

use super::image::LabelledImage;
use crate::rows::IGNORED;

/// Mean and deviation of the channels over ImageNet, for pixels from 0 to 1: what most image models expect.
pub(crate) const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
pub(crate) const DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];

/// Images and their classes.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use epl_models::vision::{IGNORED, ImageBatch};
///
/// let pixels = Tensor::ones([3, 3, 8, 8], &Device::flex());
/// let batch = ImageBatch::new(pixels.clone(), vec![4, 2, IGNORED]);
/// assert_eq!(batch.counted(), 2.0); // the third image is looked at, and is no part of the loss
/// // Mixed with images of the classes 7 and 5, of which the latter has the larger share and so comes first.
/// let batch = ImageBatch::new(pixels, vec![4, 2, IGNORED]).mixed_with(vec![7, 5, IGNORED], vec![0.9, 0.25, 1.0]);
/// assert_eq!(batch.host_labels, [4, 5, IGNORED]);
/// ```
#[derive(Clone, Debug)]
pub struct ImageBatch {
    /// The normalised pixels. Shape `[rows, channels, height, width]`.
    pub pixels: Tensor<4>,
    /// The classes, [`IGNORED`] where an image does not count; of mixed images those with the larger shares, by which an accuracy
    /// judges. Shape `[rows]`.
    pub labels: Tensor<1, Int>,
    /// The same on the host.
    pub host_labels: Vec<i64>,
    /// The other classes of images that are mixed.
    pub mixed: Option<MixedLabels>,
}

/// The second classes of images, which are each a mixture of two.
#[derive(Clone, Debug)]
pub struct MixedLabels {
    /// The classes with the smaller shares. Shape `[rows]`.
    pub others: Tensor<1, Int>,
    /// The share of each image's first class: from a half to 1.
    pub shares: Vec<f64>,
}

epl_core::batch!(ImageBatch { pixels, labels, host_labels, mixed });
epl_core::batch!(MixedLabels { others, shares });

impl ImageBatch {
    /// A batch of pixels that are already normalised.
    ///
    /// # Shapes
    ///
    /// - pixels: `[rows, channels, height, width]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when there is not a label for every row.
    pub fn new(pixels: Tensor<4>, labels: Vec<i64>) -> Self {
        let rows = pixels.dims()[0];
        if labels.len() != rows {
            refuse(format!("a batch of {rows} images has {} labels; give one for every image", labels.len()));
        }
        Self { labels: ids(labels.clone(), &pixels.device()), pixels, host_labels: labels, mixed: None }
    }

    /// With a second class of each image, and the share of the first one; a share below a half exchanges the two. An image that does
    /// not count has no second class: what is given for it is not looked at.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when there are not a class and a share for every row, or a share is not from 0 to 1.
    #[must_use]
    pub fn mixed_with(mut self, mut others: Vec<i64>, mut shares: Vec<f64>) -> Self {
        let rows = self.host_labels.len();
        if others.len() != rows || shares.len() != rows {
            let given = (others.len(), shares.len());
            refuse(format!(
                "a batch of {rows} images has {} second classes and {} shares; give one each",
                given.0, given.1
            ));
        }
        for (row, share) in shares.iter_mut().enumerate() {
            if !(0.0..=1.0).contains(share) {
                refuse(format!("the share of the first class of image {row} is {share}; it should be from 0 to 1"));
            }
            if *share < 0.5 && self.host_labels[row] != IGNORED {
                core::mem::swap(&mut self.host_labels[row], &mut others[row]);
                *share = 1.0 - *share;
            }
        }
        let device = self.pixels.device();
        self.labels = ids(self.host_labels.clone(), &device);
        self.mixed = Some(MixedLabels { others: ids(others, &device), shares });
        self
    }

    /// What logits are judged by.
    pub(crate) fn targets(&self) -> Targets {
        let mixed = |mixed: &MixedLabels| {
            // Without a type they would have the default one, which may be of 16 bits.
            let shares = TensorData::new(mixed.shares.clone(), [mixed.shares.len()]);
            let dtype = if self.pixels.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
            let shares = Tensor::from_data(shares, (&self.pixels.device(), dtype));
            MixedTargets { others: mixed.others.clone(), shares }
        };
        Targets { classes: self.labels.clone(), mixed: self.mixed.as_ref().map(mixed) }
    }

    /// The number of images that count.
    pub fn counted(&self) -> f64 {
        token_weight(&self.host_labels, IGNORED)
    }
}

/// Makes an [`ImageBatch`] of images: from bytes to numbers from 0 to 1, then `(x − mean) ÷ deviation` by channel.
///
/// ```
/// use burn::{data::dataloader::batcher::Batcher, tensor::Device};
/// use epl_models::vision::{ImageBatch, ImageBatcher, LabelledImage};
///
/// let image = LabelledImage { pixels: vec![128; 8 * 8 * 3], height: 8, width: 8, label: 2 };
/// let batch: ImageBatch = ImageBatcher::new(10).batch(vec![image; 4], &Device::flex());
/// assert_eq!((batch.pixels.dims(), batch.host_labels), ([4, 3, 8, 8], vec![2; 4]));
/// ```
#[derive(Clone, Debug)]
pub struct ImageBatcher {
    classes: usize,
    mean: [f32; 3],
    deviation: [f32; 3],
}

impl ImageBatcher {
    /// For models of so many classes, with the mean and deviation of ImageNet.
    pub fn new(classes: usize) -> Self {
        Self { classes, mean: MEAN, deviation: DEVIATION }
    }

    /// What is subtracted from red, green and blue.
    #[must_use]
    pub fn with_mean(mut self, mean: [f32; 3]) -> Self {
        self.mean = mean;
        self
    }

    /// What red, green and blue are divided by.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when one is not a positive number.
    #[must_use]
    pub fn with_deviation(mut self, deviation: [f32; 3]) -> Self {
        if deviation.iter().any(|deviation| !deviation.is_normal() || *deviation < 0.0) {
            refuse(format!("a deviation of {deviation:?} is not three positive numbers"));
        }
        self.deviation = deviation;
        self
    }

    /// The normalised pixels alone.
    ///
    /// # Shapes
    ///
    /// - output: `[rows, 3, height, width]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when images are of different sizes.
    pub fn pixels(&self, images: &[LabelledImage], device: &Device) -> Tensor<4> {
        let (values, [height, width]) = self.values(images);
        Tensor::from_data(TensorData::new(values, [images.len(), 3, height, width]), device)
    }

    /// The normalised pixels of all images, and their height and width.
    pub(super) fn values(&self, images: &[LabelledImage]) -> (Vec<f32>, [usize; 2]) {
        let [height, width] = size_of_all(images);
        let mut values = Vec::with_capacity(images.len() * 3 * height * width);
        images.iter().for_each(|image| self.normalise(image, &mut values));
        (values, [height, width])
    }

    /// Refuses classes that the model has not.
    pub(super) fn check(&self, images: &[LabelledImage]) {
        for (row, image) in images.iter().enumerate() {
            if image.label >= self.classes {
                refuse(format!(
                    "image {row} of a batch is of class {}; the classes of the model are 0 to {}: make it with more \
                     classes",
                    image.label,
                    self.classes.saturating_sub(1)
                ));
            }
        }
    }

    /// One image, channel after channel.
    fn normalise(&self, image: &LabelledImage, values: &mut Vec<f32>) {
        for channel in 0..3 {
            let (mean, scale) = (self.mean[channel], 1.0 / self.deviation[channel]);
            let bytes = image.pixels.iter().skip(channel).step_by(3);
            values.extend(bytes.map(|byte| (f32::from(*byte) / 255.0 - mean) * scale));
        }
    }
}

impl Batcher<LabelledImage, ImageBatch> for ImageBatcher {
    fn batch(&self, images: Vec<LabelledImage>, device: &Device) -> ImageBatch {
        self.check(&images);
        ImageBatch::new(self.pixels(&images, device), images.iter().map(|image| image.label as i64).collect())
    }
}

fn ids(values: Vec<i64>, device: &Device) -> Tensor<1, Int> {
    let rows = values.len();
    Tensor::from_data(TensorData::new(values, [rows]), device)
}

/// The size of all images.
fn size_of_all(images: &[LabelledImage]) -> [usize; 2] {
    let size = images.first().map_or([0, 0], |image| [image.height, image.width]);
    for (row, image) in images.iter().enumerate() {
        let (height, width) = (image.height, image.width);
        if [height, width] != size || image.pixels.len() != 3 * height * width {
            refuse(format!(
                "image {row} of a batch is {height}×{width} ({} bytes) and the first one {}×{}; all images of a \
                     batch have one size, and three bytes a pixel: bring them to one, such as by `Transforms::evaluation`",
                image.pixels.len(),
                size[0],
                size[1]
            ));
        }
    }
    size
}

#[cold]
fn refuse(message: String) -> ! {
    unwind(Error::invalid(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(bytes: [u8; 6], label: usize) -> LabelledImage {
        LabelledImage { pixels: bytes.to_vec(), height: 1, width: 2, label }
    }

    fn refused(images: Vec<LabelledImage>) -> String {
        let batch = || ImageBatcher::new(4).batch(images, &Device::default());
        epl_comm::catch(batch).unwrap_err().to_string()
    }

    #[test]
    fn channels_are_separated_and_normalised() {
        let batcher = ImageBatcher::new(4).with_mean([0.0, 0.2, 1.0]).with_deviation([1.0, 0.5, 0.1]);
        let images = vec![image([0, 51, 255, 255, 255, 0], 3), image([51, 0, 0, 102, 0, 0], 0)];
        let batch = batcher.batch(images, &Device::default());
        assert_eq!(batch.pixels.dims(), [2, 3, 1, 2]);
        let expected = [0.0, 1.0, 0.0, 1.6, 0.0, -10.0, 0.2, 0.4, -0.4, -0.4, -10.0, -10.0];
        let found: Vec<f64> = batch.pixels.into_data().iter().collect();
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?}");
        assert_eq!(batch.labels.into_data().iter::<i64>().collect::<Vec<_>>(), [3, 0]);
        assert_eq!(batch.host_labels, [3, 0]);
    }

    #[test]
    fn rows_that_do_not_count_have_no_weight() {
        let pixels = Tensor::zeros([3, 3, 2, 2], &Device::default());
        assert_eq!(ImageBatch::new(pixels, vec![1, IGNORED, 0]).counted(), 2.0);
    }

    #[test]
    fn the_class_with_the_larger_share_stands_first() {
        let batch = ImageBatch::new(Tensor::zeros([4, 3, 2, 2], &Device::default()), vec![1, 2, IGNORED, 4]);
        let mixed = batch.clone().mixed_with(vec![5, 6, 7, 4], vec![0.75, 0.25, 0.1, 0.5]);
        assert_eq!(mixed.host_labels, [1, 6, IGNORED, 4]);
        let second = mixed.mixed.unwrap();
        assert_eq!(second.others.into_data().iter::<i64>().collect::<Vec<_>>(), [5, 2, 7, 4]);
        assert_eq!(second.shares, [0.75, 0.75, 0.1, 0.5]);
        assert_eq!(mixed.labels.into_data().iter::<i64>().collect::<Vec<_>>(), [1, 6, IGNORED, 4]);
        let refused = |others: usize, share: f64| {
            let mix = || batch.clone().mixed_with(vec![0; others], vec![share; 4]);
            epl_comm::catch(mix).unwrap_err().to_string()
        };
        assert!(refused(3, 0.5).contains("4 images has 3 second classes and 4 shares"));
        assert!(refused(4, 1.5).contains("the first class of image 0 is 1.5; it should be from 0 to 1"));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_numbers() {
        let tall = LabelledImage { height: 2, width: 1, ..image([0; 6], 0) };
        assert!(refused(vec![image([0; 6], 0), tall]).contains("image 1 of a batch is 2×1"));
        let short = LabelledImage { pixels: vec![0; 5], ..image([0; 6], 0) };
        assert!(refused(vec![short]).contains("(5 bytes)"));
        assert!(refused(vec![image([0; 6], 4)]).contains("class 4; the classes of the model are 0 to 3"));
        let pixels = Tensor::zeros([3, 3, 2, 2], &Device::default());
        let error = epl_comm::catch(|| ImageBatch::new(pixels, vec![0])).unwrap_err().to_string();
        assert!(error.contains("3 images has 1 labels"), "{error}");
        for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(epl_comm::catch(|| ImageBatcher::new(4).with_deviation([1.0, bad, 1.0])).is_err(), "{bad}");
        }
    }
}
