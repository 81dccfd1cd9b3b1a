//! What is learned: the images and their classes.

use std::sync::Arc;

use burn::data::dataset::Dataset;
use epl::config::Config;
use epl::models::vision::{Error, ImageFolderConfig, LabelledImage, Shapes, ShapesConfig};

use crate::args::Args;

/// Images, wherever they come from.
pub type Images = Arc<dyn Dataset<LabelledImage>>;

/// Images to learn from and to be judged by.
pub struct Task {
    pub train: Images,
    /// None without a folder to evaluate on.
    pub valid: Option<Images>,
    /// The names of the classes.
    pub classes: Vec<String>,
    /// What tells the images to learn from from others.
    pub fingerprint: String,
}

impl Task {
    /// Lists or makes the images.
    pub fn prepare(args: &Args, config: &Config) -> Result<Self, Error> {
        let task = match &args.images {
            None => {
                let shapes = ShapesConfig::new().with_size(args.size()).with_seed(config.train.seed);
                let split = shapes.init()?;
                let classes = (0..epl::models::vision::shapes::CLASSES).map(Shapes::class_name).collect();
                let (train, valid) = (Arc::new(split.training), Some(Arc::new(split.held_out) as Images));
                Self { train, valid, classes, fingerprint: shapes.to_string() }
            }
            Some(folder) => {
                let whole = ImageFolderConfig::new(args.size());
                let train = whole.clone().with_variants(args.variants).with_seed(config.train.seed).open(folder)?;
                let classes = train.classes().to_vec();
                let valid = args.valid.as_ref().map(|valid| whole.open_with_classes(valid, &classes)).transpose()?;
                let left_out = train.left_out() + valid.as_ref().map_or(0, |valid| valid.left_out());
                println!("{} image files, {left_out} other files left out", train.images());
                let fingerprint = train.fingerprint()?;
                let valid = valid.map(|valid| Arc::new(valid) as Images);
                Self { train: Arc::new(train), valid, classes, fingerprint }
            }
        };
        let valid = task.valid.as_ref().map_or(0, |valid| valid.len());
        println!("{} training images, {valid} to evaluate on, {} classes", task.train.len(), task.classes.len());
        Ok(task)
    }
}
