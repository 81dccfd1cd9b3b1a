//! Images and labels stored beside a model, for parity tests.

use burn::tensor::{Device, Tensor};

use super::batch::ImageBatch;
use crate::huggingface::{Reference, Result};

/// The stored inputs of a model of images: normalised pixels, and the labels.
///
/// # Errors
///
/// When an input is missing, or there is not a label for every image.
pub fn reference_batch(reference: &Reference, device: &Device) -> Result<ImageBatch> {
    let (pixels, labels) = (reference.input("pixel_values")?, reference.input("labels")?);
    let (shape, counted) = (pixels.shape().to_vec(), labels.shape().to_vec());
    if shape.len() != 4 || counted != shape[..1] {
        let reason = format!("images {shape:?} and labels {counted:?}; they should be [rows, c, h, w] and [rows]");
        return Err(reference.error(reason));
    }
    Ok(ImageBatch::new(Tensor::from_data(pixels, device), labels.iter().collect()))
}
