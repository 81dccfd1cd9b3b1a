//! What is computed: the layer, the batch, and the loss.

use burn::tensor::{Device, Tensor, TensorData};
use epl_modules::Activation;
use epl_modules::moe::{Balance, Capacity, Gate, MoeConfig};

pub(crate) const EXPERTS: usize = 4;
pub(crate) const D_MODEL: usize = 6;
/// Odd, so that the tensor axis cuts it unevenly.
pub(crate) const D_FF: usize = 7;

/// One computation, whatever the layout.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) config: MoeConfig,
    /// Real tokens of every sample of the global batch.
    pub(crate) lengths: Vec<usize>,
    /// The expert that a token leans to.
    pub(crate) favourite: fn(usize, usize) -> usize,
    /// The padded length; otherwise one more than the longest sample of the rank.
    pub(crate) padded: Option<usize>,
    /// Whether tokens are routed where the layer computes, as on a device.
    pub(crate) on_device: bool,
}

/// Numbers in `[-1, 1)` without a pattern.
pub(crate) fn noise(stream: usize, sample: usize, token: usize, element: usize) -> f64 {
    let mixed = stream as f64 * 3.17 + sample as f64 * 12.9898 + token as f64 * 78.233 + element as f64 * 37.719;
    2.0 * (mixed.sin() * 43_758.545_3).rem_euclid(1.0) - 1.0
}

impl Case {
    fn new(name: &'static str, gate: Gate, capacity: Capacity) -> Self {
        Self {
            name,
            config: MoeConfig::new(D_MODEL, D_FF, EXPERTS).with_gate(gate).with_capacity(capacity),
            lengths: vec![5, 3, 0, 6, 2, 9, 1, 6],
            favourite: |sample, token| (sample * 3 + token * token) % EXPERTS,
            padded: None,
            on_device: false,
        }
    }

    /// An element of a sample: it leans to the token's favourite expert.
    pub(crate) fn x(&self, sample: usize, token: usize, element: usize) -> f64 {
        let lean = if element == (self.favourite)(sample, token) { 0.8 } else { 0.0 };
        0.5 * noise(1, sample, token, element) + lean
    }

    /// What an element of the output counts in the loss.
    pub(crate) fn probe(sample: usize, token: usize, element: usize) -> f64 {
        noise(2, sample, token, element)
    }

    /// Rows `samples` of a quantity, padded with numbers that must not matter.
    pub(crate) fn tensor(
        &self,
        samples: core::ops::Range<usize>,
        length: usize,
        value: impl Fn(usize, usize, usize) -> f64,
        device: &Device,
    ) -> Tensor<3> {
        let shape = [samples.len(), length, D_MODEL];
        let values: Vec<f64> = samples
            .flat_map(|sample| (0..length).map(move |token| (sample, token)))
            .flat_map(|(sample, token)| (0..D_MODEL).map(move |element| (sample, token, element)))
            .map(|(sample, token, element)| value(sample, token, element))
            .collect();
        Tensor::from_data(TensorData::new(values, shape), device)
    }
}

/// A router that follows the favourites: drawn values, and a bonus where feature and expert agree.
pub(crate) fn router(drawn: Tensor<2>) -> Tensor<2> {
    let device = drawn.device();
    let eye = (0..D_MODEL).flat_map(|row| (0..EXPERTS).map(move |expert| if row == expert { 3.0 } else { 0.0 }));
    let eye: Vec<f64> = eye.collect();
    drawn.mul_scalar(0.3) + Tensor::from_data(TensorData::new(eye, [D_MODEL, EXPERTS]), &device)
}

/// The auxiliary and the z loss count this much beside the output.
pub(crate) const AUXILIARY: f64 = 0.7;
pub(crate) const Z: f64 = 0.3;

/// Every way in which routing can be uneven.
pub(crate) fn cases() -> Vec<Case> {
    let factor = Capacity::Factor { train: 1.0, eval: 2.0 };
    let (switch, top2) = (Gate::Switch, Gate::Top2);
    let mut cases = vec![
        Case::new("switch", switch, factor),
        Case::new("top2", top2, factor),
        Case::new("switch, nothing dropped", switch, Capacity::Unlimited),
        Case::new("switch, one place", switch, Capacity::Fixed(1)),
        Case::new("top2, one place", top2, Capacity::Fixed(1)),
        Case::new("top2, two places", top2, Capacity::Fixed(2)),
        Case::new("top2, nothing dropped", top2, Capacity::Unlimited),
        Case {
            favourite: |sample, token| (sample + token) % 3,
            ..Case::new("an expert without tokens", switch, factor)
        },
        Case { favourite: |_, _| 1, ..Case::new("all tokens to one expert", switch, Capacity::Unlimited) },
        Case {
            favourite: |sample, token| if sample < 4 { 2 + token % 2 } else { token % 2 },
            ..Case::new("all tokens to remote experts", switch, Capacity::Unlimited)
        },
        Case { lengths: vec![0, 0, 0, 0, 5, 3, 2, 9], ..Case::new("a rank without a token", switch, factor) },
        Case { lengths: vec![5, 3, 2, 9, 0, 0, 0, 0], ..Case::new("a rank without a token, top2", top2, factor) },
        Case { padded: Some(17), ..Case::new("much padding", top2, Capacity::Fixed(2)) },
        Case { padded: Some(9), ..Case::new("routed padding", switch, factor) },
        Case::new("gated", top2, factor),
        Case::new("top3, nothing dropped", Gate::TopK { experts: 3, renormalise: true }, Capacity::Unlimited),
        Case::new("top3, two places", Gate::TopK { experts: 3, renormalise: true }, Capacity::Fixed(2)),
        Case::new("top2, not renormalised", Gate::TopK { experts: 2, renormalise: false }, factor),
        Case::new("shared", top2, factor),
        Case::new("bias", switch, factor),
        Case::new("balance over the batch", Gate::TopK { experts: 2, renormalise: true }, Capacity::Unlimited),
    ];
    for case in &mut cases {
        case.config = match case.name {
            "routed padding" => case.config.clone().with_route_padding(true),
            "shared" => case.config.clone().with_gated(true).with_activation(Activation::GeluNew).with_shared(Some(5)),
            "bias" => case.config.clone().with_bias_rate(Some(0.1)),
            "balance over the batch" => case.config.clone().with_balance(Balance::Batch),
            "gated" => case.config.clone().with_gated(true).with_activation(Activation::GeluNew),
            _ => case.config.clone(),
        };
    }
    cases
}
