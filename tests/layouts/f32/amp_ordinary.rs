//! Mixed precision for ordinary models: nothing in them casts.

use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig, Lstm, LstmConfig};
use burn::optim::SgdConfig;
use burn::tensor::{DType, Device, Int, Tensor};
use epl::config::HalfDtype;
use epl::config::HalfDtype::{Bf16, F16};
use epl::data::{BatchShard, micro_batches};
use epl::prelude::*;

use crate::parity::rounding;

/// Numbers by rule.
fn numbers<const D: usize>(shape: [usize; D], seed: usize, device: &Device) -> Tensor<D> {
    let number = |at: usize| ((at * 7919 + seed * 104_729 + 17) as f32 * 0.618_034).fract() - 0.5;
    let values: Vec<f32> = (0..shape.iter().product()).map(number).collect();
    Tensor::<1>::from_floats(values.as_slice(), device).reshape(shape)
}

/// README's first program, word for word, but for the option and the data.
mod first_program {
    use super::*;

    type Batch = (Tensor<2>, Tensor<2>);

    #[derive(Module, Debug)]
    pub struct Net {
        hidden: Linear,
        output: Linear,
    }

    impl Net {
        pub fn new(device: &Device) -> Self {
            Self { hidden: LinearConfig::new(20, 2).init(device), output: LinearConfig::new(2, 10).init(device) }
        }

        pub fn loss(&self, (inputs, targets): &Batch) -> Tensor<1> {
            (self.output.forward(self.hidden.forward(inputs.clone())) - targets.clone()).powi_scalar(2).mean()
        }
    }

    pub fn train(config: &Config) -> epl::Result<Vec<Vec<f64>>> {
        let batches = |device: &Device| {
            (0..10)
                .map(|step| (numbers([10, 20], step, device), numbers([10, 10], step + 100, device)))
                .collect::<Vec<_>>()
        };
        epl::launch(config, |epl| {
            let mut net = Engine::build(&epl, |at| WithLoss::new(Net::new(at), Net::loss), &SgdConfig::new())?;
            batches(epl.place()).iter().map(|batch| Ok(net.train_batch(batch, 0.001)?.loss)).collect()
        })
    }
}

fn half(config: Config, dtype: HalfDtype) -> Config {
    epl::testing::in_half(config, dtype)
}

#[test]
fn the_first_program() {
    let config = |ranks: usize| Config::new().with("cluster.ranks", ranks).expect("an option");
    let full = first_program::train(&config(1)).expect("f32 runs").remove(0);
    for (ranks, dtype) in [(1, F16), (1, Bf16), (2, F16), (2, Bf16)] {
        let all = first_program::train(&half(config(ranks), dtype)).unwrap_or_else(|error| panic!("{dtype}: {error}"));
        for (found, expected) in all.iter().flat_map(|losses| losses.iter().zip(&full)) {
            let error = (found - expected).abs() / expected;
            assert!(error <= 4.0 * rounding(dtype) && error > 0.0, "{dtype} on {ranks}: {error:.1e}");
        }
    }
}

/// A batch by the macro.
#[derive(Clone, Debug)]
struct Rated {
    inputs: Tensor<2>,
    kinds: Tensor<1, Int>,
    targets: Tensor<2>,
    names: Vec<String>,
}

epl::batch!(Rated { inputs, kinds, targets, names });

fn rated(rows: usize, device: &Device) -> Rated {
    Rated {
        inputs: numbers([rows, 4], 1, device),
        kinds: Tensor::arange(0..rows as i64, device),
        targets: numbers([rows, 2], 2, device),
        names: (0..rows).map(|row| row.to_string()).collect(),
    }
}

#[derive(Module, Debug)]
struct Two {
    first: Linear,
    second: Linear,
}

/// Which also checks what it is given: the batch in `dtype` before the loss, and as it is there.
fn two(at: &Place, dtype: DType) -> Chain<Two, Rated, Tensor<2>> {
    let net = Two { first: LinearConfig::new(4, 4).init(at), second: LinearConfig::new(4, 2).init(at) };
    let check = move |batch: &Rated, dtype: DType| {
        assert_eq!([&batch.inputs, &batch.targets].map(|tensor| tensor.dtype()), [dtype; 2]);
        assert_eq!(batch.kinds.dims()[0], batch.names.len());
    };
    Chain::of(net)
        .first(&["first"], move |net: &Two, batch: &Rated| {
            check(batch, dtype);
            net.first.forward(batch.inputs.clone())
        })
        .then(&["second"], move |net, hidden, batch| {
            check(batch, dtype);
            assert_eq!(hidden.dtype(), dtype);
            net.second.forward(hidden + batch.inputs.clone())
        })
        .mean_loss(move |_, outputs, batch| {
            check(batch, DType::F32);
            assert_eq!(outputs.dtype(), DType::F32, "the loss begins in f32");
            MseLoss::new().forward(outputs, batch.targets.clone(), Reduction::Mean)
        })
}

