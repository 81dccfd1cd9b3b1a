//! Batches of images that are transformed first, on the threads that load data.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::Device;
use epl_core::data::{Sample, SampleBatcher, Samples};

use super::error::Result;
use super::image::LabelledImage;
use super::transform::{Draws, Transforms};

/// Transforms images, then makes a batch of them as another batcher does, such as an [`ImageBatcher`](super::ImageBatcher).
///
/// What is random follows from the seed and the number of a sample, so that each epoch sees other images, and neither the layout nor a
/// stop of the run changes one. In an evaluation the number is the index: transforms that draw nothing are what to take there.
///
/// ```
/// use epl_core::data::{ShuffledSampler, TrainData, ValidData};
/// use epl_models::vision::transform::Transforms;
/// use epl_models::vision::{Augmented, ImageBatch, ImageBatcher, LabelledImage, ShapesConfig, shapes::CLASSES};
/// use burn::data::dataset::Dataset;
///
/// # fn main() -> epl_core::Result<()> {
/// let (shapes, seed) = (ShapesConfig::new().init()?, 1);
/// let sampler = ShuffledSampler::new(shapes.training.len(), 64, seed)?;
/// let seen = Augmented::new(ImageBatcher::new(CLASSES), Transforms::padded_crop(32, 4)?, seed);
/// let training: TrainData<LabelledImage, ImageBatch> = TrainData::of_samples(shapes.training, seen, sampler)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Augmented<K> {
    batcher: K,
    transforms: Transforms,
    seed: u64,
}

impl<K> Augmented<K> {
    /// Images go through the transforms, then into the batcher.
    pub fn new(batcher: K, transforms: Transforms, seed: u64) -> Self {
        Self { batcher, transforms, seed }
    }

    /// What makes a batch of images.
    pub(super) fn batcher(&self) -> &K {
        &self.batcher
    }

    /// What all draws follow from, beside a sample's number.
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// What is seen of images.
    pub(super) fn see(&self, samples: Vec<Sample<LabelledImage>>) -> Result<Vec<LabelledImage>> {
        let see = |sample: Sample<_>| self.transforms.see(sample.item, &mut Draws::new(self.seed, sample.number, 0));
        samples.into_iter().map(see).collect()
    }
}

impl<B, K: Batcher<LabelledImage, B>> SampleBatcher<LabelledImage, B> for Augmented<K> {
    fn batch_samples(&self, samples: Samples<LabelledImage>, device: &Device) -> epl_core::Result<B> {
        Ok(self.batcher.batch(self.see(samples.all)?, device))
    }
}

/// Makes two images of each, by transforms and draws of their own, then a batch of the pairs: for what learns that both show the same.
#[derive(Clone, Debug)]
pub struct Views<K> {
    batcher: K,
    transforms: [Transforms; 2],
    seed: u64,
}

impl<K> Views<K> {
    /// Images go through either of the transforms, then as pairs into the batcher.
    pub fn new(batcher: K, transforms: [Transforms; 2], seed: u64) -> Self {
        Self { batcher, transforms, seed }
    }
}

impl<B, K: Batcher<[LabelledImage; 2], B>> SampleBatcher<LabelledImage, B> for Views<K> {
    fn batch_samples(&self, samples: Samples<LabelledImage>, device: &Device) -> epl_core::Result<B> {
        let see = |view: usize, sample: &Sample<LabelledImage>| {
            let draws = &mut Draws::new(self.seed, sample.number, view as u64);
            self.transforms[view].see(sample.item.clone(), draws)
        };
        let pairs = samples.all.iter().map(|sample| Ok([see(0, sample)?, see(1, sample)?]));
        Ok(self.batcher.batch(pairs.collect::<Result<_>>()?, device))
    }
}

#[cfg(test)]
mod tests {
    use epl_core::data::{BatchShard, Loader, PrefetchConfig, ShuffledSampler, TrainData};

    use super::*;
    use crate::vision::mixing::Mixing;
    use crate::vision::transform::{ColorJitter, GaussianBlur, RandomApply, RandomGrayscale, RandomSolarize};
    use crate::vision::{ImageBatcher, ShapesConfig, shapes};

    const IMAGES: usize = 11;
    const BATCH: usize = 7;

    /// Pixels, classes, other classes and shares of one image.
    type Row = (Vec<f32>, i64, Option<(i64, f64)>);

    fn transforms() -> Transforms {
        Transforms::resized_crop(12).unwrap().then(ColorJitter::new().with_hue(0.1)).unwrap()
    }

    /// The rows that a replica loads in some steps from `position` on, on two threads.
    fn loaded(
        mixing: Option<Mixing>,
        (replica, replicas): (usize, usize),
        position: u64,
        steps: usize,
    ) -> Vec<Vec<Row>> {
        let images = ShapesConfig::new().with_training(IMAGES).with_size(16).init().unwrap().training;
        let sampler = ShuffledSampler::new(IMAGES, BATCH, 5).unwrap();
        let seen = Augmented::new(ImageBatcher::new(shapes::CLASSES), transforms(), 3);
        let data = match mixing {
            None => TrainData::of_samples(images, seen, sampler),
            Some(mixing) => TrainData::of_samples(images, seen.mixed(mixing).unwrap(), sampler),
        };
        let share = BatchShard::new(replica, replicas, 2).unwrap();
        let ahead = PrefetchConfig::new(2, 2).unwrap();
        let mut loader = Loader::start_ahead(&data.unwrap(), share, &Device::default(), position, ahead).unwrap();
        let step = |_| {
            let step = loader.next_step().unwrap().micro_batches;
            step.into_iter().filter(|micro| !micro.empty).flat_map(|micro| rows(micro.batch)).collect()
        };
        (0..steps).map(step).collect()
    }

