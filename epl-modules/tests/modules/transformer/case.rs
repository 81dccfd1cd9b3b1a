//! What is computed: the layers, and the batch.

use epl_modules::{
    Activation, Capacity, Gate, LayerExpertsConfig, NormKind, NormOrder, RotaryConfig,
    TransformerLayerConfig as LayerConfig,
};

pub(crate) const D_MODEL: usize = 6;
/// Heads that 2 and 3 ranks divide.
pub(crate) const HEADS: usize = 6;
/// Odd, so that the tensor axis cuts it unevenly.
pub(crate) const D_FF: usize = 13;
/// Real positions of every sample of the global batch, and of its memory.
pub(crate) const LENGTHS: [(usize, usize); 5] = [(5, 3), (2, 6), (7, 1), (1, 4), (4, 4)];

/// One computation, whatever the layout.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) config: LayerConfig,
    pub(crate) causal: bool,
    /// Whether all layers add one relative position bias.
    pub(crate) bias: bool,
}

fn experts(gate: Gate) -> LayerExpertsConfig {
    LayerExpertsConfig::new(4).with_gate(gate).with_capacity(Capacity::Fixed(2)).with_jitter(0.1)
}

/// Norms before and behind the parts, with and without a memory, with and without experts; norms around them, within a window;
/// dropout everywhere.
pub(crate) fn cases() -> Vec<Case> {
    let networks = [("dense", None), ("switch", Some(experts(Gate::Switch))), ("top2", Some(experts(Gate::Top2)))];
    let mut cases = Vec::new();
    for order in [NormOrder::Pre, NormOrder::Post] {
        for cross in [false, true] {
            for (network, experts) in networks.clone() {
                let pre = order == NormOrder::Pre;
                let config = LayerConfig::new(D_MODEL, HEADS, D_FF)
                    .with_norm_order(order)
                    .with_norm(if pre == cross { NormKind::RmsNorm } else { NormKind::LayerNorm })
                    .with_cross_attention(cross)
                    .with_head_dim((!cross).then_some(2))
                    .with_rotary((pre && !cross).then(RotaryConfig::new))
                    .with_qk_norm(pre && !cross)
                    .with_activation(if pre { Activation::Silu } else { Activation::Gelu })
                    .with_gated(pre)
                    .with_bias(pre != cross)
                    .with_dropout(0.2)
                    .with_attention_dropout(0.3)
                    .with_activation_dropout(0.25)
                    .with_experts(experts);
                let name = format!("{order:?}, {}, {network}", if cross { "cross" } else { "self" });
                cases.push(Case { name, config, causal: cross, bias: pre });
            }
        }
    }
    let config = LayerConfig::new(D_MODEL, HEADS, D_FF)
        .with_norm_order(NormOrder::Sandwich)
        .with_norm(NormKind::RmsNorm)
        .with_zero_centered_gamma(true)
        .with_head_dim(Some(2))
        .with_rotary(Some(RotaryConfig::new()))
        .with_qk_norm(true)
        .with_scale(Some(0.8))
        .with_attention_softcap(Some(1.5))
        .with_window(Some(3))
        .with_activation(Activation::GeluNew)
        .with_gated(true)
        .with_dropout(0.2)
        .with_attention_dropout(0.3);
    cases.push(Case { name: "Sandwich, window, softcap".to_string(), config, causal: true, bias: true });
    cases
}