/// The batch is cast on each stage, with accumulation, when segments are run again, and in an evaluation; not where a model is
/// measured, which computes in f32.
#[test]
fn a_struct_of_tensors() {
    let with = |options: &[(&str, &str)]| {
        let config = Config::load(None, options.iter().map(|(key, value)| format!("{key}={value}")));
        config.unwrap_or_else(|error| panic!("{error}"))
    };
    let train = |config: &Config, dtype: DType| {
        let all = epl::launch(config, |epl| {
            let mut engine = Engine::build(&epl, |at| two(at, dtype), &SgdConfig::new())?;
            let batch = rated(5, &engine.device().clone());
            let mut losses =
                (0..3).map(|_| Ok(engine.train_batch(&batch, 0.1)?.loss)).collect::<epl::Result<Vec<_>>>()?;
            let share = BatchShard::of(engine.context(), 1)?;
            losses.push(engine.evaluate(micro_batches(&batch, share, 0)?.into_iter().map(Ok))?.loss);
            Ok(losses)
        });
        all.unwrap_or_else(|error| panic!("{dtype:?}: {error}"))
    };
    let full = train(&with(&[]), DType::F32).remove(0);
    let stages = [("cluster.ranks", "2"), ("auto.auto_parallel", "true"), ("pipeline.num_stages", "2")];
    let recompute = [("gradient_checkpoint.type", "collection"), ("gradient_checkpoint.kept", "first")];
    for (dtype, seen) in [(F16, DType::F16), (Bf16, DType::BF16)] {
        for options in [
            vec![("pipeline.num_micro_batch", "2")],
            [&stages[..], &[("pipeline.num_micro_batch", "2")]].concat(),
            recompute.to_vec(),
            vec![("cluster.ranks", "2"), ("zero.level", "v3")],
        ] {
            for losses in train(&half(with(&options), dtype), seen) {
                for (found, expected) in losses.iter().zip(&full) {
                    let error = (found - expected).abs() / expected;
                    assert!(error <= 4.0 * rounding(dtype), "{dtype}, {options:?}: {error:.1e}");
                }
            }
        }
    }
}

/// Burn's LSTM makes states of its own, in f32.
#[derive(Module, Debug)]
struct Series {
    lstm: Lstm,
    head: Linear,
}

type SeriesBatch = (Tensor<3>, Tensor<2>);

fn series(config: &Config) -> epl::Result<(Vec<f64>, String)> {
    let ran = epl::launch(config, |epl| {
        let chain = |at: &Place| {
            let net = Series { lstm: LstmConfig::new(1, 6, true).init(at), head: LinearConfig::new(6, 1).init(at) };
            Chain::of(net)
                .first(&["lstm"], |net: &Series, (x, _): &SeriesBatch| net.lstm.forward(x.clone(), None).1.hidden)
                .then(&["head"], |net, hidden, _| net.head.forward(hidden))
                .mean_loss(|_, outputs, (_, targets)| MseLoss::new().forward(outputs, targets.clone(), Reduction::Mean))
        };
        let mut engine = Engine::build(&epl, chain, &SgdConfig::new())?;
        let device = engine.device().clone();
        let batch = (numbers([6, 5, 1], 3, &device), numbers([6, 1], 4, &device));
        let losses = (0..20).map(|_| Ok(engine.train_batch(&batch, 0.1)?.loss)).collect::<epl::Result<Vec<_>>>()?;
        Ok((losses, engine.plan().to_string()))
    });
    ran.map(|mut all| all.remove(0))
}

#[test]
fn a_segment_whose_parameters_stay_in_f32_computes_in_f32() {
    let (full, _) = series(&Config::new()).unwrap_or_else(|error| panic!("{error}"));
    for dtype in [F16, Bf16] {
        for ranks in [1, 2] {
            let config = half(Config::new().with("cluster.ranks", ranks).expect("an option"), dtype);
            // Which a segment with Burn's Lstm does by itself; here both are kept.
            let config = config.with("amp.full_precision", vec!["head"]).expect("an option");
            let (losses, plan) = series(&config).unwrap_or_else(|error| panic!("{dtype}: {error}"));
            assert!(plan.contains("lstm, head in F32"), "{plan}");
            let (last, expected) = (losses[19], full[19]);
            assert!(
                (last - expected).abs() <= 4.0 * rounding(dtype) * expected && last < 0.8 * losses[0],
                "{losses:?}"
            );
        }
    }
}

#[derive(Module, Debug)]
struct Normed {
    body: Linear,
    norm: LayerNorm,
    head: Linear,
}