    fn rows(batch: crate::vision::ImageBatch) -> Vec<Row> {
        let pixels: Vec<f32> = batch.pixels.into_data().iter().collect();
        let others =
            batch.mixed.map(|mixed| (mixed.others.into_data().iter::<i64>().collect::<Vec<_>>(), mixed.shares));
        let each = pixels.len() / batch.host_labels.len();
        let row = |(row, label): (usize, &i64)| {
            let other = others.as_ref().map(|(others, shares)| (others[row], shares[row]));
            (pixels[row * each..(row + 1) * each].to_vec(), *label, other)
        };
        batch.host_labels.iter().enumerate().map(row).collect()
    }

    /// One replica, two and three, whose micro-batches are cut elsewhere, and one that goes on after a stop: all load the same.
    #[test]
    fn no_layout_and_no_stop_changes_a_sample() {
        let mixings = [
            None,
            Some(Mixing::new().with_mixup(0.8)),
            Some(Mixing::new().with_mixup(0.8).with_cutmix(1.0).with_by_sample(true)),
        ];
        for mixing in mixings {
            let whole = loaded(mixing.clone(), (0, 1), 0, 4);
            assert!(whole.iter().all(|step| step.len() == BATCH));
            assert_eq!(loaded(mixing.clone(), (0, 1), 2 * BATCH as u64, 2), whole[2..]);
            for replicas in [2, 3] {
                let parts: Vec<_> =
                    (0..replicas).map(|replica| loaded(mixing.clone(), (replica, replicas), 0, 4)).collect();
                for (step, expected) in whole.iter().enumerate() {
                    let together: Vec<Row> = parts.iter().flat_map(|part| part[step].clone()).collect();
                    assert_eq!(&together, expected, "step {step} of {replicas} replicas");
                }
            }
        }
    }

    /// The first eleven samples are an epoch, the next eleven another: no image is seen the same way.
    #[test]
    fn each_epoch_sees_other_images() {
        let mut seen: Vec<Vec<f32>> =
            loaded(None, (0, 1), 0, 3).concat().into_iter().map(|(pixels, ..)| pixels).collect();
        let count = seen.len();
        seen.sort_by(|a, b| a.partial_cmp(b).unwrap());
        seen.dedup();
        assert_eq!(seen.len(), count);
    }

    /// Keeps the pairs.
    struct Pairs;

    impl Batcher<[LabelledImage; 2], Vec<[LabelledImage; 2]>> for Pairs {
        fn batch(&self, pairs: Vec<[LabelledImage; 2]>, _device: &Device) -> Vec<[LabelledImage; 2]> {
            pairs
        }
    }

    /// What MoCo v3 learns from.
    fn view(blur: f64, solarize: f64) -> Transforms {
        let sometimes = |transforms, probability| RandomApply::new(transforms, probability);
        let jitter = ColorJitter::new().with_brightness(0.4).with_contrast(0.4).with_saturation(0.2).with_hue(0.1);
        let jitter = Transforms::new().then(jitter).unwrap();
        let blurred = Transforms::new().then(GaussianBlur::new(3)).unwrap();
        let view = Transforms::resized_crop(12).unwrap().then(sometimes(jitter, 0.8)).unwrap();
        let view = view.then(RandomGrayscale::new().with_probability(0.2)).unwrap();
        view.then(sometimes(blurred, blur)).unwrap().then(RandomSolarize::new().with_probability(solarize)).unwrap()
    }

    #[test]
    fn two_views_of_an_image_have_draws_of_their_own() {
        let images = ShapesConfig::new().with_training(IMAGES).with_size(16).init().unwrap().training;
        let load = |views: [Transforms; 2], position| {
            let sampler = ShuffledSampler::new(IMAGES, BATCH, 5).unwrap();
            let data = TrainData::of_samples(images.clone(), Views::new(Pairs, views, 3), sampler).unwrap();
            let share = BatchShard::new(0, 1, 1).unwrap();
            let mut loader = Loader::start(&data, share, &Device::default(), position).unwrap();
            loader.next_step().unwrap().micro_batches.remove(0).batch
        };
        let pairs = load([view(1.0, 0.0), view(0.1, 0.2)], 7);
        assert_eq!(pairs.len(), BATCH);
        assert!(pairs.iter().all(|[first, second]| first.label == second.label && first.pixels != second.pixels));
        // The same transforms draw differently, too; and the first view is what a batch of one view has.
        let alike = load([view(1.0, 0.0), view(1.0, 0.0)], 7);
        assert!(alike.iter().all(|[first, second]| first.pixels != second.pixels));
        assert!(alike.iter().zip(&pairs).all(|([alike, _], [first, _])| alike == first));
        assert_ne!(load([view(1.0, 0.0), view(0.1, 0.2)], 14), pairs);
    }
}
