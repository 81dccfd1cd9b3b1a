//! What is run again in backward has the gradients of what is stored, to the bit, in a loop of one's own.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Distribution, FloatDType, Gradients, Tensor, TensorData};
use epl::comm::{EventKind, ThreadMemory, Trace};
use epl::modules::transformer::{LayerExpertsConfig, TransformerInput, TransformerLayer, TransformerLayerConfig};
use epl::testing::{config, relative_error};
use epl::{Chain, Context, Engine, Epl, MicroBatch, Pass, Place, Result, checkpoint, launch, launch_traced};

#[derive(Module, Debug)]
struct Mlp {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Mlp {
    fn new(width: usize, device: &Device) -> Self {
        Self {
            norm: LayerNormConfig::new(width).init(device),
            up: LinearConfig::new(width, 4 * width).init(device),
            down: LinearConfig::new(4 * width, width).init(device),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.down.forward(gelu(self.up.forward(self.norm.forward(x.clone())))) + x
    }
}

fn data<const D: usize>(gradient: Option<Tensor<D>>) -> Option<TensorData> {
    gradient.map(Tensor::into_data)
}

/// The gradients of an input, and of a network's parameters, in its order.
fn gradients(net: &Mlp, x: &Tensor<2>, mut gradients: Gradients) -> Vec<Option<TensorData>> {
    let bias = |linear: &Linear| linear.bias.as_ref().unwrap().clone();
    let (gamma, beta) = (&net.norm.gamma, net.norm.beta.as_ref().unwrap());
    let norm = [gamma, beta].map(|param| data(param.grad_remove(&mut gradients)));
    let biases = [&net.up, &net.down].map(|linear| data(bias(linear).grad_remove(&mut gradients)));
    let weights = [&net.up, &net.down].map(|linear| data(linear.weight.grad_remove(&mut gradients)));
    [data(x.grad_remove(&mut gradients))].into_iter().chain(norm).chain(biases).chain(weights).collect()
}

/// The loss and all gradients of a graph.
fn run(net: &Mlp, x: &Tensor<2>, graph: impl Fn(&Mlp, Tensor<2>) -> Tensor<2>) -> (f32, Vec<Option<TensorData>>) {
    let y = graph(net, x.clone());
    let loss = (y.clone() * y).sum();
    (loss.clone().into_scalar(), gradients(net, x, loss.backward()))
}

fn net_and_input() -> (Mlp, Tensor<2>) {
    let device = Device::flex().autodiff();
    (Mlp::new(6, &device), Tensor::random([5, 6], Distribution::Default, &device).require_grad())
}

fn again(net: &Mlp, x: Tensor<2>) -> Tensor<2> {
    checkpoint(net, x, |net: &Mlp, x| net.forward(x))
}

#[test]
fn gradients_are_those_of_what_is_stored() {
    epl_testing::alone(|| {
        let (net, x) = net_and_input();
        let stored = run(&net, &x, |net, x| net.forward(net.forward(x)));
        assert!(stored.1.iter().all(Option::is_some));
        // The same module, run again and stored, in either order, one inside the other, or all as one.
        assert_eq!(stored, run(&net, &x, |net, x| again(net, net.forward(x))));
        assert_eq!(stored, run(&net, &x, |net, x| net.forward(again(net, x))));
        assert_eq!(stored, run(&net, &x, |net, x| again(net, again(net, x))));
        assert_eq!(stored, run(&net, &x, |net, x| checkpoint(net, x, |net: &Mlp, x| net.forward(net.forward(x)))));
        assert_eq!(stored, run(&net, &x, |net, x| checkpoint(net, x, |net: &Mlp, x| again(net, again(net, x)))));
    });
}

#[test]
fn several_tensors_enter_and_leave() {
    epl_testing::alone(|| {
        let (net, x) = net_and_input();
        let split = |net: &Mlp, (x, gate): (Tensor<2>, Option<Tensor<2>>)| {
            let y = net.forward(x) * gate.unwrap();
            (y.clone().sum_dim(1), vec![y.clone().exp(), y.sin()])
        };
        let joined = move |net: &Mlp, x: Tensor<2>, again: bool| {
            let carry = (x.clone(), Some(x.tanh()));
            let (sum, mut parts) = if again { checkpoint(net, carry, split) } else { split(net, carry) };
            // One of the tensors is not used.
            sum * parts.swap_remove(1)
        };
        let (stored, kept) =
            (run(&net, &x, |net, x| joined(net, x, false)), run(&net, &x, |net, x| joined(net, x, true)));
        assert_eq!(stored.0, kept.0);
        // What leaves by several ways has its gradients added up in another order.
        for (stored, kept) in stored.1.iter().zip(&kept.1) {
            assert!(relative_error(stored.as_ref().unwrap(), kept.as_ref().unwrap()) < 1e-6);
        }
    });
}

#[test]
fn what_asks_for_no_gradient_gets_none() {
    epl_testing::alone(|| {
        let (mut net, x) = net_and_input();
        net.up = net.up.no_grad();
        let stored = run(&net, &x, Mlp::forward);
        assert_eq!(stored, run(&net, &x, again));
        assert_eq!(stored.1.iter().filter(|gradient| gradient.is_none()).count(), 2);
        // Nothing at all: no graph, and no gradient.
        let (net, x) = (net.no_grad(), x.detach().set_require_grad(false));
        assert!(!again(&net, x).is_tracked());
    });
}

#[test]
fn nothing_between_is_stored() {
    epl_testing::alone(|| {
        const ROWS: usize = 512;
        const WIDTH: usize = 64;
        let device = Device::flex().autodiff();
        let nets: Vec<Mlp> = (0..8).map(|_| Mlp::new(WIDTH, &device)).collect();
        let x = Tensor::<2>::random([ROWS, WIDTH], Distribution::Default, &device).require_grad();
        let stored_by = |forward: fn(&Mlp, Tensor<2>) -> Tensor<2>| {
            let live = || ThreadMemory::now().unwrap().live;
            let before = live();
            let y = nets.iter().fold(x.clone(), |x, net| forward(net, x));
            let stored = live() - before;
            drop(y.sum().backward());
            assert!(live() - before < 1 << 19, "backward frees what forward stored");
            stored
        };
        // Burn draws parameters when they are used first.
        nets.iter().for_each(|net| drop(net.forward(x.clone())));
        let (stored, kept) = (stored_by(Mlp::forward), stored_by(again));
        let carry = (ROWS * WIDTH * size_of::<f32>()) as i64;
        println!("8 blocks store {stored} bytes, or {kept} when they are run again; a carry has {carry}");
        assert!(stored > 8 * 8 * carry, "a block stores its hidden rows, which are four times as wide, twice");
        assert!(kept < 2 * 8 * carry);
    });
}

#[test]
fn a_tensor_from_outside_is_refused() {
    epl_testing::alone(|| {
        let (net, x) = net_and_input();
        let outside = x.clone().exp();
        let run = || checkpoint(&net, x.clone(), move |net: &Mlp, x| net.forward(x) + outside.clone());
        let error = epl::comm::catch(run).unwrap_err().to_string();
        assert!(error.contains("neither in its module nor in its carry"), "{error}");
    });
}

#[test]
fn what_passes_through_and_what_is_not_used() {
    epl_testing::alone(|| {
        let (net, x) = net_and_input();
        let stored = run(&net, &x, |_, x| x.tanh());
        assert_eq!(stored, run(&net, &x, |net, x| checkpoint(net, x.tanh(), |_: &Mlp, x| x)));
        assert!(stored.1[1..].iter().all(Option::is_none), "no parameter is used");
        // A parameter that is used outside too has the sum.
        let stored = run(&net, &x, |net, x| net.forward(x) * net.up.weight.val().sum().unsqueeze());
        assert_eq!(stored, run(&net, &x, |net, x| again(net, x) * net.up.weight.val().sum().unsqueeze()));
    });
}

#[test]
fn other_element_types_and_burns_own_checkpointing() {
    epl_testing::alone(|| {
        let on = |device: Device, dtype: FloatDType| {
            let (net, x) = (Mlp::new(6, &device), Tensor::<2>::random([5, 6], Distribution::Default, &device));
            let (net, x) = (cast(net, dtype), x.cast(dtype).require_grad());
            assert_eq!(run(&net, &x, Mlp::forward), run(&net, &x, again));
        };
        on(Device::flex().autodiff(), FloatDType::F64);
        on(Device::flex().autodiff().gradient_checkpointing(), FloatDType::F32);
    });
}

/// A network whose parameters have another element type.
fn cast(net: Mlp, dtype: FloatDType) -> Mlp {
    struct Cast(FloatDType);
    impl ModuleMapper for Cast {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|tensor| match tensor.dtype() == self.0.into() {
                true => tensor,
                false => Tensor::from_inner(tensor.inner().cast(self.0)).require_grad(),
            })
        }
    }
    net.map(&mut Cast(dtype))
}