/// Burn's norm asks for a gain of its input's type, and Burn's linear layer for a weight of it.
#[test]
fn a_parameter_of_burns_layer_that_stays_in_f32_has_its_segment_compute_in_f32() {
    let run = |config: &Config| {
        let ran = epl::launch(config, |epl| {
            let chain = |at: &Place| {
                let [body, head] =
                    [[3, 6], [6, 1]].map(|[inputs, outputs]| LinearConfig::new(inputs, outputs).init(at));
                Chain::of(Normed { body, norm: LayerNormConfig::new(6).init(at), head })
                    .first(&["body", "norm"], |net: &Normed, (x, _): &(Tensor<2>, Tensor<2>)| {
                        net.norm.forward(net.body.forward(x.clone()))
                    })
                    .then(&["head"], |net, hidden, _| net.head.forward(hidden))
                    .mean_loss(|_, outputs, (_, targets)| (outputs - targets.clone()).powi_scalar(2).mean())
            };
            let mut engine = Engine::build(&epl, chain, &SgdConfig::new())?;
            let device = engine.device().clone();
            let batch = (numbers([8, 3], 5, &device), numbers([8, 1], 6, &device));
            let losses =
                (0..10).map(|_| Ok(engine.train_batch(&batch, 0.05)?.loss)).collect::<epl::Result<Vec<_>>>()?;
            Ok((losses, engine.plan().to_string()))
        });
        ran.unwrap_or_else(|error| panic!("{error}")).remove(0)
    };
    let (full, _) = run(&Config::new());
    for dtype in [F16, Bf16] {
        for kept in ["norm", "**.gamma"] {
            let (losses, plan) =
                run(&half(Config::new(), dtype).with("amp.full_precision", vec![kept]).expect("an option"));
            assert!(plan.contains("with 2 of the parameters, body+norm in F32"), "{plan}");
            for (found, expected) in losses.iter().zip(&full) {
                assert!((found - expected).abs() <= 4.0 * rounding(dtype) * expected, "{dtype}: {losses:?}");
            }
        }
    }
}

/// What is kept by its layer already is nothing new, and layers of EPL take both types.
#[test]
fn a_kept_parameter_of_epls_layer_leaves_its_segment_in_16_bits() {
    let plan = epl::launch_dry(
        &half(Config::new(), Bf16).with("amp.full_precision", vec!["norm", "**.bias"]).expect("an option"),
        0,
        |epl| {
            let net = |at: &Place| {
                let layers = (epl::nn::LinearConfig::new(3, 6).init(at), epl::nn::BatchNormConfig::new(6).init(at));
                let net = Kept { linear: layers.0, norm: layers.1 };
                WithLoss::new(net, |net: &Kept, x: &Tensor<2>| net.norm.forward(net.linear.forward(x.clone())).mean())
            };
            Ok(epl.plan(net)?.plan().to_string())
        },
    );
    let (plan, _) = plan.unwrap_or_else(|error| panic!("{error}"));
    assert!(plan.contains("segments compute in BF16 with 1 of the parameters\n"), "{plan}");
}

#[derive(Module, Debug)]
struct Kept {
    linear: epl::nn::Linear,
    norm: epl::nn::BatchNorm,
}

#[test]
fn a_pattern_that_keeps_nothing_is_refused() {
    let config =
        half(Config::new(), Bf16).with("amp.full_precision", vec!["lst", "head", "heads.*"]).expect("an option");
    let error = series(&config).expect_err("two patterns cover nothing").to_string();
    assert!(error.contains("2 things are in the way") && error.contains("no parameter is at `lst`"), "{error}");
    assert!(error.contains("no parameter is at `heads.*`") && error.contains("`head.weight`"), "{error}");
    let error =
        Config::new().with("amp.full_precision", vec!["head"]).and_then(|config| config.validate()).unwrap_err();
    assert!(error.to_string().contains("amp.level"), "{error}");
}

/// Outside of mixed precision, too, types are told with the place where they come from.
#[test]
fn a_batch_of_another_type_names_its_field() {
    let wrong = |dtype: HalfDtype, is_half: bool, stages: usize| {
        let config = Config::new().with("cluster.ranks", stages).expect("an option");
        let config = match stages {
            1 => config,
            _ => config
                .with("auto.auto_parallel", true)
                .and_then(|config| config.with("pipeline.num_stages", stages))
                .expect("options"),
        };
        let ran = epl::launch(&if is_half { half(config, dtype) } else { config }, |epl| {
            let net = |at: &Place| {
                Chain::of(Two { first: LinearConfig::new(4, 4).init(at), second: LinearConfig::new(4, 2).init(at) })
                    .first(&["first"], |net: &Two, batch: &Rated| net.first.forward(batch.inputs.clone()))
                    .then(&["second"], |net, hidden, _| net.second.forward(hidden))
                    .mean_loss(|_, outputs, batch| {
                        MseLoss::new().forward(outputs, batch.targets.clone(), Reduction::Mean)
                    })
            };
            let mut engine = Engine::build(&epl, net, &SgdConfig::new())?;
            let batch = rated(4, &engine.device().clone());
            let inputs = batch.inputs.clone().cast(DType::F64);
            engine.train_batch(&Rated { inputs, ..batch }, 0.1).map(|_| ())
        });
        ran.expect_err("f64 meets f32").to_string()
    };
    for error in [wrong(F16, false, 1), wrong(Bf16, true, 1), wrong(F16, false, 2)] {
        assert!(error.contains("segment `first`") && error.contains("in its batch `inputs` is F64"), "{error}");
        assert!(error.contains("its parameters are F32: cast to that type where the batch is made"), "{error}");
        assert!(!error.contains("targets"), "{error}");
    }
}
