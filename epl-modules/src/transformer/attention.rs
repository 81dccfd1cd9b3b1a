//! Attention as a residual part of a layer.

use burn::module::Module;
use burn::tensor::Tensor;
use epl_core::Place;

use super::config::TransformerLayerConfig;
use super::frame::{Frame, NormOrder};
use crate::attention::{AttentionCache, AttentionInput, MultiHeadAttention, Windows};
use crate::drop_path::{DropPath, DropPathConfig};
use crate::dropout::{Dropout, DropoutConfig};
use crate::norm::Norm;

/// Attention to the layer's own positions, or to a memory, with its norm, dropout and residual connection.
#[derive(Module, Debug)]
pub struct AttentionPart {
    /// Normalises what enters, or what leaves.
    pub norm: Norm,
    /// Normalises what the heads give, where there are norms around them.
    pub output_norm: Option<Norm>,
    /// The heads.
    pub heads: MultiHeadAttention,
    /// Dropout of what is added to the hidden states.
    pub dropout: Dropout,
    /// Leaves out samples of what is added.
    pub drop_path: DropPath,
    #[module(skip)]
    order: NormOrder,
}

impl AttentionPart {
    pub(super) fn new(config: &TransformerLayerConfig, place: &Place) -> Self {
        Self {
            norm: config.part_norm().init(&place.child("norm")),
            output_norm: config.output_norm(place),
            heads: config.heads().init(&place.child("heads")),
            dropout: DropoutConfig::new(config.dropout).init(place),
            drop_path: DropPathConfig::new(config.drop_path).init(&place.child("drop_path")),
            order: config.norm_order,
        }
    }

    /// Attends to what `input` makes of the states, and puts windows together again; with a cache, from new positions only.
    ///
    /// # Shapes
    ///
    /// - hidden, output: `[batch_size, positions, d_model]`
    pub(super) fn forward(
        &self,
        hidden: Tensor<3>,
        input: impl FnOnce(Tensor<3>) -> AttentionInput,
        windows: Option<&Windows>,
        cache: Option<&mut AttentionCache>,
    ) -> Tensor<3> {
        let frame = Frame {
            order: self.order,
            norm: &self.norm,
            output_norm: self.output_norm.as_ref(),
            dropout: &self.dropout,
            drop_path: &self.drop_path,
        };
        frame.around(hidden, |states| {
            let states = match cache {
                Some(cache) => self.heads.forward_cache(input(states), cache),
                None => self.heads.forward(input(states)),
            };
            match windows {
                Some(windows) => windows.joined(states),
                None => states,
            }
        })
    }
}
