//! A ViT with a projector in the place of its classes.

use burn::module::Module;
use burn::tensor::Tensor;
use epl_core::Place;
use epl_modules::{LayerNorm, LayerNormConfig, TransformerInput, TransformerLayer};

use super::config::MocoConfig;
use super::head::MocoHead;
use crate::vit::PatchEmbeddings;

/// An encoder and its projector: what learns, or follows. All but the projector has the names of a [`ViT`](crate::ViT).
#[derive(Module, Debug)]
pub struct MocoEncoder {
    /// From an image to the first hidden states.
    pub embeddings: PatchEmbeddings,
    /// The encoder.
    pub layers: Vec<TransformerLayer>,
    /// Normalises the last state of the class token.
    pub norm: LayerNorm,
    /// From features to what is contrasted, or predicted.
    pub projector: MocoHead,
}

impl MocoEncoder {
    pub(super) fn new(config: &MocoConfig, place: &Place) -> Self {
        let (encoder, layers, layer) = (config.encoder(), place.child("layers"), config.layer());
        let mut embeddings = PatchEmbeddings::new(&encoder, &place.child("embeddings"));
        if config.frozen_projection {
            embeddings.projection = embeddings.projection.no_grad();
        }
        let widths = [encoder.d_model, config.mlp_dim, config.mlp_dim, config.dim];
        Self {
            embeddings,
            layers: (0..encoder.layers).map(|index| layer.init(&layers.child(&index.to_string()))).collect(),
            norm: LayerNormConfig::new(encoder.d_model).with_epsilon(encoder.epsilon).init(&place.child("norm")),
            projector: MocoHead::new(&widths, &place.child("projector")),
        }
    }

    /// Runs a layer, the first one behind the embeddings.
    ///
    /// # Shapes
    ///
    /// - hidden and output: `[rows, patches + 1, d_model]`
    pub(super) fn layer(&self, index: usize, hidden: Tensor<3>) -> Tensor<3> {
        self.layers[index].forward(TransformerInput::new(hidden)).hidden
    }

    /// What the projector makes of the class token. In training it is a collective of the replicas.
    ///
    /// # Shapes
    ///
    /// - hidden: `[rows, patches + 1, d_model]`
    /// - output: `[rows, dim]`
    pub(super) fn project(&self, hidden: Tensor<3>) -> Tensor<2> {
        self.projector.forward(self.norm.forward(hidden.narrow(1, 0, 1)).flatten(1, 2))
    }
}
