//! Our layers on one rank against Burn's own with the same weights.

use burn::module::Param;
use burn::nn::attention::MhaInput;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    EmbeddingConfig, LayerNormConfig as BurnLayerNormConfig, LinearConfig, RmsNormConfig as BurnRmsNormConfig,
    attention::MultiHeadAttentionConfig as BurnAttentionConfig,
};
use burn::tensor::{Bool, Device, Gradients, Int, Tensor, TensorData};
use epl_comm::Split;
use epl_core::{Epl, Pass, testing};
use epl_modules::*;

use super::run::host;
use super::{Outcome, assert_close};
use epl_testing::tensor;

/// Runs on one rank, with dropout off.
fn on_one_rank(f: impl Fn(&Epl) + Sync) {
    testing::run((1, 1, 1), |epl| {
        epl.context().begin(Pass { step: 0, training: false, samples: [0, 1].into(), empty: false });
        f(&epl);
        Ok(())
    });
}

/// Finds the gradient of one tensor.
type Gradient = Box<dyn Fn(&Gradients) -> Option<TensorData>>;

fn outcome<const D: usize, const N: usize>(output: Tensor<D>, tracked: [(&str, Gradient); N]) -> Outcome {
    let probe = tensor(99, output.dims(), &output.device());
    let gradients = (output.clone() * probe).sum().backward();
    let mut outcome = Outcome::from([("output".to_string(), host(output.inner()))]);
    for (name, gradient) in tracked {
        outcome.insert(name.into(), gradient(&gradients).unwrap_or_else(|| panic!("no gradient of {name}")));
    }
    outcome
}

fn grad<const D: usize>(x: Tensor<D>) -> Gradient {
    Box::new(move |gradients| x.grad(gradients).map(host))
}

fn param<const D: usize>(seed: usize, shape: [usize; D], device: &Device) -> Param<Tensor<D>> {
    Param::from_tensor(tensor(seed, shape, device).require_grad())
}

pub(crate) fn linear(limit: f64) {
    on_one_rank(|epl| {
        let device = epl.place().device();
        let (weight, bias) = (param(1, [6, 5], device), param(2, [5], device));
        let x = tensor(3, [2, 3, 6], device).require_grad();
        let mut theirs = LinearConfig::new(6, 5).init(device);
        (theirs.weight, theirs.bias) = (weight.clone(), Some(bias.clone()));
        let mut ours = ReplicatedLinearConfig::new(6, 5).init(epl.place());
        (ours.weight, ours.bias) = (weight.clone(), Some(bias.clone()));
        let mut split = SplitLinearConfig::new(6, 5).init(epl.place());
        (split.weight, split.bias) = (weight.clone(), Some(bias.clone()));
        let all = || [("x", grad(x.clone())), ("weight", grad(weight.val())), ("bias", grad(bias.val()))];
        let expected = outcome(theirs.forward(x.clone()), all());
        assert_close("replicated", &outcome(ours.forward(x.clone()), all()), &expected, limit);
        assert_close("split", &outcome(split.forward(x.clone()).local(), all()), &expected, limit);
    });
}

pub(crate) fn norms(limit: f64) {
    on_one_rank(|epl| {
        let device = epl.place().device();
        let (gamma, beta) = (param(1, [37], device), param(2, [37], device));
        let x = tensor(3, [2, 3, 37], device).require_grad();
        let mut theirs = BurnLayerNormConfig::new(37).init(device);
        (theirs.gamma, theirs.beta) = (gamma.clone(), Some(beta.clone()));
        let mut ours = LayerNormConfig::new(37).init(epl.place());
        (ours.gamma, ours.beta) = (gamma.clone(), Some(beta.clone()));
        let all = || [("x", grad(x.clone())), ("gamma", grad(gamma.val())), ("beta", grad(beta.val()))];
        let expected = outcome(theirs.forward(x.clone()), all());
        assert_close("layer norm", &outcome(ours.forward(x.clone()), all()), &expected, limit);
        let less_one = Param::from_tensor((gamma.val() - 1.0).detach());
        let mut around_zero = LayerNormConfig::new(37).with_zero_centered_gamma(true).init(epl.place());
        assert_eq!(host(around_zero.gamma.val()).iter::<f64>().collect::<Vec<_>>(), [0.0; 37]);
        (around_zero.gamma, around_zero.beta) = (less_one.clone(), Some(beta.clone()));
        let all = || [("x", grad(x.clone())), ("gamma", grad(less_one.val())), ("beta", grad(beta.val()))];
        assert_close("layer norm around zero", &outcome(around_zero.forward(x.clone()), all()), &expected, limit);

        // Burn's own computes in f32 even when the tensors are f64.
        let limit = limit.max(1e-5);
        let mut theirs = BurnRmsNormConfig::new(37).init(device);
        theirs.gamma = gamma.clone();
        let mut ours = RmsNormConfig::new(37).init(epl.place());
        ours.gamma = gamma.clone();
        let all = || [("x", grad(x.clone())), ("gamma", grad(gamma.val()))];
        let expected = outcome(theirs.forward(x.clone()), all());
        assert_close("rms norm", &outcome(ours.forward(x.clone()), all()), &expected, limit);
        let mut around_zero = RmsNormConfig::new(37).with_zero_centered_gamma(true).init(epl.place());
        assert_eq!(host(around_zero.gamma.val()).iter::<f64>().collect::<Vec<_>>(), [0.0; 37]);
        around_zero.gamma = less_one.clone();
        let all = || [("x", grad(x.clone())), ("gamma", grad(less_one.val()))];
        assert_close("rms norm around zero", &outcome(around_zero.forward(x.clone()), all()), &expected, limit);
    });
}

