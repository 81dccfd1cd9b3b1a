//! The feed-forward network, or its experts, as a residual part of a layer.

use burn::module::Module;
use burn::tensor::Tensor;
use epl_core::Place;

use super::config::TransformerLayerConfig;
use super::frame::{Frame, NormOrder};
use crate::drop_path::{DropPath, DropPathConfig};
use crate::dropout::{Dropout, DropoutConfig};
use crate::mlp::ParallelMlp;
use crate::moe::{Moe, RouterLosses, TokenMask};
use crate::norm::Norm;

/// The feed-forward network, or its experts, with its norm, dropout and residual connection.
#[derive(Module, Debug)]
pub struct FeedForwardPart {
    /// Normalises what enters, or what leaves.
    pub norm: Norm,
    /// Normalises what the network gives, where there are norms around it.
    pub output_norm: Option<Norm>,
    /// The network of a layer without experts.
    pub dense: Option<ParallelMlp>,
    /// The networks of a layer with experts.
    pub moe: Option<Moe>,
    /// Dropout of what is added to the hidden states.
    pub dropout: Dropout,
    /// Leaves out samples of what is added.
    pub drop_path: DropPath,
    #[module(skip)]
    order: NormOrder,
}

impl FeedForwardPart {
    pub(super) fn new(config: &TransformerLayerConfig, place: &Place) -> Self {
        let experts = config.experts.as_ref();
        Self {
            norm: config.part_norm().init(&place.child("norm")),
            output_norm: config.output_norm(place),
            dense: experts.is_none().then(|| config.dense().init(&place.child("dense"))),
            moe: experts.map(|experts| config.moe(experts).init(&place.child("moe"))),
            dropout: DropoutConfig::new(config.dropout).init(place),
            drop_path: DropPathConfig::new(config.drop_path).init(&place.child("drop_path")),
            order: config.norm_order,
        }
    }

    /// Applies the part. `tokens` says which tokens experts are chosen for; it is asked only if there are experts.
    ///
    /// # Shapes
    ///
    /// - hidden, output: `[batch_size, positions, d_model]`
    pub(super) fn forward(
        &self,
        hidden: Tensor<3>,
        tokens: impl FnOnce() -> TokenMask,
    ) -> (Tensor<3>, Option<RouterLosses>) {
        let mut losses = None;
        let network = |mut states| {
            if let Some(dense) = &self.dense {
                states = dense.forward(states);
            }
            if let Some(moe) = &self.moe {
                let (output, of_router) = moe.forward_masked(states, &tokens()).into_parts();
                states = output;
                losses = Some(of_router);
            }
            states
        };
        let frame = Frame {
            order: self.order,
            norm: &self.norm,
            output_norm: self.output_norm.as_ref(),
            dropout: &self.dropout,
            drop_path: &self.drop_path,
        };
        let hidden = frame.around(hidden, network);
        (hidden, losses)
    }
}
