//! Every kind of layer in 16 bits: the types of its output and of its parameters, and what it computes in f32. This is the
//! table of the crate's documentation.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleDisplay, ModuleMapper, ModuleVisitor, Param};
use burn::nn::PaddingConfig2d;
use burn::tensor::{DType, Gradients, Int, Tensor, TensorData};
use epl_comm::{Split, copied, sliced};
use epl_core::config::HalfDtype;
use epl_core::model::precision::{HalfPrecision, widen};
use epl_core::testing::{self, config, error_on_scale, half_model, in_half, relative_error};
use epl_core::{Epl, Pass, Place, launch};
use epl_modules::*;

use crate::layers::run::{Net, host};
use epl_testing::tensor;

/// Data, tensor and expert ranks.
const MESHES: [(usize, usize, usize); 3] = [(1, 1, 1), (1, 2, 1), (2, 1, 2)];

/// A 16-bit type, or f32.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bits {
    Half,
    Full,
}
use Bits::{Full, Half};

/// How far the result may be from that of the same layer in f32, with the same parameters and input. In units of the
/// type's roundoff u (2^-11 and 2^-8), of the largest element.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Within {
    /// All is computed in f32, and rounded once: the same bits as f32 rounded.
    Once,
    /// Products are rounded, and what is computed of them.
    Roundings(f64),
}
use Within::{Once, Roundings};

/// One line of the table.
struct Line {
    layer: &'static str,
    parameters: &'static [(&'static str, Bits)],
    output: Bits,
    within: Within,
}

/// Gradients pass one product more than outputs, and are rounded at each.
const GRADIENT: f64 = 4.0;

fn precision(half: HalfDtype) -> (HalfPrecision, f64) {
    let unit = if half == HalfDtype::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
    (HalfPrecision::new(half), unit)
}

/// Parameters in f32 with the values that they have in 16 bits.
struct Widen;

impl ModuleMapper for Widen {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let asks = param.base().is_require_grad();
        param.map(|tensor| widen(tensor).detach().set_require_grad(asks))
    }
}

/// What is known of a model's parameters, by name.
#[derive(Default)]
struct Parameters<'a> {
    gradients: Option<&'a Gradients>,
    path: Vec<String>,
    types: BTreeMap<String, DType>,
    found: BTreeMap<String, TensorData>,
}

impl ModuleVisitor for Parameters<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // Without the module around the layer.
        let (name, value) = (self.path[1..].join("."), param.base());
        if let Some(gradient) = self.gradients.and_then(|gradients| value.grad(gradients)) {
            assert_eq!(gradient.dtype(), value.dtype(), "the gradient of {name}");
            self.found.insert(name.clone(), host(gradient));
        }
        self.types.insert(name, value.dtype());
    }
}

/// Output and gradients.
struct Outcome {
    output: TensorData,
    dtype: DType,
    gradients: BTreeMap<String, TensorData>,
    types: BTreeMap<String, DType>,
}

fn run<L: Module + ModuleDisplay, const D: usize>(
    epl: &Epl,
    net: &Net<L>,
    x: Tensor<3>,
    forward: impl Fn(&Epl, &L, Tensor<3>) -> Tensor<D>,
) -> Outcome {
    epl.context().begin(Pass { step: 0, training: true, samples: [3, 4].into(), empty: false });
    let x = x.detach().require_grad();
    let y = forward(epl, &net.layer, x.clone());
    let probe = tensor(2, y.dims(), epl.place().device()).cast(DType::BF16).cast(y.dtype());
    let dtype = y.dtype();
    let gradients = (y.clone() * probe).sum().backward();
    let mut parameters = Parameters { gradients: Some(&gradients), ..Parameters::default() };
    net.visit(&mut parameters);
    let Parameters { types, mut found, .. } = parameters;
    if let Some(gradient) = x.grad(&gradients) {
        assert_eq!(gradient.dtype(), x.dtype());
        found.insert("input".to_string(), host(gradient));
    }
    Outcome { output: host(y.inner()), dtype, gradients: found, types }
}

