//! A ResNet from a folder of Hugging Face.

use std::path::Path;

use epl_core::ParamRecord;

use super::config::{ResNetConfig, ResNetLayer};
use super::model::ResNet;
use super::names::ResNetNames;
use crate::huggingface::{self, Folder, JsonConfig, Result};
use crate::vision::ClassLayer;

/// The architecture read here, as `model_type` names it.
const SUPPORTED: &str = "resnet";

impl ResNetConfig {
    /// The shape that a folder's `config.json` describes.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](huggingface::Error::Unsupported) for another architecture, [`Error::Config`](huggingface::Error::Config) for a value that this ResNet has not.
    pub fn from_huggingface(folder: &Folder) -> Result<Self> {
        folder.require(SUPPORTED)?;
        let json = folder.config();
        let config = read_shape(json)?;
        let checked = config.validate();
        json.checked(config, checked)
    }
}

fn read_shape(json: &JsonConfig) -> Result<ResNetConfig> {
    let layer = match json.text_or("layer_type", "bottleneck")? {
        "basic" => ResNetLayer::Basic,
        "bottleneck" => ResNetLayer::Bottleneck,
        other => return Err(json.error("layer_type", format!("is `{other}`; supported are basic and bottleneck"))),
    };
    match json.text_or("hidden_act", "relu")? {
        "relu" => {}
        other => return Err(json.error("hidden_act", format!("is `{other}`; supported is relu"))),
    }
    Ok(ResNetConfig::new(json.classes()?)
        .with_channels(json.count_or("num_channels", 3)?)
        .with_embedding_size(json.count_or("embedding_size", 64)?)
        .with_hidden_sizes(json.counts("hidden_sizes")?)
        .with_depths(json.counts("depths")?)
        .with_layer(layer)
        .with_downsample_in_first_stage(json.flag_or("downsample_in_first_stage", false)?)
        .with_downsample_in_bottleneck(json.flag_or("downsample_in_bottleneck", false)?))
}

/// Fills a model from a folder, running statistics included, as in the example of [`export`](super::export()): every rank reads
/// what its records, those of the [plan](epl_core::Plan::records), say it holds.
///
/// # Errors
///
/// See [`huggingface::load`].
pub fn load<C: ClassLayer>(model: ResNet<C>, records: &[ParamRecord], folder: &Folder) -> Result<ResNet<C>> {
    huggingface::load(model, records, folder, &ResNetNames)
}

/// Opens a folder whose architecture is one that is read here.
///
/// # Errors
///
/// As [`Folder::open`] and [`ResNetConfig::from_huggingface`].
pub fn open(path: impl AsRef<Path>) -> Result<(Folder, ResNetConfig)> {
    let folder = Folder::open(path)?;
    let config = ResNetConfig::from_huggingface(&folder)?;
    Ok((folder, config))
}
