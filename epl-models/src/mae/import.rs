//! An MAE from a folder of Hugging Face.

use std::path::Path;

use burn::tensor::{Device, Tensor};
use epl_core::ParamRecord;

use super::batch::MaeBatch;
use super::config::MaeConfig;
use super::model::Mae;
use super::names::MaeNames;
use crate::huggingface::{self, Folder, Reference, Result};
use crate::vit::ViTConfig;

/// The architecture read here, as `model_type` names it.
const SUPPORTED: &str = "vit_mae";

impl MaeConfig {
    /// The shape that a folder's `config.json` describes.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](huggingface::Error::Unsupported) for another architecture,
    /// [`Error::Config`](huggingface::Error::Config) for a value that this MAE has not.
    pub fn from_huggingface(folder: &Folder) -> Result<Self> {
        folder.require(SUPPORTED)?;
        let (json, encoder) = (folder.config(), ViTConfig::from_huggingface(folder)?);
        let config = Self::new(encoder)
            .with_decoder_d_model(json.count_or("decoder_hidden_size", 512)?)
            .with_decoder_d_ff(json.count_or("decoder_intermediate_size", 2048)?)
            .with_decoder_heads(json.count_or("decoder_num_attention_heads", 16)?)
            .with_decoder_layers(json.count_or("decoder_num_hidden_layers", 8)?)
            .with_hidden_share(json.number_or("mask_ratio", 0.75)?)
            .with_normalised_pixels(json.flag_or("norm_pix_loss", false)?);
        let checked = config.validate();
        json.checked(config, checked)
    }
}

/// Fills a model from a folder: every rank reads what its records say it holds.
///
/// # Errors
///
/// See [`huggingface::load`].
pub fn load(model: Mae, records: &[ParamRecord], folder: &Folder) -> Result<Mae> {
    huggingface::load(model, records, folder, &MaeNames::new(folder))
}

/// Opens a folder whose architecture is one that is read here.
///
/// # Errors
///
/// As [`Folder::open`] and [`MaeConfig::from_huggingface`].
pub fn open(path: impl AsRef<Path>) -> Result<(Folder, MaeConfig)> {
    let folder = Folder::open(path)?;
    let config = MaeConfig::from_huggingface(&folder)?;
    Ok((folder, config))
}

/// The stored images, with the numbers that say which patches stay.
///
/// # Errors
///
/// When an input is missing.
pub fn reference_batch(reference: &Reference, device: &Device) -> Result<MaeBatch> {
    let noise = reference.input("noise")?;
    let patches = noise.shape().last().copied().unwrap_or(0).max(1);
    let noise: Vec<f32> = noise.iter().collect();
    let noise = noise.chunks(patches).map(<[f32]>::to_vec).collect();
    Ok(MaeBatch { pixels: Tensor::from_data(reference.input("pixel_values")?, device), noise: Some(noise) })
}
