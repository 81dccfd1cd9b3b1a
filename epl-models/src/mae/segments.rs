//! The model as a chain of segments, with its loss.

use burn::tensor::Tensor;
use epl_core::model::precision::widen;
use epl_core::{Loss, LossWeights, Model};
use epl_modules::TransformerInput;
use epl_modules::embedding::lookup;

use super::batch::MaeBatch;
use super::model::Mae;

/// The loss of the pixels: their squared distance, the mean over a patch.
const PIXELS: &str = "pixels";
/// Added to the variance of the pixels of a patch.
const EPSILON: f64 = 1e-6;

impl Mae {
    /// What the encoder sees: the class token, and the patches that stay.
    fn enter(&self, batch: &MaeBatch) -> Tensor<3> {
        let [class_token, patches] = self.embeddings.parts(batch.pixels.clone());
        let places = self.masking(batch).places(&patches.device().without_autodiff());
        let kept = lookup(patches.flatten::<2>(0, 1), places);
        Tensor::cat(vec![class_token, kept], 1)
    }

    /// The pixels of each patch as the decoder is to say them, in f32 at least.
    ///
    /// # Shapes
    ///
    /// - output: `[rows, patches, patch_size² · channels]`
    pub fn targets(&self, pixels: Tensor<4>) -> Tensor<3> {
        let [rows, channels, height, _] = pixels.dims();
        let size = self.config().encoder.patch_size;
        let grid = height / size;
        let patches = widen(pixels).reshape([rows, channels, grid, size, grid, size]).permute([0, 2, 4, 3, 5, 1]);
        let patches = patches.reshape([rows, grid * grid, size * size * channels]);
        if !self.config().normalised_pixels {
            return patches;
        }
        let (mean, numbers) = (patches.clone().mean_dim(2), self.config().patch_numbers());
        let apart = patches - mean;
        let variance = apart.clone().square().sum_dim(2) / (numbers - 1) as f64;
        apart / (variance + EPSILON).sqrt()
    }
}

impl Model for Mae {
    type Batch = MaeBatch;
    /// Hidden states of the encoder, `[rows, 1 + kept, d_model]`, or of the decoder, `[rows, 1 + patches, decoder_d_model]`;
    /// behind the last segment pixels.
    type Carry = Tensor<3>;

    fn segments(&self) -> usize {
        self.layers.len() + self.decoder.layers.len() + 1
    }

    fn segment_name(&self, index: usize) -> String {
        let encoder = self.layers.len();
        match index {
            index if index < encoder => format!("layers.{index}"),
            index if index + 1 < self.segments() => format!("decoder.layers.{}", index - encoder),
            _ => "pixels".to_string(),
        }
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        let (encoder, last) = (self.layers.len(), self.segments() - 1);
        let layer = |rest: &str| rest.split('.').next().and_then(|index| index.parse::<usize>().ok());
        match path.split_once('.') {
            Some(("embeddings", _)) => vec![0],
            Some(("layers", rest)) => layer(rest).into_iter().collect(),
            Some(("norm", _)) => vec![encoder],
            Some(("decoder", rest)) => match rest.split_once('.').map_or((rest, ""), |parts| parts) {
                ("layers", rest) => layer(rest).map(|index| encoder + index).into_iter().collect(),
                ("norm" | "pixels", _) => vec![last],
                _ => vec![encoder],
            },
            _ => Vec::new(),
        }
    }

    fn forward_segment(&self, index: usize, carry: Option<Tensor<3>>, batch: &MaeBatch) -> Tensor<3> {
        let encoder = self.layers.len();
        let hidden = carry.unwrap_or_else(|| self.enter(batch));
        if let Some(layer) = self.layers.get(index) {
            return layer.forward(TransformerInput::new(hidden)).hidden;
        }
        let hidden = match index == encoder {
            true => self.decoder.enter(self.norm.forward(hidden), &self.masking(batch)),
            false => hidden,
        };
        match self.decoder.layers.get(index - encoder) {
            Some(layer) => layer.forward(TransformerInput::new(hidden)).hidden,
            None => self.decoder.leave(hidden),
        }
    }

    fn weights(&self, batch: &MaeBatch) -> LossWeights {
        let hidden = self.config().encoder.patches() - self.config().kept();
        LossWeights::new().with(PIXELS, (batch.pixels.dims()[0] * hidden) as f64)
    }

    fn loss(&self, carry: Tensor<3>, batch: &MaeBatch) -> Loss {
        let found = widen(carry);
        let apart = found - self.targets(batch.pixels.clone());
        let [rows, patches, _] = apart.dims();
        let of_patches = apart.square().mean_dim(2).reshape([rows, patches]);
        let hidden = self.masking(batch).hidden(&of_patches.device(), of_patches.dtype());
        Loss::new().with(PIXELS, (of_patches * hidden).sum(), 1.0)
    }
}
