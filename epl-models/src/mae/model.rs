//! The whole model.

use burn::module::Module;
use burn::tensor::Tensor;
use epl_comm::{Error, unwind};
use epl_core::{Context, Model, Place};
use epl_modules::random::Noise;
use epl_modules::{LayerNorm, LayerNormConfig, TransformerLayer};

use super::batch::MaeBatch;
use super::config::MaeConfig;
use super::decoder::MaeDecoder;
use super::masking::Masking;
use crate::vit::PatchEmbeddings;

/// A ViT that fills in patches. Made by [`MaeConfig::init`]; what its encoder has stands under the names of a
/// [`ViT`](crate::ViT), which goes on from it.
///
/// Attention and feed-forward networks are split over the tensor axis.
///
/// ```
/// use burn::tensor::Tensor;
/// use epl_core::{Config, launch};
/// use epl_models::{MaeBatch, MaeConfig, ViTConfig};
///
/// # let encoder = ViTConfig::new(2).with_image_size(8).with_patch_size(4).with_d_model(8).with_d_ff(16).with_heads(2);
/// # let shape = MaeConfig::new(encoder.with_layers(1)).with_decoder_layers(1).with_decoder_d_model(8).with_decoder_d_ff(16);
/// # let shape = shape.with_decoder_heads(2);
/// launch(&Config::new().with("cluster.ranks", 1)?, |epl| {
///     let model = shape.init(epl.place()); // four patches of 4×4 pixels, of which the encoder sees one
///     let noise = Some(vec![vec![0.9, 0.1, 0.5, 0.7]]); // the second; an engine draws it
///     let batch = MaeBatch { pixels: Tensor::ones([1, 3, 8, 8], epl.place().device()), noise };
///     assert_eq!(model.forward(&batch).dims(), [1, 4, 4 * 4 * 3]);
///     let hidden = model.masking(&batch).hidden(epl.place().device(), batch.pixels.dtype());
///     assert_eq!(hidden.into_data().iter::<f32>().collect::<Vec<_>>(), [1.0, 0.0, 1.0, 1.0]);
///     Ok(())
/// })?;
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Module, Debug)]
pub struct Mae {
    /// From an image to the first hidden states.
    pub embeddings: PatchEmbeddings,
    /// The encoder.
    pub layers: Vec<TransformerLayer>,
    /// Normalises the encoder's last states.
    pub norm: LayerNorm,
    /// From what the encoder saw to pixels.
    pub decoder: MaeDecoder,
    #[module(skip)]
    config: MaeConfig,
    #[module(skip)]
    key: u64,
    #[module(skip)]
    context: Context,
}

impl MaeConfig {
    /// Lays out a model; its parameters are drawn later.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a number is impossible or does not fit the mesh, such as heads that the tensor axis does not
    /// divide.
    pub fn init(&self, place: &Place) -> Mae {
        if let Err(error) = self.validate() {
            unwind(Error::invalid(error.to_string()));
        }
        let (encoder, layers) = (self.encoder(), place.child("layers"));
        Mae {
            embeddings: PatchEmbeddings::new(&encoder, &place.child("embeddings")),
            layers: (0..encoder.layers).map(|index| encoder.layer().init(&layers.child(&index.to_string()))).collect(),
            norm: LayerNormConfig::new(encoder.d_model).with_epsilon(encoder.epsilon).init(&place.child("norm")),
            decoder: MaeDecoder::new(self, &place.child("decoder")),
            config: self.clone(),
            key: place.layer_key("masking"),
            context: place.context().clone(),
        }
    }
}

impl Mae {
    /// The shape.
    pub fn config(&self) -> &MaeConfig {
        &self.config
    }

    /// The rank's context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The pixels of all patches, seen or not, of images whose [`noise`](MaeBatch::noise) is given, or that an engine runs. Collective
    /// over the tensor axis. With pipeline stages no rank has the whole model: then only the engine runs it.
    ///
    /// # Shapes
    ///
    /// - output: `[rows, patches, patch_size² · channels]`
    ///
    /// # Errors
    ///
    /// As [`masking`](Self::masking).
    pub fn forward(&self, batch: &MaeBatch) -> Tensor<3> {
        self.forward_all(batch)
    }

    /// Which patches the encoder sees: a pure function of the batch or, where it says nothing, of the seed, the step and the
    /// samples, so that each segment that asks learns the same. An evaluation hides the same patches whenever it is made.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the batch has another number of images than the pass has samples, or another of patches.
    pub fn masking(&self, batch: &MaeBatch) -> Masking {
        let (rows, patches) = (batch.pixels.dims()[0], self.config.encoder.patches());
        let sizes = [patches, self.config.kept()];
        if let Some(noise) = &batch.noise {
            check_rows(rows, noise.len(), "numbers for the patches of");
            return Masking::new(noise, sizes);
        }
        let samples = self.context.samples();
        check_rows(rows, samples.len(), "the pass has the samples of");
        let step = if self.context.is_training() { self.context.step() } else { 0 };
        let noise = Noise::new(self.context.seed(), step, self.key, 0);
        let of_sample = |sample: &u64| {
            let row = noise.sample(*sample);
            (0..patches).map(|patch| row.uniform(patch) as f32).collect()
        };
        Masking::new(&samples.iter().map(of_sample).collect::<Vec<_>>(), sizes)
    }
}

fn check_rows(images: usize, found: usize, what: &str) {
    if images != found {
        let remedy = "give `noise` for each, or run the model by its engine";
        unwind(Error::invalid(format!("a batch of {images} images, and {what} {found}: {remedy}")));
    }
}
