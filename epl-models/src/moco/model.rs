//! The whole model.

use burn::module::Module;
use epl_comm::{Error, unwind};
use epl_core::tensors::AssignMap;
use epl_core::{Context, Place};

use super::config::MocoConfig;
use super::encoder::MocoEncoder;
use super::head::MocoHead;

/// A ViT that learns to tell images apart. Made by [`MocoConfig::init`]; a [`ViT`](crate::ViT) goes on from its encoder by
/// [`encoder_map`].
///
/// Attention and feed-forward networks of both encoders are split over the tensor axis; projectors and predictor every rank holds
/// whole.
#[derive(Module, Debug)]
pub struct Moco {
    /// What learns.
    pub encoder: MocoEncoder,
    /// From what the encoder's projector makes of a view to what the momentum encoder's makes of the other one.
    pub predictor: MocoHead,
    /// What follows the encoder: without gradients.
    pub momentum_encoder: MocoEncoder,
    #[module(skip)]
    config: MocoConfig,
    #[module(skip)]
    context: Context,
}

impl MocoConfig {
    /// Lays out a model; its parameters are drawn later.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a number is impossible or does not fit the mesh, such as heads that the tensor axis does not
    /// divide.
    pub fn init(&self, place: &Place) -> Moco {
        if let Err(error) = self.validate() {
            unwind(Error::invalid(error.to_string()));
        }
        place.declare_over_micro_batch("what views are told from");
        let at = place.child("momentum_encoder");
        let encoder = MocoEncoder::new(self, &place.child("encoder"));
        Moco {
            predictor: MocoHead::new(&[self.dim, self.mlp_dim, self.dim], &place.child("predictor")),
            momentum_encoder: at.moving_average(MocoEncoder::new(self, &at), &encoder, self.decay()),
            encoder,
            config: self.clone(),
            context: place.context().clone(),
        }
    }
}

impl Moco {
    /// The shape.
    pub fn config(&self) -> &MocoConfig {
        &self.config
    }

    /// The rank's context.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

/// Fills a [`ViT`](crate::ViT) of the encoder's shape from the parameters of a [`Moco`]; its class layer keeps its first values.
pub fn encoder_map() -> AssignMap {
    let map = AssignMap::new().with("encoder", "").allow_missing("class_layer");
    ["encoder.projector", "predictor", "momentum_encoder"].into_iter().fold(map, AssignMap::allow_unused)
}
