//! Recurrent layers and losses in mixed precision.

use burn::module::{Module, ModuleDisplay, ModuleMapper, Param};
use burn::nn::Initializer;
use burn::nn::loss::Reduction;
use burn::optim::SgdConfig;
use burn::tensor::{DType, Tensor, TensorData};
use epl_core::config::HalfDtype;
use epl_core::config::HalfDtype::{Bf16, F16};
use epl_core::model::precision::HalfPrecision;
use epl_core::testing::{self, error_together, in_half};
use epl_core::{Chain, Config, Engine, Place, WithLoss, launch};
use epl_modules::nn;

use super::case::Layer;
use crate::layers::Outcome;
use crate::layers::run::host;
use epl_testing::tensor;

#[derive(Module, Debug)]
struct Net<L> {
    scale: Param<Tensor<1>>,
    layer: L,
    gain: Param<Tensor<1>>,
}

/// Loss and gradients of one step of a layer between two factors, which is to be given `dtype` and give it.
fn step<L: Module + ModuleDisplay + 'static>(layer: Layer<L>, config: &Config, dtype: DType) -> (f64, Outcome) {
    let found = launch(config, |epl| {
        let model = |place: &Place| {
            let factor = |name: &str| place.child(name).param([1], Initializer::Constant { value: 1.25 });
            let layer_of_net = (layer.build)(&place.child("layer"));
            let net = Net { scale: factor("scale"), layer: layer_of_net, gain: factor("gain") };
            Chain::of(net)
                .first(&["scale"], |net: &Net<L>, rows: &Tensor<3>| rows.clone() * net.scale.val().reshape([1, 1, 1]))
                .then(&["layer"], move |net, x: Tensor<3>, _| {
                    assert_eq!(x.dtype(), dtype);
                    let y = (layer.forward)(&net.layer, x);
                    assert_eq!(y.dtype(), dtype);
                    y
                })
                .then(&["gain"], |net, y, _| y * net.gain.val().reshape([1, 1, 1]))
                .mean_loss(|_, y: Tensor<3>, _| y.powi_scalar(2).mean())
        };
        let mut engine = Engine::build(&epl, model, &SgdConfig::new())?;
        if dtype != DType::F32 {
            let (plan, records) = (engine.plan().to_string(), engine.plan().records().len());
            // With no segment in f32 behind it.
            assert!(
                plan.contains(&format!("segments compute in {dtype:?} with {records} of the parameters\n")),
                "{plan}"
            );
        }
        let rows = tensor(7, [6, 5, 5], epl.place().device());
        let before = engine.parameters()?;
        let report = engine.train_batch(&rows, 1.0)?;
        assert!(!report.skipped);
        let after = engine.parameters()?;
        let gradients = before.into_iter().map(|(name, before)| {
            let gradient = before.iter::<f64>().zip(after[&name].iter::<f64>()).map(|(before, after)| before - after);
            (name, TensorData::new(gradient.collect::<Vec<_>>(), before.shape().to_vec()))
        });
        Ok((report.loss, gradients.collect::<Outcome>()))
    });
    found.unwrap_or_else(|error| panic!("{error}")).swap_remove(0)
}

/// On one rank, on two replicas, and whole on two ranks of a tensor axis.
fn near_f32<L: Module + ModuleDisplay + 'static>(name: &str, layer: Layer<L>) {
    let (loss, gradients) = step(layer, &testing::config(1, 1, 1), DType::F32);
    for (half, unit) in [(F16, 2f64.powi(-11)), (Bf16, 2f64.powi(-8))] {
        for (data, ranks) in [(1, 1), (2, 1), (1, 2)] {
            let config =
                in_half(testing::config(data, ranks, 1), half).with("amp.loss_scale", 1024.0).expect("an option");
            let found = step(layer, &config, HalfPrecision::new(half).dtype());
            let (of_loss, of_gradients) = ((found.0 - loss).abs() / loss, error_together(&found.1, &gradients));
            println!(
                "{name}, {half}, {data} x {ranks}: loss {:.2} u, gradients {:.2} u",
                of_loss / unit,
                of_gradients / unit
            );
            assert!(of_loss <= 4.0 * unit, "{name}, {half}: {of_loss:e}");
            assert!(of_gradients > 0.0 && of_gradients <= 4.0 * unit, "{name}, {half}: {of_gradients:e}");
        }
    }
}

#[test]
fn recurrent_layers_compute_in_16_bits_what_they_do_in_f32() {
    epl_testing::alone(|| {
        let lstm = Layer {
            build: |at| nn::LstmConfig::new(5, 4, true).init(at),
            forward: |layer: &nn::Lstm, x| layer.forward(x, None).0,
        };
        near_f32("Lstm", lstm);
        let lstm = Layer {
            build: |at| nn::BiLstmConfig::new(5, 4, true).init(at),
            forward: |layer: &nn::BiLstm, x| layer.forward(x, None).0,
        };
        near_f32("BiLstm", lstm);
        let gru = Layer {
            build: |at| nn::GruConfig::new(5, 4, true).init(at),
            forward: |layer: &nn::Gru, x| layer.forward(x, None),
        };
        near_f32("Gru", gru);
        let gru = Layer {
            build: |at| nn::BiGruConfig::new(5, 4, true).with_reset_after(false).init(at),
            forward: |layer: &nn::BiGru, x| layer.forward(x, None).0,
        };
        near_f32("BiGru", gru);
        let rnn = Layer {
            build: |at| nn::RnnConfig::new(5, 4, true).init(at),
            forward: |layer: &nn::Rnn, x| layer.forward(x, None).0,
        };
        near_f32("Rnn", rnn);
        let rnn = Layer {
            build: |at| nn::BiRnnConfig::new(5, 4, true).init(at),
            forward: |layer: &nn::BiRnn, x| layer.forward(x, None).0,
        };
        near_f32("BiRnn", rnn);
    });
}

