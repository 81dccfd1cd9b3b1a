//! One layer: a part across patches, and a part across channels.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_core::Place;
use epl_core::model::precision::in_wide;
use epl_modules::{DropPath, DropPathConfig, ParallelMlp, ReplicatedLinear, residual};

use super::affine::Affine;
use super::config::ResMlpConfig;

/// `X = X + s₁ (W (α₁ X + β₁)ᵀ)ᵀ`, then `X = X + s₂ MLP(α₂ X + β₂)`, each sum without its second part for the samples that drop it.
///
/// The product across patches is whole on every rank of the tensor axis, the feed-forward part is split.
#[derive(Module, Debug)]
pub struct ResMlpLayer {
    /// In front of the product across patches.
    pub patch_norm: Affine,
    /// The product across patches, the same for all channels. Weight `[patches, patches]`
    pub patches: ReplicatedLinear,
    /// s₁, by channel. Shape `[d_model]`
    pub patch_scale: Param<Tensor<1>>,
    /// In front of the feed-forward part.
    pub channel_norm: Affine,
    /// The feed-forward part.
    pub channels: ParallelMlp,
    /// s₂, by channel. Shape `[d_model]`
    pub channel_scale: Param<Tensor<1>>,
    /// Leaves a part out for whole samples.
    pub drop_path: DropPath,
}

impl ResMlpLayer {
    pub(super) fn new(config: &ResMlpConfig, place: &Place) -> Self {
        let (d_model, patches) = (config.d_model, config.patches());
        let affine = |name: &str| Affine::new(d_model, &place.child(name));
        let scale = || {
            let first = Initializer::Constant { value: config.layer_scale };
            place.full_precision(place.param([d_model], first))
        };
        Self {
            patch_norm: affine("patch_norm"),
            patches: config.linear(patches, patches).init(&place.child("patches")),
            patch_scale: scale(),
            channel_norm: affine("channel_norm"),
            channels: config.feed_forward().init(&place.child("channels")),
            channel_scale: scale(),
            drop_path: DropPathConfig::new(config.drop_path).init(&place.child("drop_path")),
        }
    }

    /// Applies the layer. Collective over the tensor axis.
    ///
    /// # Shapes
    ///
    /// - hidden and output: `[rows, patches, d_model]`
    pub fn forward(&self, hidden: Tensor<3>) -> Tensor<3> {
        let hidden = residual(hidden, |hidden| {
            let across = self.patches.forward(self.patch_norm.forward(hidden).swap_dims(1, 2)).swap_dims(1, 2);
            self.kept(across, &self.patch_scale)
        });
        residual(hidden, |hidden| {
            let inside = self.channels.forward(self.channel_norm.forward(hidden));
            self.kept(inside, &self.channel_scale)
        })
    }

    /// A part's output, scaled; zeros for the samples that drop it.
    fn kept(&self, part: Tensor<3>, scale: &Param<Tensor<1>>) -> Tensor<3> {
        in_wide(part, |part| self.drop_path.forward(part * scale.val().unsqueeze::<3>()))
    }
}
