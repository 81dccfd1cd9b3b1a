//! From what the encoder saw to the pixels of all patches.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_core::{Context, Place};
use epl_modules::embedding::lookup;
use epl_modules::{LayerNorm, LayerNormConfig, ReplicatedLinear, ReplicatedLinearConfig, TransformerLayer};

use super::config::MaeConfig;
use super::masking::Masking;
use crate::vit::sine_cosine;

/// Layers that see all patches: what the encoder says of those that it saw, and one vector for all others.
#[derive(Module, Debug)]
pub struct MaeDecoder {
    /// From the encoder's width to that of the decoder.
    pub entrance: ReplicatedLinear,
    /// What stands for a patch that was not seen. Shape `[1, 1, decoder_d_model]`.
    pub mask_token: Param<Tensor<3>>,
    /// The vectors of the positions, frozen. Shape `[1, patches + 1, decoder_d_model]`.
    pub positions: Param<Tensor<3>>,
    /// The layers.
    pub layers: Vec<TransformerLayer>,
    /// Normalises the last states.
    pub norm: LayerNorm,
    /// From a state to the pixels of a patch.
    pub pixels: ReplicatedLinear,
    #[module(skip)]
    context: Context,
}

impl MaeDecoder {
    pub(super) fn new(config: &MaeConfig, place: &Place) -> Self {
        let (own, layers) = (config.decoder(), place.child("layers"));
        let linear = |sizes: [usize; 2], name: &str| {
            ReplicatedLinearConfig::new(sizes[0], sizes[1])
                .with_initializer(own.initializer())
                .with_bias_initializer(Some(Initializer::Zeros))
                .init(&place.child(name))
        };
        Self {
            entrance: linear([config.encoder.d_model, own.d_model], "entrance"),
            positions: sine_cosine(&own, place),
            mask_token: place.param([1, 1, own.d_model], own.initializer()),
            layers: (0..own.layers).map(|index| own.layer().init(&layers.child(&index.to_string()))).collect(),
            norm: LayerNormConfig::new(own.d_model).with_epsilon(own.epsilon).init(&place.child("norm")),
            pixels: linear([own.d_model, config.patch_numbers()], "pixels"),
            context: place.context().clone(),
        }
    }

    /// All patches in their places, with those of their positions.
    ///
    /// # Shapes
    ///
    /// - seen: `[rows, 1 + kept, d_model]`
    /// - output: `[rows, 1 + patches, decoder_d_model]`
    pub(super) fn enter(&self, seen: Tensor<3>, masking: &Masking) -> Tensor<3> {
        let seen: Tensor<2> = self.entrance.forward(seen).flatten(0, 1);
        let sources = masking.sources(&seen.device().without_autodiff());
        let mask_token = self.mask_token.val().flatten::<2>(0, 1);
        let whole = lookup(Tensor::cat(vec![seen, mask_token], 0), sources);
        self.context.count_flops(Some(self.positions.id), 0.0);
        whole + self.positions.val()
    }

    /// The pixels of each patch.
    ///
    /// # Shapes
    ///
    /// - hidden: `[rows, 1 + patches, decoder_d_model]`
    /// - output: `[rows, patches, patch_size² · channels]`
    pub(super) fn leave(&self, hidden: Tensor<3>) -> Tensor<3> {
        let patches = hidden.dims()[1] - 1;
        self.pixels.forward(self.norm.forward(hidden.narrow(1, 1, patches)))
    }
}
