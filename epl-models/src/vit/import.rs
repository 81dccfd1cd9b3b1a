//! A ViT from a folder of Hugging Face.

use std::path::Path;

use epl_core::ParamRecord;
use epl_modules::Activation;

use super::config::ViTConfig;
use super::model::ViT;
use super::names::ViTNames;
use crate::huggingface::{self, Folder, JsonConfig, Result};
use crate::vision::ClassLayer;

/// The architectures read here, as `model_type` names them: an MAE has the encoder of a ViT.
const SUPPORTED: [&str; 2] = ["vit", "vit_mae"];
/// The names of all, for errors.
const NAMES: &str = "vit and vit_mae";

impl ViTConfig {
    /// The shape that a folder's `config.json` describes.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](huggingface::Error::Unsupported) for another architecture, [`Error::Config`](huggingface::Error::Config) for a value that this ViT has not.
    pub fn from_huggingface(folder: &Folder) -> Result<Self> {
        let (json, model_type) = (folder.config(), folder.model_type()?);
        if !SUPPORTED.contains(&model_type) {
            return Err(folder.unsupported(model_type, NAMES));
        }
        if !json.flag_or("qkv_bias", true)? {
            return Err(json.error("qkv_bias", "is false; queries, keys and values of a ViT have biases here"));
        }
        let config = read_shape(json)?;
        let checked = config.validate();
        json.checked(config, checked)
    }
}

fn read_shape(json: &JsonConfig) -> Result<ViTConfig> {
    Ok(ViTConfig::new(json.classes()?)
        .with_image_size(json.count_or("image_size", 224)?)
        .with_patch_size(json.count_or("patch_size", 16)?)
        .with_channels(json.count_or("num_channels", 3)?)
        .with_d_model(json.count("hidden_size")?)
        .with_d_ff(json.count("intermediate_size")?)
        .with_heads(json.count("num_attention_heads")?)
        .with_layers(json.count("num_hidden_layers")?)
        .with_activation(json.activation_or("hidden_act", Activation::Gelu)?)
        .with_dropout(json.number_or("hidden_dropout_prob", 0.0)?)
        .with_attention_dropout(json.number_or("attention_probs_dropout_prob", 0.0)?)
        .with_epsilon(json.number_or("layer_norm_eps", 1e-12)?)
        .with_deviation(json.number_or("initializer_range", 0.02)?))
}

/// Fills a model from a folder: every rank reads what its records say it holds. They are
/// [`Plan::records`](epl_core::Plan::records), which [`try_map`](epl_core::LaidOutModel::try_map) gives with the model.
///
/// A class layer that the folder lacks keeps its first values, as when a published ViT begins to learn other classes: those
/// of a `ViTModel` or an MAE, whose `config.json` says none, are 2 in [`open`]'s configuration, and are to be set there.
///
/// ```
/// use epl_core::{Config, launch};
/// use epl_models::{MaeConfig, ViTConfig, mae, vit};
///
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// # let encoder = ViTConfig::new(2).with_image_size(8).with_patch_size(4).with_d_model(8).with_d_ff(16).with_heads(2);
/// # let shape = MaeConfig::new(encoder.with_layers(1)).with_decoder_layers(1).with_decoder_d_model(8).with_decoder_d_ff(16);
/// # let shape = shape.with_decoder_heads(2);
/// launch(&Config::new().with("cluster.ranks", 1)?, |epl| {
///     let pretrained = epl.build(|at| shape.init(at))?.parameters()?; // an MAE, which knows no classes
///     mae::export(&shape, &pretrained, &folder)?;
///
///     let (stored, shape) = vit::open(&folder)?;
///     let built = epl.build(|at| ViTConfig { classes: 10, ..shape.clone() }.init(at))?;
///     let built = built.try_map(|model, plan| Ok(vit::load(model, plan.records(), &stored)?))?;
///     let (loaded, name) = (built.parameters()?, "embeddings.projection.weight");
///     assert_eq!((&loaded[name], &loaded["class_layer.weight"].shape()[..]), (&pretrained[name], &[8, 10][..]));
///     Ok(())
/// })?;
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// # Errors
///
/// See [`huggingface::load`].
pub fn load<C: ClassLayer>(model: ViT<C>, records: &[ParamRecord], folder: &Folder) -> Result<ViT<C>> {
    huggingface::load(model, records, folder, &ViTNames::new(folder))
}

/// Opens a folder whose architecture is one that is read here.
///
/// # Errors
///
/// As [`Folder::open`] and [`ViTConfig::from_huggingface`].
pub fn open(path: impl AsRef<Path>) -> Result<(Folder, ViTConfig)> {
    let folder = Folder::open(path)?;
    let config = ViTConfig::from_huggingface(&folder)?;
    Ok((folder, config))
}