/// Where a mask keeps an element, output and gradient are what it is multiplied by.
#[test]
fn burns_layers_draw_the_same_the_second_time() {
    epl_testing::alone(|| {
        let device = Device::flex().autodiff();
        let layers = || -> Vec<Dropout> { vec![DropoutConfig::new(0.5).init(), DropoutConfig::new(0.25).init()] };
        let dropped = |layers: &Vec<Dropout>, x: Tensor<2>| layers.iter().fold(x, |x, layer| layer.forward(x));
        let run = |seed: u64| {
            device.seed(seed);
            let x = Tensor::<2>::ones([8, 16], &device).require_grad();
            // One in the other, beside draws of others before backward.
            let inner = move |layers: &Vec<Dropout>, x: Tensor<2>| checkpoint(layers, x, dropped);
            let y = checkpoint(&layers(), x.clone(), inner);
            let other = checkpoint(&layers(), x.clone(), dropped);
            let _ = Tensor::<1>::random([100], Distribution::Default, &device);
            let gradients = y.clone().sum().backward();
            assert_eq!(data(x.grad(&gradients)), Some(y.clone().into_data()));
            assert_ne!(y.clone().into_data(), other.into_data(), "another call draws others");
            y.into_data()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    });
}

/// Ranks that are threads have one generator.
#[test]
fn ranks_in_loops_of_their_own_do_not_draw_each_others_numbers() {
    epl_testing::alone(|| {
        let wrong = launch(&config(4, 1, 1), |epl| {
            let device = epl.place().device();
            let layers: Vec<Dropout> = vec![DropoutConfig::new(0.5).init(), DropoutConfig::new(0.25).init()];
            let wrong = (0..50).filter(|_| {
                let x = Tensor::<2>::ones([4, 64], device).require_grad();
                let dropped = |layers: &Vec<Dropout>, x: Tensor<2>| layers.iter().fold(x, |x, layer| layer.forward(x));
                let y = checkpoint(&layers, x.clone(), dropped);
                let gradients = y.clone().sum().backward();
                data(x.grad(&gradients)) != Some(y.into_data())
            });
            Ok(wrong.count())
        });
        assert_eq!(wrong.unwrap(), [0; 4]);
    });
}

/// In a segment that the engine runs again, too.
#[test]
fn burns_layers_draw_the_same_in_a_segment_that_is_run_again() {
    #[derive(Module, Debug)]
    struct Net {
        body: Vec<Linear>,
        norm: BatchNorm,
        drop: Dropout,
        head: Linear,
    }
    fn net(at: &Place) -> Chain<Net, Tensor<2>, Tensor<2>> {
        let body = (0..2).map(|_| LinearConfig::new(6, 6).init(at)).collect();
        let (norm, drop) = (BatchNormConfig::new(6).init(at), DropoutConfig::new(0.5).init());
        let context = at.context().clone();
        Chain::of(Net { body, norm, drop, head: LinearConfig::new(6, 2).init(at) })
            .first(&["body", "norm", "drop"], move |net: &Net, rows: &Tensor<2>| {
                let dropped = |net: &Net, x: Tensor<2>| net.drop.forward(net.norm.forward(net.body[1].forward(x)));
                context.checkpoint(net, net.body[0].forward(rows.clone()), dropped)
            })
            .then(&["head"], |net, x, _| net.head.forward(x))
            .mean_loss(|_, x, _| x.powi_scalar(2).mean())
    }
    epl_testing::alone(|| {
        let train = |again: bool, data: usize| {
            let mut config = config(data, 1, 1);
            if again {
                config = config.with("gradient_checkpoint.type", "collection").unwrap();
                config.gradient_checkpoint.kept = Some(vec!["1".to_string()]);
                config.gradient_checkpoint.check_gradients = true;
            }
            let trained = launch(&config, |epl| {
                let mut engine = Engine::build(&epl, net, &SgdConfig::new())?;
                let values: Vec<f32> = (0..48).map(|value| (value * 7 % 31) as f32 / 15.0 - 1.0).collect();
                let rows = Tensor::from_data(TensorData::new(values, [8, 6]), epl.place().device());
                let losses = (0..3).map(|_| Ok(engine.train_batch(&rows, 0.1)?.loss)).collect::<Result<Vec<f64>>>()?;
                Ok((losses, engine.parameters()?))
            });
            trained.unwrap()
        };
        for data in [1, 2] {
            assert_eq!(train(false, data), train(true, data), "{data} replicas");
        }
    });
}

#[test]
fn burns_running_statistics_move_once() {
    epl_testing::alone(|| {
        let device = Device::flex().autodiff();
        let run = |again: bool| {
            let norm: Vec<BatchNorm> = vec![BatchNormConfig::new(3).init(&device)];
            let x = Tensor::<2>::from_data([[1.0, 2.0, 3.0], [4.0, 6.0, 8.0], [2.0, 9.0, 4.0]], &device).require_grad();
            let forward = |norm: &Vec<BatchNorm>, x: Tensor<2>| norm[0].forward(x).powi_scalar(3);
            let y = if again { checkpoint(&norm, x.clone(), forward) } else { forward(&norm, x.clone()) };
            let gradients = y.clone().sum().backward();
            let running = [&norm[0].running_mean, &norm[0].running_var].map(|running| running.value_sync().into_data());
            (y.into_data(), data(x.grad(&gradients)), data(norm[0].gamma.grad(&gradients)), running)
        };
        assert_eq!(run(true), run(false));
    });
}

#[test]
fn a_layer_of_epl_needs_its_context() {
    epl_testing::alone(|| {
        let error = launch(&config(1, 1, 1), |epl| {
            let layers = epl.build(|at| chain(at, stored))?.into_inner().model;
            epl.context().begin(Pass { step: 0, training: true, samples: [0, 1].into(), empty: false });
            let x = batch([0, 1], epl.place().device()).require_grad();
            let context = epl.context().clone();
            let run = || checkpoint(&layers[0], x, move |layer: &TransformerLayer, x| stored(&context, layer, x));
            Ok(epl::comm::catch(run).map(|_| ())?)
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("`Context::checkpoint`"), "{error}");
    });
}

type Layers = Vec<TransformerLayer>;
type Forward = fn(&Context, &TransformerLayer, Tensor<3>) -> Tensor<3>;

/// Two layers, each with four experts and dropout.
fn layers(at: &Place) -> Layers {
    let config = TransformerLayerConfig::new(8, 2, 16).with_experts(Some(LayerExpertsConfig::new(4)));
    (0..2).map(|layer| config.init(&at.child(&layer.to_string()))).collect()
}

fn stored(_: &Context, layer: &TransformerLayer, x: Tensor<3>) -> Tensor<3> {
    layer.forward(TransformerInput::new(x)).hidden
}

fn run_again(context: &Context, layer: &TransformerLayer, x: Tensor<3>) -> Tensor<3> {
    context.checkpoint(layer, x, |layer: &TransformerLayer, x| layer.forward(TransformerInput::new(x)).hidden)
}

/// The gradient of what enters two micro-batches of a hand-written loop, and of one parameter.
fn hand_written(epl: &Epl, forward: Forward) -> Result<Vec<TensorData>> {
    let built = epl.build(|at| chain(at, forward))?;
    let (context, device) = (epl.context().clone(), epl.place().device().clone());
    let layers = built.into_inner().model;
    // Both forwards come before both backwards, as in a pipeline.
    let roots = [[0, 1], [2, 3]].map(|samples: [u64; 2]| {
        context.begin(Pass { step: 3, training: true, samples: samples.into(), empty: false });
        let x = batch(samples, &device).require_grad();
        let y = layers.iter().fold(x.clone(), |x, layer| forward(&context, layer, x));
        (x, y.powi_scalar(2).sum())
    });
    let found = roots.into_iter().rev().flat_map(|(x, loss)| {
        let gradients = loss.backward();
        let param = layers[0].self_attention.heads.query.weight.grad(&gradients);
        [data(x.grad(&gradients)).unwrap(), data(param).unwrap()]
    });
    Ok(found.collect())
}

fn batch(samples: [u64; 2], device: &Device) -> Tensor<3> {
    let values: Vec<f32> = (0..2 * 3 * 8).map(|index| ((index + 7 * samples[0]) as f32).sin()).collect();
    Tensor::from_data(TensorData::new(values, [2, 3, 8]), device)
}

type Model = Chain<Layers, Tensor<3>, Tensor<3>>;

/// Each layer a segment.
fn chain(at: &Place, forward: Forward) -> Model {
    let context = [at.context().clone(), at.context().clone()];
    let [first, second] = context;
    Chain::of(layers(at))
        .first(&["0"], move |layers: &Layers, x: &Tensor<3>| forward(&first, &layers[0], x.clone()))
        .then(&["1"], move |layers, x, _| forward(&second, &layers[1], x))
        .mean_loss(|_, x, _| x.powi_scalar(2).mean())
}

#[test]
fn layers_draw_and_communicate_as_at_first() {
    epl_testing::alone(|| {
        for (data, tensor, expert) in [(1, 1, 1), (1, 2, 1), (2, 1, 2), (2, 2, 2)] {
            let run = |forward: Forward| {
                let trace = Trace::new();
                let found = launch_traced(&config(data, tensor, expert), Some(trace.clone()), |epl| {
                    hand_written(&epl, forward)
                });
                let collective = |event: &epl::comm::Event| matches!(event.kind, EventKind::Collective { .. });
                (found.unwrap(), trace.events().iter().filter(|event| collective(event)).count())
            };
            let (kept, ran) = (run(stored), run(run_again));
            assert_eq!(kept, ran, "data {data}, tensor {tensor}, expert {expert}");
        }
    });
}

/// A step of an engine, whose first segment is perhaps run again as a whole too.
fn step(forward: Forward, recompute: bool) -> (f64, f64) {
    let mut config = config(1, 2, 1);
    if recompute {
        config.gradient_checkpoint.r#type = epl::config::CheckpointType::Collection;
        config.gradient_checkpoint.kept = Some(vec!["0".into(), "1".into()]);
    }
    let reports = launch(&config, |epl| {
        let mut engine = Engine::build(&epl, |at| chain(at, forward), &SgdConfig::new())?;
        let report = engine.step(vec![MicroBatch::new(batch([0, 1], epl.place().device()), [0, 1])], 0.1)?;
        Ok((report.loss, report.grad_norm))
    });
    reports.unwrap()[0]
}

#[test]
fn inside_an_engine_and_inside_its_own_recomputation() {
    epl_testing::alone(|| {
        let expected = step(stored, false);
        assert_eq!(expected, step(run_again, false));
        assert_eq!(expected, step(run_again, true));
    });
}

#[test]
fn two_engines_take_turns() {
    epl_testing::alone(|| {
        let losses = launch(&config(1, 1, 1), |epl| {
            let device = epl.place().device().clone();
            let micro_batch = || vec![MicroBatch::new(batch([0, 1], &device), [0, 1])];
            let as_one = |at: &Place| {
                let context = at.context().clone();
                Chain::of(layers(at))
                    .first(&["0", "1"], move |layers: &Layers, x: &Tensor<3>| {
                        layers.iter().fold(x.clone(), |x, layer| stored(&context, layer, x))
                    })
                    .mean_loss(|_, x, _| x.powi_scalar(2).mean())
            };
            let mut one = Engine::build(&epl, as_one, &SgdConfig::new())?;
            let mut two = Engine::build(&epl, |at| chain(at, stored), &SgdConfig::new())?;
            (0..2).map(|_| Ok([one.step(micro_batch(), 0.1)?.loss, two.step(micro_batch(), 0.1)?.loss])).collect()
        });
        let losses: Vec<[f64; 2]> = losses.unwrap().swap_remove(0);
        assert!(losses.iter().all(|[one, two]| one == two), "{losses:?}");
    });
}

#[test]
fn what_is_not_the_same_the_second_time_is_found() {
    epl_testing::alone(|| {
        let error = launch(&config(1, 2, 1), |epl| {
            let layers = epl.build(|at| chain(at, stored))?.into_inner().model;
            let calls = Arc::new(AtomicUsize::new(0));
            let (counted, context) = (calls.clone(), epl.context().clone());
            let x = batch([0, 1], epl.place().device()).require_grad();
            epl.context().begin(Pass { step: 0, training: true, samples: [0, 1].into(), empty: false });
            let y = epl.context().checkpoint(&layers, x, move |layers: &Layers, x| {
                let skipped = counted.fetch_add(1, Ordering::Relaxed);
                layers.iter().skip(skipped).fold(x, |x, layer| stored(&context, layer, x))
            });
            Ok(epl::comm::catch(|| drop(y.sum().backward()))?)
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("collectives fewer than it made at first"), "{error}");
    });
}