#[track_caller]
fn check<L: Module + ModuleDisplay, const D: usize>(
    line: Line,
    build: impl Fn(&Place) -> L + Sync,
    forward: impl Fn(&Epl, &L, Tensor<3>) -> Tensor<D> + Sync,
) {
    for (half, mesh) in [HalfDtype::F16, HalfDtype::Bf16].into_iter().flat_map(|half| MESHES.map(|mesh| (half, mesh))) {
        let (precision, unit) = precision(half);
        let (data, tensor_ranks, experts) = mesh;
        let outcome = launch(&in_half(config(data, tensor_ranks, experts), half), |epl| {
            let what = format!("{} in {half}, mesh {mesh:?}", line.layer);
            let build = |place: &Place| Net { layer: build(&place.child("layer")) };
            let net = half_model(&epl.build(build)?);
            let reference = net.clone().map(&mut Widen);
            let x = tensor::<3>(1, [2, 5, 24], epl.place().device()).cast(precision.dtype());
            let found = run(&epl, &net, x.clone(), &forward);
            let expected = run(&epl, &reference, widen(x), &forward);

            let of = |bits| if bits == Half { precision.dtype() } else { DType::F32 };
            let types: BTreeMap<_, _> =
                line.parameters.iter().map(|(name, bits)| (name.to_string(), of(*bits))).collect();
            assert_eq!(found.types, types, "{what}: parameters");
            assert_eq!(found.dtype, of(line.output), "{what}: output");
            assert!(found.output.iter::<f64>().all(f64::is_finite), "{what}");
            let within = match line.within {
                Once => {
                    let data = expected.output.clone().convert_dtype(DType::F32);
                    let rounded = Tensor::<D>::from_data(data, (epl.place().device(), found.dtype));
                    assert_eq!(found.output, host(rounded.inner()), "{what}: f32, rounded once");
                    1.0
                }
                Roundings(roundings) => {
                    let error = relative_error(&found.output, &expected.output);
                    assert!(error <= roundings * unit, "{what}: output is off by {:.1} u", error / unit);
                    roundings
                }
            };
            let limit = GRADIENT * within * unit;
            assert!(found.gradients.keys().eq(expected.gradients.keys()), "{what}: which have a gradient");
            for (name, gradient) in &found.gradients {
                // A bias of all keys changes no weight: its gradient is zero up to rounding.
                let scale = &expected.gradients[&name.replace("key.bias", "query.bias")];
                let error = error_on_scale(gradient, &expected.gradients[name], scale);
                assert!(error <= limit, "{what}: the gradient of {name} is off by {:.1} u", error / unit);
            }
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn linear() {
    let parameters = &[("bias", Half), ("weight", Half)];
    let line = |layer| Line { layer, parameters, output: Half, within: Roundings(3.0) };
    check(line("linear"), |at| ReplicatedLinearConfig::new(24, 6).init(at), |_, layer, x| layer.forward(x));
    let columns = |at: &Place| SplitLinearConfig::new(24, 6).init(at);
    check(line("columns"), columns, |_, layer, x| layer.forward(x).local());
    let rows = |at: &Place| SplitLinearConfig::new(24, 6).with_cut(LinearCut::Row).init(at);
    check(line("rows"), rows, |epl, layer, x| layer.forward(sliced(x, 2, epl.context().tensor())));
}

/// An input in f32, as of a batch, is brought to the type of the weight.
#[test]
fn an_input_in_f32() {
    let parameters = &[("bias", Half), ("weight", Half)];
    let line = |layer| Line { layer, parameters, output: Half, within: Roundings(3.0) };
    let linear = |at: &Place| ReplicatedLinearConfig::new(24, 6).init(at);
    check(line("linear, of f32"), linear, |_, layer, x| layer.forward(widen(x)));
    let conv = |at: &Place| ReplicatedConv2dConfig::new([5, 6], [3, 3]).init(at);
    check(line("convolution, of f32"), conv, |_, layer, x| layer.forward(widen(x).reshape([2, 5, 4, 6])));
}

#[test]
fn convolution() {
    let parameters = &[("bias", Half), ("weight", Half)];
    let line = |layer| Line { layer, parameters, output: Half, within: Roundings(3.0) };
    let around = || PaddingConfig2d::Explicit(1, 1, 1, 1);
    let whole = |at: &Place| ReplicatedConv2dConfig::new([5, 6], [3, 3]).with_padding(around()).init(at);
    check(line("convolution"), whole, |_, layer, x| layer.forward(x.reshape([2, 5, 4, 6])));
    // 49 taps of a kernel, each of one channel: a sum in f16 would be off by ten roundings.
    let wide = |at: &Place| ReplicatedConv2dConfig::new([1, 4], [7, 7]).with_bias(false).init(at);
    let line_of_one = Line { layer: "a wide kernel", parameters: &[("weight", Half)], output: Half, within: Once };
    check(line_of_one, wide, |_, layer, x| layer.forward(x.reshape([2, 1, 8, 15])));
    let output = |at: &Place| SplitConv2dConfig::new([5, 6], [3, 3]).with_padding(around()).init(at);
    check(line("output channels"), output, |_, layer, x| layer.forward(x.reshape([2, 5, 4, 6])).local());
    let input = |at: &Place| SplitConv2dConfig::new([5, 6], [3, 3]).with_cut(ChannelCut::Input).init(at);
    check(line("input channels"), input, |epl, layer, x| {
        layer.forward(sliced(x.reshape([2, 5, 4, 6]), 1, epl.context().tensor()))
    });
}

#[test]
fn embedding() {
    let parameters = &[("weight", Half)];
    let build = |at: &Place| SplitEmbeddingConfig::new(7, 24).init(at);
    let line = Line { layer: "embedding", parameters, output: Half, within: Once };
    check(line, build, |_, layer, x| {
        let ids = Tensor::<2, Int>::from_data([[1, 1, 6, 0, 1], [3, 1, 1, 2, 1]], &x.device());
        layer.forward(ids)
    });
    let line = Line { layer: "tied head", parameters, output: Half, within: Roundings(3.0) };
    check(line, build, |epl, layer, x| layer.logits(copied(x, epl.context().tensor())).local());
}

/// Bf16 has 8 digits: a sum of ones would stop at 256.
#[test]
fn a_row_of_a_table_that_is_looked_up_often_has_its_whole_gradient() {
    testing::run((1, 1, 1), |epl| {
        let device = epl.place().device();
        let table = Tensor::<2>::ones([2, 1], (device, DType::BF16)).require_grad();
        let vectors = epl_modules::embedding::lookup(table.clone(), Tensor::zeros([4, 250], device));
        let gradient = table.grad(&widen(vectors).sum().backward()).expect("it is tracked");
        assert_eq!(host(gradient).iter::<f64>().collect::<Vec<_>>(), [1000.0, 0.0]);
        Ok(())
    });
}

#[test]
fn norms() {
    let parameters = &[("beta", Full), ("gamma", Full)];
    let line = Line { layer: "layer norm", parameters, output: Half, within: Once };
    check(line, |at| LayerNormConfig::new(24).init(at), |_, layer, x| layer.forward(x));
    let line = Line { layer: "RMS norm", parameters: &[("gamma", Full)], output: Half, within: Once };
    check(line, |at| RmsNormConfig::new(24).init(at), |_, layer, x| layer.forward(x));
    let line = Line { layer: "RMS norm around zero", parameters: &[("gamma", Full)], output: Half, within: Once };
    check(line, |at| RmsNormConfig::new(24).with_zero_centered_gamma(true).init(at), |_, layer, x| layer.forward(x));
    let parameters = &[("beta", Full), ("gamma", Full), ("running_mean", Full), ("running_var", Full)];
    for statistics in [BatchStatistics::Global, BatchStatistics::PerReplica] {
        let line = Line { layer: "batch norm", parameters, output: Half, within: Once };
        let build = |at: &Place| SyncBatchNormConfig::new(5).with_statistics(statistics).init(at);
        check(line, build, |_, layer, x| layer.forward(x));
    }
    let line = Line { layer: "batch norm, evaluated", parameters, output: Half, within: Once };
    check(
        line,
        |at| SyncBatchNormConfig::new(5).init(at),
        |epl, layer, x| {
            epl.context().begin(Pass { step: 0, training: false, samples: [3, 4].into(), empty: false });
            layer.forward(x)
        },
    );
}

#[test]
fn what_has_no_parameter() {
    let line = |layer| Line { layer, parameters: &[], output: Half, within: Once };
    check(line("dropout"), |at| DropoutConfig::new(0.3).init(at), |_, layer, x| layer.forward(x));
    check(line("drop path"), |at| DropPathConfig::new(0.3).init(at), |_, layer, x| layer.forward(x));
    let nothing = |at: &Place| DropoutConfig::new(0.0).init(at);
    check(line("relu"), nothing, |_, _, x| Activation::Relu.forward(x));
    check(line("gelu"), nothing, |_, _, x| Activation::Gelu.forward(x));
    check(line("gelu by tanh"), nothing, |_, _, x| Activation::GeluNew.forward(x));
    check(line("silu"), nothing, |_, _, x| Activation::Silu.forward(x));
    check(line("softcap"), nothing, |_, _, x| softcap(x, 1.5));
}

#[test]
fn losses_are_f32() {
    let targets = |x: &Tensor<2>| Tensor::<1, Int>::from_data([1, 5, 23, 0, -100, 3, 9, 9, 7, 2], &x.device());
    for smoothing in [0.0, 0.1] {
        let line = Line { layer: "cross-entropy", parameters: &[], output: Full, within: Once };
        let build = |at: &Place| SplitCrossEntropyConfig::new().with_label_smoothing(smoothing).init(at.context());
        check(line, build, |epl, layer, x| {
            let x = x.reshape([10, 24]);
            layer.forward(sliced(x.clone(), 1, epl.context().tensor()), targets(&x))
        });
    }
    let parameters = &[("linear.bias", Half), ("linear.weight", Half)];
    let line = Line { layer: "classifier", parameters, output: Full, within: Roundings(3.0) };
    let build = |at: &Place| SplitClassifierConfig::new(24, 24).init(at);
    check(line, build, |_, layer, x| {
        let x = x.reshape([10, 24]);
        layer.forward_loss(x.clone(), targets(&x))
    });
    let line = Line { layer: "classifier's logits", parameters, output: Half, within: Roundings(3.0) };
    check(line, build, |_, layer, x| layer.logits(x.reshape([10, 24])));
}

#[test]
fn attention() {
    #[rustfmt::skip]
    let parameters = &[
        ("key.bias", Half), ("key.weight", Half), ("output.bias", Half), ("output.weight", Half),
        ("query.bias", Half), ("query.weight", Half), ("value.bias", Half), ("value.weight", Half),
    ];
    let build = |at: &Place| MultiHeadAttentionConfig::new(24, 4).with_dropout(0.2).init(at);
    let line = |layer| Line { layer, parameters, output: Half, within: Roundings(4.0) };
    check(line("attention"), build, |_, layer, x| layer.forward(AttentionInput::self_attention(x).causal()));
    check(line("attention with a bias"), build, |epl, layer, x| {
        let heads = 4 / epl.context().tensor().size();
        let bias = tensor::<4>(5, [1, heads, 5, 5], &x.device());
        layer.forward(AttentionInput::self_attention(x).with_bias(bias))
    });
    #[rustfmt::skip]
    let parameters = &[
        ("key.weight", Half), ("key_norm.gamma", Full), ("output.weight", Half),
        ("query.weight", Half), ("query_norm.gamma", Full), ("value.weight", Half),
    ];
    let build = |at: &Place| {
        let config = MultiHeadAttentionConfig::new(24, 4).with_n_kv_heads(Some(2)).with_bias(false);
        config.with_rotary(Some(RotaryConfig::new())).with_qk_norm(Some(1e-6)).init(at)
    };
    let line = Line { layer: "attention with grouped queries", parameters, output: Half, within: Roundings(6.0) };
    check(line, build, |_, layer, x| layer.forward(AttentionInput::self_attention(x).causal()));
    let line = Line { layer: "position bias", parameters: &[("weight", Full)], output: Full, within: Once };
    let build = |at: &Place| RelativeBiasConfig::new(4).with_n_buckets(8).with_max_distance(20).init(at);
    check(line, build, |_, layer, _| layer.forward(5, 5, 0));
    let line = Line { layer: "window bias", parameters: &[("table", Full)], output: Full, within: Once };
    let build = |at: &Place| WindowBiasConfig::new(4, 2).init(at);
    check(line, build, |_, layer, _| layer.forward(&Windows::new([4, 4], 2, 1)));
    #[rustfmt::skip]
    let parameters = &[("network.input.bias", Full), ("network.input.weight", Full), ("network.output.weight", Full)];
    let line = Line { layer: "continuous window bias", parameters, output: Full, within: Once };
    let build = |at: &Place| WindowBiasConfig::new(4, 2).with_continuous(true).with_hidden(8).init(at);
    check(line, build, |_, layer, _| layer.forward(&Windows::new([4, 4], 2, 1)));
    #[rustfmt::skip]
    let parameters = &[
        ("key.weight", Half), ("logit_scale", Full), ("output.bias", Half), ("output.weight", Half),
        ("query.bias", Half), ("query.weight", Half), ("value.bias", Half), ("value.weight", Half),
    ];
    let build = |at: &Place| MultiHeadAttentionConfig::new(24, 4).with_cosine(true).with_key_bias(Some(false)).init(at);
    let line = Line { layer: "attention by cosines", parameters, output: Half, within: Roundings(6.0) };
    check(line, build, |_, layer, x| layer.forward(AttentionInput::self_attention(x)));
}

/// The layers of `nn`; all of them are in the table of `nn`'s tests.
#[test]
fn layers_by_burns_names() {
    use epl_modules::nn;
    let parameters = &[("bias", Half), ("weight", Half)];
    let line = |layer| Line { layer, parameters, output: Half, within: Roundings(3.0) };
    check(line("nn's linear"), |at| nn::LinearConfig::new(24, 6).init(at), |_, layer, x| layer.forward(x));
    let conv = |at: &Place| nn::conv::Conv1dConfig::new(5, 6, 3).init(at);
    check(line("nn's convolution"), conv, |_, layer, x| layer.forward(x));
    let transposed = |at: &Place| nn::conv::ConvTranspose1dConfig::new([5, 6], 3).init(at);
    check(line("nn's transposed convolution"), transposed, |_, layer, x| layer.forward(x));
    let parameters = &[("beta", Full), ("gamma", Full)];
    let line = |layer| Line { layer, parameters, output: Half, within: Once };
    check(line("group norm"), |at| nn::GroupNormConfig::new(1, 5).init(at), |_, layer, x| layer.forward(x));
    check(line("instance norm"), |at| nn::InstanceNormConfig::new(5).init(at), |_, layer, x| layer.forward(x));
    let line = |layer| Line { layer, parameters: &[], output: Half, within: Once };
    check(line("noise"), |_| nn::GaussianNoiseConfig::new(0.3).init(), |_, layer, x| layer.forward(x));
    check(line("nn's Gelu"), |_| nn::Gelu::new(), |_, layer, x| layer.forward(x));
    check(line("Sigmoid"), |_| nn::Sigmoid::new(), |_, layer, x| layer.forward(x));
    check(line("Tanh"), |_| nn::Tanh::new(), |_, layer, x| layer.forward(x));
    check(line("RRelu"), |_| nn::activation::RReluConfig::new().init(), |_, layer, x| layer.forward(x));
    #[rustfmt::skip]
    let parameters = &[
        ("key.bias", Half), ("key.weight", Half), ("output.bias", Half), ("output.weight", Half),
        ("query.bias", Half), ("query.weight", Half), ("value.bias", Half), ("value.weight", Half),
    ];
    let line = |layer| Line { layer, parameters, output: Half, within: Roundings(4.0) };
    let heads = |at: &Place| nn::attention::MultiHeadAttentionConfig::new(24, 4).with_dropout(0.2).init(at);
    check(line("nn's attention"), heads, |_, layer, x| {
        layer.forward_context(nn::attention::MhaInput::self_attn(x), None)
    });
}

#[test]
fn feed_forward() {
    #[rustfmt::skip]
    let parameters = &[
        ("gate.bias", Half), ("gate.weight", Half), ("input.bias", Half), ("input.weight", Half),
        ("output.bias", Half), ("output.weight", Half),
    ];
    let line = Line { layer: "MLP", parameters, output: Half, within: Roundings(4.0) };
    let build = |at: &Place| ParallelMlpConfig::new(24, 16).with_gated(true).with_activation(Activation::Silu).init(at);
    check(line, build, |_, layer, x| layer.forward(x));
}

#[test]
fn experts() {
    let parameters =
        &[("experts.gate", Half), ("experts.input", Half), ("experts.output", Half), ("router.weight", Full)];
    for gate in [Gate::Switch, Gate::Top2] {
        let build = |at: &Place| {
            MoeConfig::new(24, 10, 4).with_gate(gate).with_gated(true).with_dropout(0.2).with_jitter(0.1).init(at)
        };
        let line = |layer, output, within| Line { layer, parameters, output, within };
        let moe = line("experts", Half, Roundings(4.0));
        check(moe, build, |_, layer, x| layer.forward(x, None).hidden);
        // The same bits: so the probabilities are, and the experts that are chosen.
        check(line("auxiliary", Full, Once), build, |_, layer, x| layer.forward(x, None).auxiliary);
        check(line("z", Full, Once), build, |_, layer, x| layer.forward(x, None).z);
    }
}

#[test]
fn transformer_layers() {
    #[rustfmt::skip]
    let parameters = &[
        ("feed_forward.dense.input.bias", Half), ("feed_forward.dense.input.weight", Half),
        ("feed_forward.dense.output.bias", Half), ("feed_forward.dense.output.weight", Half),
        ("feed_forward.norm.beta", Full), ("feed_forward.norm.gamma", Full),
        ("self_attention.heads.key.bias", Half), ("self_attention.heads.key.weight", Half),
        ("self_attention.heads.output.bias", Half), ("self_attention.heads.output.weight", Half),
        ("self_attention.heads.query.bias", Half), ("self_attention.heads.query.weight", Half),
        ("self_attention.heads.value.bias", Half), ("self_attention.heads.value.weight", Half),
        ("self_attention.norm.beta", Full), ("self_attention.norm.gamma", Full),
    ];
    for order in [NormOrder::Pre, NormOrder::Post] {
        let line = Line { layer: "transformer layer", parameters, output: Half, within: Roundings(4.0) };
        let build = |at: &Place| TransformerLayerConfig::new(24, 4, 16).with_norm_order(order).init(at);
        check(line, build, |_, layer, x| layer.forward(TransformerInput::new(x)).hidden);
    }
}

/// Nothing is computed, so the answers are those of the same logits in f32.
#[test]
fn the_largest_of_logits() {
    for (half, ranks) in [HalfDtype::F16, HalfDtype::Bf16].into_iter().flat_map(|half| [1, 2, 3].map(|n| (half, n))) {
        testing::run((1, ranks, 1), |epl| {
            let device = epl.place().device();
            // Many are equal once they are rounded.
            let logits = (tensor::<2>(4, [40, 17], device) + 300.0).cast(HalfPrecision::new(half).dtype());
            let of = |logits: Tensor<2>| -> Split<2> { sliced(logits, 1, epl.context().tensor()) };
            let ids = |ids: Vec<i64>| ids;
            let (narrow, wide) = (of(logits.clone()), of(widen(logits)));
            let read = |x: Tensor<1, Int>| ids(x.into_data().iter().collect());
            assert_eq!(read(split_argmax(narrow.clone())), read(split_argmax(wide.clone())));
            let first = |x: Split<2>| read(split_top_k(x, 3).reshape([120]));
            assert_eq!(first(narrow.clone()), first(wide.clone()));
            let targets =
                Tensor::<1, Int>::from_data((0..40).map(|row| row % 17).collect::<Vec<i64>>().as_slice(), device);
            let among = |x: Split<2>| read(split_in_top_k(x, targets.clone(), 5).int());
            assert_eq!(among(narrow), among(wide));
            Ok(())
        });
    }
}
