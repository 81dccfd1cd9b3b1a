//! A ResMLP from a folder of timm.

use std::path::Path;

use epl_core::ParamRecord;

use super::config::ResMlpConfig;
use super::model::ResMlp;
use super::names::ResMlpNames;
use crate::huggingface::{self, Folder, Result};
use crate::vision::ClassLayer;

/// How the architectures begin that are read here, as `architecture` names them.
const SUPPORTED: &str = "resmlp_";

/// What timm calls the published sizes.
pub(super) const ARCHITECTURES: [(&str, fn(usize) -> ResMlpConfig); 4] = [
    ("resmlp_12_224", ResMlpConfig::s12),
    ("resmlp_24_224", ResMlpConfig::s24),
    ("resmlp_36_224", ResMlpConfig::s36),
    ("resmlp_big_24_224", ResMlpConfig::b24),
];

impl ResMlpConfig {
    /// The shape of a folder's model: that of its weights, as timm's `config.json` names an architecture and says little more. Of
    /// `model_args` it takes `drop_path_rate`, of the architecture what layers are scaled by at first.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](huggingface::Error::Unsupported) for another architecture, [`Error::Config`](huggingface::Error::Config)
    /// for weights that are not those of a ResMLP.
    pub fn from_timm(folder: &Folder) -> Result<Self> {
        let (json, architecture) = (folder.config(), folder.model_type()?);
        if !architecture.starts_with(SUPPORTED) {
            return Err(folder.unsupported(architecture, "timm's resmlp_*"));
        }
        let wrong = |reason: String| json.error("architecture", format!("is `{architecture}`, but {reason}"));
        let shape = |name: &str, sides: usize| match folder.shape(name) {
            Some(shape) if shape.len() == sides => Ok(shape.to_vec()),
            Some(shape) => Err(wrong(format!("`{name}` is {shape:?}; it should have {sides} sides"))),
            None => Err(wrong(format!("there is no `{name}` among the weights"))),
        };
        let stem = shape("stem.proj.weight", 4)?;
        let (tokens, hidden) =
            (shape("blocks.0.linear_tokens.weight", 2)?, shape("blocks.0.mlp_channels.fc1.weight", 2)?);
        let side = tokens[0].isqrt();
        if side * side != tokens[0] {
            return Err(wrong(format!("{} patches are no square of them", tokens[0])));
        }
        let block = |name: &str| name.strip_prefix("blocks.")?.split('.').next()?.parse::<usize>().ok();
        let layers = folder.names().filter_map(block).max().map_or(0, |last| last + 1);
        let classes = if json.has("num_classes") { json.count("num_classes")? } else { 1000 };
        let published = ARCHITECTURES.iter().find(|(name, _)| *name == architecture).map(|(_, config)| config(classes));
        let scale = published.unwrap_or_else(|| Self::new(classes)).layer_scale;
        let drop_path =
            if json.has("model_args") { json.object("model_args")?.number_or("drop_path_rate", 0.0)? } else { 0.0 };
        // Without a class layer a program sets how many classes there are.
        let config = Self::new(folder.shape("head.weight").map_or(classes.max(2), |shape| shape[0]))
            .with_image_size(side * stem[2])
            .with_patch_size(stem[2])
            .with_channels(stem[1])
            .with_d_model(stem[0])
            .with_d_ff(hidden[0])
            .with_layers(layers)
            .with_layer_scale(scale)
            .with_drop_path(drop_path);
        config.validate().map_err(|error| wrong(error.to_string()))?;
        Ok(config)
    }
}

/// Fills a model from a folder: every rank reads what its records say it holds. They are
/// [`Plan::records`](epl_core::Plan::records), which [`try_map`](epl_core::LaidOutModel::try_map) gives with the model.
///
/// A class layer that the folder lacks (`num_classes` 0) keeps its first values; [`open`]'s configuration has 2 classes then, unless
/// another number is set there.
///
/// ```
/// use epl_core::{Config, launch};
/// use epl_models::{ResMlpConfig, resmlp};
///
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// # let shape = ResMlpConfig::new(4).with_image_size(8).with_patch_size(4).with_d_model(8).with_d_ff(16).with_layers(1);
/// launch(&Config::new().with("cluster.ranks", 1)?, |epl| {
///     let parameters = epl.build(|at| shape.init(at))?.parameters()?;
///     resmlp::export(&shape, &parameters, &folder)?;
///
///     let (stored, found) = resmlp::open(&folder)?; // as of `timm.models.save_for_hf`
///     let built = epl.build(|at| found.init(at))?;
///     let built = built.try_map(|model, plan| Ok(resmlp::load(model, plan.records(), &stored)?))?;
///     assert_eq!(built.parameters()?, parameters);
///     Ok(())
/// })?;
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// # Errors
///
/// See [`huggingface::load`].
pub fn load<C: ClassLayer>(model: ResMlp<C>, records: &[ParamRecord], folder: &Folder) -> Result<ResMlp<C>> {
    huggingface::load(model, records, folder, &ResMlpNames::new(folder))
}

/// Opens a folder of timm, as `timm.models.save_for_hf` writes it and as it is published: `config.json` with an `architecture`, and
/// `model.safetensors`.
///
/// # Errors
///
/// As [`Folder::open`] and [`ResMlpConfig::from_timm`].
pub fn open(path: impl AsRef<Path>) -> Result<(Folder, ResMlpConfig)> {
    let folder = Folder::open(path)?;
    let config = ResMlpConfig::from_timm(&folder)?;
    Ok((folder, config))
}
