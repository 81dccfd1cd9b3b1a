//! A model of two layers, and its batch.

use burn::module::Module;
use burn::tensor::{Bool, Device, Tensor, TensorData};
use epl_core::{Epl, Loss, LossWeights, Model, Place, Result};
use epl_modules::{
    RelativeBias, RelativeBiasConfig, ReplicatedLinear, ReplicatedLinearConfig, RouterLosses, TokenMask,
    TransformerInput, TransformerLayer, TransformerLayerConfig, TransformerOutput,
};

use super::case::{Case, D_MODEL, HEADS, LENGTHS};
use super::noise;

/// Two layers behind linear ones, whose gradients tell those of the inputs.
#[derive(Module, Debug)]
pub(crate) struct Net {
    enter: ReplicatedLinear,
    remember: Option<ReplicatedLinear>,
    bias: Option<RelativeBias>,
    layers: Vec<TransformerLayer>,
    #[module(skip)]
    causal: bool,
}

/// One layer alone.
#[derive(Module, Debug)]
pub(crate) struct Alone {
    layer: TransformerLayer,
}

impl Model for Alone {
    type Batch = ();
    type Carry = ();

    fn segments(&self) -> usize {
        1
    }

    fn weights(&self, _batch: &()) -> LossWeights {
        LossWeights::new()
    }

    fn forward_segment(&self, _: usize, _: Option<()>, _: &Self::Batch) {}

    fn loss(&self, (): (), _batch: &()) -> Loss {
        Loss::new()
    }
}

/// The layer of this configuration, whose first values every rank has drawn when the others had.
pub(crate) fn alone(config: &TransformerLayerConfig, epl: &Epl) -> Result<TransformerLayer> {
    let built = epl.build(|place| Alone { layer: config.init(&place.child("layer")) })?;
    Ok(built.into_inner().layer)
}

/// Samples, padded to the longest.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) samples: Vec<usize>,
    x: Tensor<3>,
    /// What an element of the output counts in the loss: nothing at padding.
    probe: Tensor<3>,
    padding: Tensor<2, Bool>,
    pub(crate) tokens: TokenMask,
    memory: Tensor<3>,
    memory_padding: Tensor<2, Bool>,
}

impl Batch {
    pub(crate) fn new(samples: Vec<usize>, device: &Device) -> Self {
        let (lengths, memories): (Vec<usize>, Vec<usize>) = samples.iter().map(|sample| LENGTHS[*sample]).unzip();
        let width = |lengths: &[usize]| lengths.iter().max().copied().unwrap_or(0) + 1;
        let (tokens, remembered) =
            (TokenMask::from_lengths(&lengths, width(&lengths)), TokenMask::from_lengths(&memories, width(&memories)));
        let padding = |mask: &TokenMask| {
            let hidden: Vec<bool> = mask.as_slice().iter().map(|real| !real).collect();
            Tensor::<2, Bool>::from_data(TensorData::new(hidden, [mask.groups(), mask.length()]), device)
        };
        let numbers = |stream: usize, mask: &TokenMask| {
            let position = |at: usize| (samples[at / mask.length()], at % mask.length());
            let values = (0..mask.as_slice().len() * D_MODEL).map(|index| {
                let (sample, position) = position(index / D_MODEL);
                noise(stream, sample, position, index % D_MODEL)
            });
            let shape = [mask.groups(), mask.length(), D_MODEL];
            Tensor::<3>::from_data(TensorData::new(values.collect::<Vec<f64>>(), shape), device)
        };
        let hidden = padding(&tokens).unsqueeze_dim::<3>(2).expand([tokens.groups(), tokens.length(), D_MODEL]);
        Self {
            x: numbers(1, &tokens),
            probe: numbers(2, &tokens).mask_fill(hidden, 0.0),
            padding: padding(&tokens),
            memory: numbers(3, &remembered),
            memory_padding: padding(&remembered),
            tokens,
            samples,
        }
    }
}

impl Net {
    pub(crate) fn new(case: &Case, place: &Place) -> Self {
        let linear = |name: &str| ReplicatedLinearConfig::new(D_MODEL, D_MODEL).init(&place.child(name));
        let bias = || RelativeBiasConfig::new(HEADS).with_bidirectional(!case.causal).with_n_buckets(8);
        let layer = |index: usize| case.config.init(&place.child("layers").child(&index.to_string()));
        Self {
            enter: linear("enter"),
            remember: case.config.cross_attention.then(|| linear("remember")),
            bias: case.bias.then(|| bias().with_max_distance(6).init(&place.child("bias"))),
            layers: (0..2).map(layer).collect(),
            causal: case.causal,
        }
    }

    /// The hidden states behind the last layer, and the losses of all.
    pub(crate) fn forward(&self, batch: &Batch) -> (Tensor<3>, Option<RouterLosses>) {
        let length = batch.tokens.length();
        let bias = self.bias.as_ref().map(|bias| bias.forward(length, length, 0));
        let memory = self.remember.as_ref().map(|linear| linear.forward(batch.memory.clone()));
        let (mut hidden, mut losses) = (self.enter.forward(batch.x.clone()), None);
        for (index, layer) in self.layers.iter().enumerate() {
            let mut input = TransformerInput::new(hidden).with_padding(batch.padding.clone());
            if self.causal {
                input = input.causal();
            }
            if let Some(bias) = &bias {
                input = input.with_bias(bias.clone());
            }
            if let Some(memory) = &memory {
                input = input.with_memory(memory.clone(), Some(batch.memory_padding.clone()));
            }
            // Both ways to say which tokens are real.
            let output = layer.forward(if index == 0 { input.with_tokens(batch.tokens.clone()) } else { input });
            let TransformerOutput { losses: more, groups, .. } = output;
            assert_eq!(groups, if more.is_some() { batch.samples.len() } else { 0 });
            (hidden, losses) = (output.hidden, RouterLosses::add(losses, more));
        }
        (hidden, losses)
    }
}

impl Model for Net {
    type Batch = Batch;
    type Carry = ();

    fn segments(&self) -> usize {
        1
    }

    fn weights(&self, batch: &Batch) -> LossWeights {
        let tokens = batch.tokens.as_slice().iter().filter(|real| **real).count();
        let (weights, groups) = (LossWeights::new().with("output", tokens as f64), batch.tokens.groups() as f64);
        match self.layers.iter().any(|layer| layer.feed_forward.moe.is_some()) {
            true => weights.with("auxiliary", groups).with("z", groups),
            false => weights,
        }
    }

    fn forward_segment(&self, _: usize, _: Option<()>, _: &Self::Batch) {}

    fn loss(&self, (): (), batch: &Batch) -> Loss {
        let (hidden, losses) = self.forward(batch);
        let loss = Loss::new().with("output", (hidden * batch.probe.clone()).sum(), 1.0);
        match losses {
            Some(losses) => loss.with("auxiliary", losses.auxiliary, 0.7).with("z", losses.z, 0.3),
            None => loss,
        }
    }
}
