//! What the models of images learn: coloured shapes, a folder, CIFAR or MNIST, and what its images go through.

use std::path::PathBuf;
use std::sync::Arc;

use burn::data::dataset::Dataset;
use clap::{Args, ValueEnum};
use epl::config::Config;
use epl::data::{ShuffledSampler, TrainData, ValidData};
use epl::models::vision::shapes::CLASSES;
use epl::models::vision::transform::{RandAugment, RandomCrop};
use epl::models::vision::{
    Augmented, ImageBatch, ImageBatcher, ImageFolder, LabelledImage, Mixing, ShapesConfig, Split, StoredImages,
    Transforms, cifar10, cifar100, mnist,
};

/// Images that one replica judges at a time.
const JUDGED: usize = 100;

/// Images, wherever they come from.
type Images = Arc<dyn Dataset<LabelledImage>>;

/// Which images are learned.
#[derive(Args, Debug)]
pub struct ImageArgs {
    /// A folder of training images (.png, .jpg), a folder a class
    #[arg(long, group = "data", value_name = "DIR")]
    images: Option<PathBuf>,
    /// A folder of images to evaluate on, with the same classes
    #[arg(long, requires = "images", value_name = "DIR")]
    valid: Option<PathBuf>,
    /// The folder of CIFAR-10's binary files
    #[arg(long, group = "data", value_name = "DIR")]
    cifar10: Option<PathBuf>,
    /// The folder of CIFAR-100's binary files
    #[arg(long, group = "data", value_name = "DIR")]
    cifar100: Option<PathBuf>,
    /// The folder of the files of MNIST or Fashion-MNIST
    #[arg(long, group = "data", value_name = "DIR")]
    mnist: Option<PathBuf>,
    /// Rows of an image, and its columns, of shapes and folders [default: 32, of a folder 224]
    #[arg(long, conflicts_with_all = ["cifar10", "cifar100", "mnist"], value_name = "N")]
    size: Option<usize>,
    /// What training images go through [default: none for shapes, else crop]
    #[arg(long, value_enum, value_name = "HOW")]
    augment: Option<Augment>,
}

/// What training images go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, ValueEnum)]
enum Augment {
    /// Nothing but what brings them to one size
    None,
    /// A random part of the image, and sometimes its mirror image, but of digits
    Crop,
    /// The same, then two operations of RandAugment
    Rand,
    /// The same, then mixup and cutmix
    Mix,
}

/// Images to learn from and to be judged by.
pub struct Task {
    train: Images,
    /// None without a folder to evaluate on.
    valid: Option<Images>,
    /// How many classes there are.
    pub classes: usize,
    /// Rows of an image, and its columns.
    pub size: usize,
    /// What tells the images to learn from from others, and what they go through.
    pub fingerprint: String,
    seen: Transforms,
    judged: Transforms,
    mixing: Option<Mixing>,
}

impl ImageArgs {
    /// Lists, reads or makes the images.
    pub fn task(&self, config: &Config) -> epl::Result<Task> {
        let (folder, augment) = (self.images.is_some(), self.augment());
        let mut task = match (&self.images, &self.cifar10, &self.cifar100, &self.mnist) {
            (Some(_), ..) => self.of_folder()?,
            (_, Some(path), ..) => Task::stored(cifar10(path, Split::Training)?, cifar10(path, Split::Test)?),
            (_, _, Some(path), _) => Task::stored(cifar100(path, Split::Training)?, cifar100(path, Split::Test)?),
            (_, _, _, Some(path)) => Task::stored(mnist(path, Split::Training)?, mnist(path, Split::Test)?),
            _ => self.of_shapes(config)?,
        };
        if folder {
            task.judged = Transforms::evaluation(task.size)?;
            task.seen = task.judged.clone();
        }
        if augment >= Augment::Crop {
            task.seen = match (folder, &self.mnist) {
                (true, _) => Transforms::resized_crop(task.size)?,
                // A digit's mirror image is none.
                (_, Some(_)) => Transforms::new().then(RandomCrop::new(task.size).with_padding(2))?,
                _ => Transforms::padded_crop(task.size, task.size / 8)?,
            };
        }
        if augment >= Augment::Rand {
            task.seen = task.seen.then(RandAugment::new())?;
        }
        if augment == Augment::Mix {
            task.mixing = Some(Mixing::new().with_mixup(0.8).with_cutmix(1.0));
        }
        task.fingerprint = format!("{}; {:?}; {:?}", task.fingerprint, task.seen, task.mixing);
        let valid = task.valid.as_ref().map_or(0, |valid| valid.len());
        println!("{} training images, {valid} to evaluate on, {} classes", task.train.len(), task.classes);
        Ok(task)
    }