pub(crate) fn embedding(limit: f64) {
    on_one_rank(|epl| {
        let device = epl.place().device();
        let weight = param(1, [9, 4], device);
        let ids = Tensor::<2, Int>::from_data([[0, 8, 3], [3, 3, 1]], device);
        let mut theirs = EmbeddingConfig::new(9, 4).init(device);
        theirs.weight = weight.clone();
        let mut ours = SplitEmbeddingConfig::new(9, 4).init(epl.place());
        ours.weight = weight.clone();
        let all = || [("weight", grad(weight.val()))];
        let expected = outcome(theirs.forward(ids.clone()), all());
        assert_close("embedding", &outcome(ours.forward(ids.clone()), all()), &expected, limit);
    });
}

pub(crate) fn cross_entropy(limit: f64) {
    on_one_rank(|epl| {
        let device = epl.place().device();
        let logits = (tensor(1, [6, 11], device) * 5.0).detach().require_grad();
        let targets = Tensor::<1, Int>::from_data([0, 10, 3, 3, 7, 5], device);
        for smoothing in [None, Some(0.1)] {
            let theirs = CrossEntropyLossConfig::new().with_smoothing(smoothing).init(device);
            let ours = SplitCrossEntropyConfig::new()
                .with_label_smoothing(smoothing.unwrap_or(0.0).into())
                .init(epl.context());
            let split = Split::from_local(logits.clone(), 1, 11, epl.context().tensor());
            let found = outcome(ours.forward(split, targets.clone()), [("logits", grad(logits.clone()))]);
            let mean = theirs.forward(logits.clone(), targets.clone());
            // Burn's label smoothing is an f32.
            let limit = if smoothing.is_some() { limit.max(1e-6) } else { limit };
            assert_close("loss", &found, &outcome(mean * 6.0, [("logits", grad(logits.clone()))]), limit);
        }
        assert_eq!(token_weight(&[3, -100, 0, -100], -100), 2.0);
    });
}

pub(crate) fn attention(limit: f64) {
    on_one_rank(|epl| {
        let device = epl.place().device();
        let [q, k, v, o] = [1, 2, 3, 4].map(|seed| (param(seed, [8, 8], device), param(seed + 10, [8], device)));
        let mut theirs = BurnAttentionConfig::new(8, 2).init(device);
        let mut ours = MultiHeadAttentionConfig::new(8, 2).init(epl.place());
        let layers = [&mut theirs.query, &mut theirs.key, &mut theirs.value, &mut theirs.output];
        for (layer, (weight, bias)) in layers.into_iter().zip([&q, &k, &v, &o]) {
            (layer.weight, layer.bias) = (weight.clone(), Some(bias.clone()));
        }
        let layers = [&mut ours.query, &mut ours.key, &mut ours.value, &mut ours.output];
        for (layer, (weight, bias)) in layers.into_iter().zip([&q, &k, &v, &o]) {
            (layer.weight, layer.bias) = (weight.clone(), Some(bias.clone()));
        }
        let (x, memory) = (tensor(5, [2, 3, 8], device).require_grad(), tensor(6, [2, 5, 8], device).require_grad());
        let padding = Tensor::<2, Bool>::from_data(
            [[false, false, false, false, true], [false, true, false, true, true]],
            device,
        );
        let all = || {
            [
                ("x", grad(x.clone())),
                ("memory", grad(memory.clone())),
                ("query", grad(q.0.val())),
                ("query bias", grad(q.1.val())),
                ("key", grad(k.0.val())),
                ("value", grad(v.0.val())),
                ("value bias", grad(v.1.val())),
                ("output", grad(o.0.val())),
                ("output bias", grad(o.1.val())),
            ]
        };
        let input = MhaInput::new(x.clone(), memory.clone(), memory.clone()).mask_pad(padding.clone());
        // Burn turns dropout off on a device without autodiff only; its probability is set to zero instead.
        theirs.dropout.prob = 0.0;
        let expected = outcome(theirs.forward(input).context, all());
        let input = AttentionInput::cross_attention(x.clone(), memory.clone()).with_padding(padding.clone());
        assert_close("attention", &outcome(ours.forward(input), all()), &expected, limit);
    });
}
