//! A Swin transformer from a folder of Hugging Face.

use std::path::Path;

use epl_core::ParamRecord;
use epl_modules::Activation;

use super::config::{SwinConfig, SwinVersion};
use super::model::Swin;
use super::names::SwinNames;
use crate::huggingface::{self, Folder, JsonConfig, Result};
use crate::vision::ClassLayer;

impl SwinConfig {
    /// The shape that a folder's `config.json` describes.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](huggingface::Error::Unsupported) for another architecture, [`Error::Config`](huggingface::Error::Config) for a value that this Swin has not.
    pub fn from_huggingface(folder: &Folder) -> Result<Self> {
        let (json, model_type) = (folder.config(), folder.model_type()?);
        let version = match model_type {
            "swin" => SwinVersion::V1,
            "swinv2" => SwinVersion::V2,
            other => return Err(folder.unsupported(other, "swin and swinv2")),
        };
        if !json.flag_or("qkv_bias", true)? {
            return Err(json.error("qkv_bias", "is false; queries and values of a Swin have biases here"));
        }
        let config = read_shape(json, version)?;
        let checked = config.validate();
        json.checked(config, checked)
    }
}

fn read_shape(json: &JsonConfig, version: SwinVersion) -> Result<SwinConfig> {
    let learned = match version {
        SwinVersion::V2 if json.has("pretrained_window_sizes") => json.counts("pretrained_window_sizes")?,
        _ => Vec::new(),
    };
    // As published, zeros for four stages, whatever their number.
    let learned = if learned.iter().all(|side| *side == 0) { Vec::new() } else { learned };
    Ok(SwinConfig::new(json.classes()?)
        .with_version(version)
        .with_image_size(json.count_or("image_size", 224)?)
        .with_patch_size(json.count_or("patch_size", 4)?)
        .with_channels(json.count_or("num_channels", 3)?)
        .with_embedding_size(json.count("embed_dim")?)
        .with_depths(json.counts("depths")?)
        .with_heads(json.counts("num_heads")?)
        .with_window(json.count_or("window_size", 7)?)
        .with_pretrained_windows(learned)
        .with_mlp_ratio(json.number_or("mlp_ratio", 4.0)?)
        .with_absolute_positions(json.flag_or("use_absolute_embeddings", false)?)
        .with_activation(json.activation_or("hidden_act", Activation::Gelu)?)
        .with_dropout(json.number_or("hidden_dropout_prob", 0.0)?)
        .with_attention_dropout(json.number_or("attention_probs_dropout_prob", 0.0)?)
        .with_drop_path(json.number_or("drop_path_rate", 0.1)?)
        .with_epsilon(json.number_or("layer_norm_eps", 1e-5)?)
        .with_deviation(json.number_or("initializer_range", 0.02)?))
}

/// Fills a model from a folder: every rank reads what its records say it holds. They are
/// [`Plan::records`](epl_core::Plan::records), which [`try_map`](epl_core::LaidOutModel::try_map) gives with the model.
///
/// A class layer that the folder lacks keeps its first values, as when a published Swin begins to learn other classes.
///
/// ```
/// use epl_core::{Config, launch};
/// use epl_models::{SwinConfig, swin};
///
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// # let shape = SwinConfig::new(4).with_image_size(8).with_patch_size(2).with_window(2).with_embedding_size(8);
/// # let shape = shape.with_depths(vec![1, 1]).with_heads(vec![2, 4]);
/// let whole = launch(&Config::new().with("cluster.ranks", 1)?, |epl| epl.build(|at| shape.init(at))?.parameters())?;
/// swin::export(&shape, &whole[0], &folder)?;
///
/// // Two ranks read their halves of heads, hidden features and classes.
/// let (stored, shape) = swin::open(&folder)?;
/// launch(&Config::new().with("cluster.ranks", 2)?.with("dist.tensor_parallel_size", 2)?, |epl| {
///     let built = epl.build(|at| shape.init_split(at))?;
///     let built = built.try_map(|model, plan| Ok(swin::load(model, plan.records(), &stored)?))?;
///     assert_eq!(built.parameters()?, whole[0]);
///     Ok(())
/// })?;
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// # Errors
///
/// See [`huggingface::load`].
pub fn load<C: ClassLayer>(model: Swin<C>, records: &[ParamRecord], folder: &Folder) -> Result<Swin<C>> {
    let names = SwinNames::new(model.config().version, folder);
    huggingface::load(model, records, folder, &names)
}

/// Opens a folder whose architecture is one that is read here.
///
/// # Errors
///
/// As [`Folder::open`] and [`SwinConfig::from_huggingface`].
pub fn open(path: impl AsRef<Path>) -> Result<(Folder, SwinConfig)> {
    let folder = Folder::open(path)?;
    let config = SwinConfig::from_huggingface(&folder)?;
    Ok((folder, config))
}