/// States that are given have the type of the input, and so have those that come back.
#[test]
fn states_in_16_bits() {
    epl_testing::alone(|| {
        let lstm = Layer {
            build: |at| nn::LstmConfig::new(5, 4, true).init(at),
            forward: |layer: &nn::Lstm, x| {
                let state = x.clone().narrow(1, 0, 1).narrow(2, 0, 4).squeeze_dim::<2>(1);
                let (_, state) = layer.forward(x, Some(nn::LstmState::new(state.clone(), state)));
                Tensor::stack(vec![state.cell, state.hidden], 1)
            },
        };
        near_f32("Lstm's states", lstm);
        let gru = Layer {
            build: |at| nn::BiGruConfig::new(5, 4, true).init(at),
            forward: |layer: &nn::BiGru, x| {
                let state = x.clone().narrow(1, 0, 2).narrow(2, 0, 4).swap_dims(0, 1);
                layer.forward(x, Some(state)).1.swap_dims(0, 1)
            },
        };
        near_f32("BiGru's states", gru);
    });
}

struct InBf16;

impl ModuleMapper for InBf16 {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.detach().cast(DType::BF16))
    }
}

/// A gate that is the function of its bias, whatever it is given.
fn constant(gate: &mut nn::GateController, bias: f64) {
    gate.input_transform.bias = gate.input_transform.bias.take().map(|param| param.map(|zeros| zeros + bias));
}

/// What a step adds is less than half of the last digit that bf16 has of a state.
#[test]
fn a_state_grows_by_what_bf16_would_round_away() {
    testing::run((1, 1, 1), |epl| {
        let device = epl.place().device();
        let x = Tensor::<3>::zeros([1, 400, 2], device).inner().cast(DType::BF16);
        let last = |y: Tensor<2>| host(y).iter::<f64>().next().unwrap_or(f64::NAN);
        let config = nn::LstmConfig::new(2, 1, true).with_initializer(Initializer::Zeros);
        let mut lstm = config.with_hidden_activation(nn::activation::ActivationConfig::Identity).init(epl.place());
        for gate in [&mut lstm.input_gate, &mut lstm.output_gate].into_iter().chain(lstm.forget_gate.as_mut()) {
            constant(gate, 40.0);
        }
        constant(&mut lstm.cell_gate, 2f64.powi(-8));
        let (_, state) = lstm.map(&mut InBf16).valid().forward(x.clone(), None);
        assert!((last(state.cell) - 400.0 / 256.0).abs() < 0.01, "400 times 1 / 256");

        let mut gru = nn::GruConfig::new(2, 1, true).with_initializer(Initializer::Zeros).init(epl.place());
        constant(&mut gru.update_gate, 5.0);
        constant(&mut gru.new_gate, 40.0);
        let output = gru.map(&mut InBf16).valid().forward(x, None);
        let stays = 1.0 / (1.0 + (-5f64).exp());
        assert!((last(output.narrow(1, 399, 1).squeeze_dim(1)) - (1.0 - stays.powi(400))).abs() < 4e-3, "it nears 1");
        Ok(())
    });
}

#[derive(Module, Debug)]
struct Classes {
    linear: nn::Linear,
}

/// In a model of one segment outputs have 16 bits, and so has its batch.
#[test]
fn a_loss_inside_a_segment_is_f32() {
    epl_testing::alone(|| {
        let loss = |config: &Config, dtype: DType| {
            let found = launch(config, |epl| {
                let model = |at: &Place| {
                    let net = Classes { linear: nn::LinearConfig::new(5, 3).init(&at.child("linear")) };
                    WithLoss::new(net, move |net: &Classes, x: &Tensor<2>| {
                        let outputs = net.linear.forward(x.clone());
                        assert_eq!(outputs.dtype(), dtype);
                        let targets = outputs.clone().detach().argmax(1).squeeze_dim::<1>(1);
                        let entropy =
                            nn::loss::CrossEntropyLossConfig::new().init(&x.device()).forward(outputs.clone(), targets);
                        let size =
                            nn::loss::MseLoss::new().forward(outputs.clone(), outputs.zeros_like(), Reduction::Mean);
                        assert_eq!([entropy.dtype(), size.dtype()], [DType::F32; 2]);
                        entropy + size
                    })
                };
                let mut engine = Engine::build(&epl, model, &SgdConfig::new())?;
                Ok(engine.train_batch(&tensor::<2>(3, [7, 5], epl.place().device()), 0.1)?.loss)
            });
            found.unwrap_or_else(|error| panic!("{error}"))[0]
        };
        let full = loss(&testing::config(1, 1, 1), DType::F32);
        for (half, unit) in [(HalfDtype::F16, 2f64.powi(-11)), (HalfDtype::Bf16, 2f64.powi(-8))] {
            let found = loss(&in_half(testing::config(2, 1, 1), half), HalfPrecision::new(half).dtype());
            assert!((found - full).abs() <= 2.0 * unit * full, "{half}: {found} beside {full}");
        }
    });
}