    /// Whether there is something to be judged by.
    pub fn is_judged(&self) -> bool {
        self.images.is_none() || self.valid.is_some()
    }

    /// Whether the images are as large as photographs.
    pub fn is_folder(&self) -> bool {
        self.images.is_some()
    }

    fn augment(&self) -> Augment {
        let is_published = [&self.images, &self.cifar10, &self.cifar100, &self.mnist].into_iter().any(Option::is_some);
        self.augment.unwrap_or(if is_published { Augment::Crop } else { Augment::None })
    }

    fn of_shapes(&self, config: &Config) -> epl::Result<Task> {
        let shapes = ShapesConfig::new().with_size(self.size.unwrap_or(32)).with_seed(config.train.seed);
        let split = shapes.init()?;
        Ok(Task::of(split.training, split.held_out, (CLASSES, shapes.size, shapes.to_string())))
    }

    fn of_folder(&self) -> epl::Result<Task> {
        let train = ImageFolder::open(self.images.as_deref().unwrap_or("".as_ref()))?;
        let classes = train.classes().to_vec();
        let valid = self.valid.as_ref().map(|valid| ImageFolder::open_with_classes(valid, &classes)).transpose()?;
        let left_out = train.left_out() + valid.as_ref().map_or(0, |valid| valid.left_out());
        println!("{left_out} other files left out");
        let said = (classes.len(), self.size.unwrap_or(224), format!("{} of {classes:?}", train.fingerprint()?));
        let task = Task::of(train.clone(), train, said);
        Ok(Task { valid: valid.map(|valid| Arc::new(valid) as Images), ..task })
    }
}

impl Task {
    fn of(
        train: impl Dataset<LabelledImage> + 'static,
        valid: impl Dataset<LabelledImage> + 'static,
        (classes, size, fingerprint): (usize, usize, String),
    ) -> Self {
        let (seen, judged) = (Transforms::new(), Transforms::new());
        let (train, valid) = (Arc::new(train), Some(Arc::new(valid) as Images));
        Self { train, valid, classes, size, fingerprint, seen, judged, mixing: None }
    }

    fn stored(train: StoredImages, valid: StoredImages) -> Self {
        let said = (train.classes(), train.size()[0], train.fingerprint());
        Self::of(train, valid, said)
    }

    /// What a run learns from, so many images a step.
    pub fn train_data(&self, batch: usize, seed: u64) -> epl::Result<TrainData<LabelledImage, ImageBatch>> {
        let sampler = ShuffledSampler::new(self.train.len(), batch, seed)?;
        let seen = Augmented::new(ImageBatcher::new(self.classes), self.seen.clone(), seed);
        match &self.mixing {
            None => TrainData::of_samples(self.train.clone(), seen, sampler),
            Some(mixing) => TrainData::of_samples(self.train.clone(), seen.mixed(mixing.clone())?, sampler),
        }
    }

    /// What a run is judged by, if there is something.
    pub fn valid_data(&self) -> epl::Result<Option<ValidData<LabelledImage, ImageBatch>>> {
        let data = |valid: &Images| {
            let seen = Augmented::new(ImageBatcher::new(self.classes), self.judged.clone(), 0);
            ValidData::of_samples(valid.clone(), seen, JUDGED)
        };
        self.valid.as_ref().map(data).transpose()
    }
}
