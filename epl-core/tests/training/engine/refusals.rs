//! What would depend on the layout, or cannot be trained, is refused.

use std::sync::Arc;

use burn::grad_clipping::GradientClippingConfig;
use burn::module::Module;
use burn::nn::activation::RReluConfig;
use burn::nn::transformer::TransformerEncoderConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, GaussianNoiseConfig, Linear, LinearConfig};
use burn::optim::{AdafactorConfig, AdamWConfig, SgdConfig};
use burn::tensor::{Device, Tensor};
use epl_core::config::{HalfDtype, LossScale};
use epl_core::engine::Compression;
use epl_core::testing::config;
use epl_core::{
    Config, Engine, EngineSettings, Epl, Loss, LossWeights, Mesh, MicroBatch, Model, Place, Result, TraceWindow,
    WithLoss, checkpoint, launch,
};

use crate::engine::chain::{Chain, Rows, micro_batches, rows};

#[test]
fn optimizers_that_look_at_whole_tensors_are_refused_on_slices() {
    let error = epl_core::launch(&config(1, 2, 1), |epl| {
        Engine::new(epl.build(Chain::new)?, &AdafactorConfig::new(), EngineSettings::default()).map(|_| ())
    })
    .unwrap_err()
    .to_string();
    assert!(error.contains("`up`") && error.contains("Adafactor") && error.contains("[6, 5] of [6, 10]"), "{error}");
}

#[test]
fn clipping_of_each_parameter_is_refused() {
    let error = epl_core::launch(&config(1, 1, 1), |epl| {
        let optimizer = AdamWConfig::new().with_grad_clipping(Some(GradientClippingConfig::Norm(1.0)));
        Engine::new(epl.build(Chain::new)?, &optimizer, EngineSettings::default()).map(|_| ())
    })
    .unwrap_err()
    .to_string();
    assert!(error.contains("train.clip_norm"), "{error}");
}

#[test]
fn replicas_with_different_numbers_of_micro_batches_are_an_error() {
    let error = epl_core::launch(&config(2, 1, 1), |epl| {
        let mut engine = Engine::new(epl.build(Chain::new)?, &SgdConfig::new(), EngineSettings::default())?;
        let count = 1 + epl.context().data().rank();
        engine.step(micro_batches(&epl, count), 0.1).map(|_| ())
    })
    .unwrap_err()
    .to_string();
    assert!(error.contains("micro-batches"), "{error}");
}

/// A layer, and beside it what the tests put there.
#[derive(Module, Debug)]
struct Net {
    layer: Linear,
    other: Option<Linear>,
    norm: Option<BatchNorm>,
    dropout: Option<Dropout>,
}

impl Net {
    fn plain(place: &Place) -> Self {
        Self { layer: LinearConfig::new(6, 3).init(place), other: None, norm: None, dropout: None }
    }

    fn with_norm(place: &Place) -> Self {
        Self { norm: Some(BatchNormConfig::new(3).init(place)), ..Self::plain(place) }
    }

    fn with_dropout(place: &Place) -> Self {
        Self { dropout: Some(DropoutConfig::new(0.5).init()), ..Self::plain(place) }
    }

    fn with_a_parameter_twice(place: &Place) -> Self {
        let net = Self::plain(place);
        Self { other: Some(net.layer.clone()), ..net }
    }
}

impl Model for Net {
    type Batch = Rows;
    type Carry = ();

    fn segments(&self) -> usize {
        1
    }

    fn weights(&self, batch: &Rows) -> LossWeights {
        LossWeights::new().with("error", batch.valid.len() as f64)
    }

    fn forward_segment(&self, _: usize, _: Option<()>, _: &Self::Batch) {}

    fn loss(&self, (): (), batch: &Rows) -> Loss {
        let mut x: Tensor<2> = self.layer.forward(batch.input.clone());
        if let Some(norm) = &self.norm {
            x = norm.forward(x);
        }
        if let Some(dropout) = &self.dropout {
            x = dropout.forward(x);
        }
        Loss::new().with("error", (x - batch.target.clone()).powi_scalar(2).sum(), 1.0)
    }
}

/// Builds a model and makes one step of `count` micro-batches.
fn step(config: &Config, model: impl Fn(&Place) -> Net + Sync, count: u64) -> Result<()> {
    launch(config, |epl| {
        let mut engine = Engine::new(epl.build(&model)?, &SgdConfig::new(), EngineSettings::default())?;
        let batch = |n: u64| MicroBatch::new(rows(0..4, epl.place()), (n * 4..n * 4 + 4).collect::<Vec<_>>());
        engine.step((0..count).map(batch).collect(), 0.1)
    })
    .map(|_| ())
}

/// What the plan of a model says of its layers.
fn planned(config: &Config, model: impl Fn(&Place) -> Net + Sync) -> String {
    let texts = launch(config, |epl| epl.build(&model).map(|built| built.plan().to_string()));
    texts.unwrap().swap_remove(0)
}

#[test]
fn batch_norm_runs_where_the_batch_is_cut_and_the_plan_says_what_holds() {
    for (replicas, micro_batches) in [(1, 1), (2, 1), (1, 3), (2, 3)] {
        step(&config(replicas, 1, 1), Net::with_norm, micro_batches).unwrap();
    }
    let text = planned(&config(2, 1, 1), Net::with_norm);
    assert!(text.contains("`norm` takes statistics of each replica and micro-batch by itself"), "{text}");
    assert!(text.contains("that of `epl::nn` takes them over all replicas"), "{text}");
}

#[test]
fn dropout_of_burn_runs_and_the_plan_says_what_holds() {
    for (replicas, micro_batches) in [(1, 1), (2, 1), (2, 3)] {
        step(&config(replicas, 1, 1), Net::with_dropout, micro_batches).unwrap();
    }
    let text = planned(&config(2, 1, 1), Net::with_dropout);
    assert!(text.contains("`dropout` draws by Burn's generator: the same again on this layout"), "{text}");
    assert!(!planned(&config(2, 1, 1), Net::plain).contains("generator"));
    let text = Config::new().with("train.allow_unseeded_layers", true).unwrap_err().to_string();
    assert!(text.contains("allow_unseeded_layers"), "{text}");
}

/// A layer of Burn that draws nothing is the same under every layout, also inside a layer that is not the user's own.
#[test]
fn dropout_of_probability_zero_is_accepted() {
    fn drawing<M: Module>(net: impl Fn(&Place) -> M + Sync) -> Vec<String> {
        let drawing = launch(&config(2, 1, 1), |epl| {
            let loss = |_: &M, _: &()| unreachable!("nothing is run");
            epl.build(|at| WithLoss::new(net(at), loss)).map(|built| built.plan().drawing_layers().to_vec())
        });
        drawing.unwrap().swap_remove(0)
    }
    assert!(drawing(|_| DropoutConfig::new(0.0).init()).is_empty());
    let encoder = |prob: f64| drawing(|at| TransformerEncoderConfig::new(4, 8, 2, 2).with_dropout(prob).init(at));
    assert!(encoder(0.0).is_empty());
    let found = encoder(0.1);
    assert!(found.iter().any(|path| path.starts_with("layers.1.") && path.contains("dropout")), "{found:?}");
    let noise = |std: f64| drawing(|at| (LinearConfig::new(2, 2).init(at), GaussianNoiseConfig::new(std).init()));
    assert_eq!((noise(0.0), noise(0.5)), (vec![], vec!["1".to_string()]));
    // It draws its slopes, whatever they are between.
    let slopes = || RReluConfig::new().with_lower(0.2).with_upper(0.2).init();
    assert_eq!(drawing(|at| (LinearConfig::new(2, 2).init(at), slopes())), ["1"]);
    // In a loop of one's own.
    let device = Device::flex().autodiff();
    let forward = |dropout: &Dropout, x: Tensor<2>| dropout.forward(x);
    let again =
        |prob| checkpoint(&DropoutConfig::new(prob).init(), Tensor::ones([2, 2], &device).require_grad(), forward);
    assert_eq!(again(0.0).dims(), [2, 2]);
}

/// Nobody asks for it: it would be kept for as long as the program evaluates.
#[test]
fn what_is_said_of_nan_in_a_forward_of_ones_own_is_not_kept() {
    launch(&config(1, 1, 1), |epl| {
        let engine = Engine::build(&epl, Net::plain, &SgdConfig::new())?;
        let witness = Arc::new(());
        let _model = engine.inference()?;
        for _ in 0..3 {
            let kept = witness.clone();
            epl.context().explain_nan(move || {
                drop(kept);
                None
            });
        }
        assert_eq!(Arc::strong_count(&witness), 1);
        Ok(())
    })
    .unwrap();
}

/// What is wrong with a model is told at once, not one fault a run.
#[test]
fn all_refusals_of_a_plan_are_told_together() {
    let config = config(2, 1, 1).with("zero.level", "v3").unwrap();
    let config = config.with("train.global_batch_size", 7).unwrap().with("train.micro_batch_size", 2).unwrap();
    let text = step(&config, Net::plain, 1).unwrap_err().to_string();
    for expected in ["train.global_batch_size", "the model is 1 segment"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

/// Why an engine with these settings is not made.
fn refused(settings: &EngineSettings) -> String {
    let made = launch(&config(1, 1, 1), |epl| {
        Engine::new(epl.build(Chain::new)?, &SgdConfig::new(), settings.clone()).map(|_| ())
    });
    made.unwrap_err().to_string()
}

#[test]
fn settings_given_in_code_are_checked_as_options_are() {
    let own = EngineSettings::default;
    let mut wrong: Vec<(EngineSettings, &str)> = vec![
        (EngineSettings { num_communicators: 0, ..own() }, "communication.num_communicators = 0"),
        (EngineSettings { num_apply_group: 0, ..own() }, "optimizer.num_apply_group = 0"),
        (EngineSettings { trace: Some(TraceWindow { skip: 0, steps: 0 }), ..own() }, "profile.trace_steps = 0"),
    ];
    for limit in [-1.0, 0.0, f64::NAN, f64::INFINITY] {
        wrong.push((EngineSettings { clip_norm: Some(limit), ..own() }, "train.clip_norm = "));
    }
    for scale in [-128.0, 0.0, f64::NAN, f64::INFINITY] {
        let compression = Some(Compression { dtype: HalfDtype::F16, scale });
        wrong.push((EngineSettings { compression, ..own() }, "communication.fp16_scale = "));
    }
    for scale in [0.5, f64::NAN, f64::INFINITY] {
        wrong.push((EngineSettings { loss_scale: LossScale::Fixed(scale), ..own() }, "amp.loss_scale = "));
    }
    for (settings, expected) in wrong {
        let text = refused(&settings);
        assert!(text.contains(expected) && text.contains("allowed"), "{settings:?}: {text}");
    }
}

#[test]
fn a_learning_rate_that_is_none_changes_nothing() {
    epl_core::testing::run((2, 1, 1), |epl| {
        let mut engine = Engine::new(epl.build(Chain::new)?, &AdamWConfig::new(), EngineSettings::default())?;
        engine.step(micro_batches(&epl, 1), 0.1)?;
        let before = (engine.parameters()?, engine.optimizer_state()?, engine.steps());
        for rate in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.1] {
            let text = engine.step(micro_batches(&epl, 1), rate).unwrap_err().to_string();
            assert!(text.contains(&format!("learning rate {rate} at step 2")), "{text}");
            let accumulated = engine.accumulate(micro_batches(&epl, 1))?;
            assert_eq!(engine.apply(accumulated, rate).unwrap_err().to_string(), text);
            assert_eq!((engine.parameters()?, engine.optimizer_state()?, engine.steps()), before);
        }
        engine.step(micro_batches(&epl, 1), 0.0).map(drop)
    });
}

#[test]
fn a_configuration_whose_fields_were_written_is_checked_without_launch_too() {
    let mut wrong = config(1, 1, 1);
    wrong.train.clip_norm = Some(-1.0);
    let made = epl_comm::local::Launcher::new(1)
        .run(|world| -> Result<()> { Epl::new(wrong.clone(), Mesh::from_config(&wrong)?, world, None).map(drop) });
    let text = made.unwrap_err().1.to_string();
    assert!(text.contains("train.clip_norm = -1"), "{text}");
}

#[test]
fn a_setting_of_an_optimizer_that_is_no_number_is_named() {
    let made = |optimizer: AdamWConfig| {
        launch(&config(1, 1, 1), |epl| {
            Engine::new(epl.build(Chain::new)?, &optimizer, EngineSettings::default()).map(|_| ())
        })
    };
    let text = made(AdamWConfig::new().with_beta_1(f32::NAN)).unwrap_err().to_string();
    assert!(text.contains("AdamW") && text.contains("beta_1 = NaN"), "{text}");
    let text = made(AdamWConfig::new().with_epsilon(f32::INFINITY)).unwrap_err().to_string();
    assert!(text.contains("epsilon = inf"), "{text}");
    // Nothing is null where nothing was given.
    assert!(made(AdamWConfig::new()).is_ok());
}

#[test]
fn a_parameter_in_two_places_is_refused() {
    let text = step(&config(1, 1, 1), Net::with_a_parameter_twice, 1).unwrap_err().to_string();
    assert!(text.contains("parameter `other.weight`: is the same parameter as `layer.weight`"), "{text}");
    assert!(text.contains("hold it once and use it in both"), "{text}");
}

#[test]
fn a_parameter_on_another_device_is_refused() {
    // As one that was made on Burn's default device, without autodiff: it would never learn.
    let elsewhere = |at: &Place| {
        let mut net = Net::with_norm(at);
        net.layer = LinearConfig::new(6, 3).init(&Device::default());
        net
    };
    let text = step(&config(1, 1, 1), elsewhere, 1).unwrap_err().to_string();
    assert!(text.contains("parameter `layer.weight`: lies on Device<Flex(Cpu)>, and"), "{text}");
    assert!(text.contains("make its layer at the place that the closure of `build` is given"), "{text}");
}

/// Of parameters, too.
#[test]
fn all_parameters_that_cannot_be_laid_out_are_told_together() {
    let text = launch(&config(1, 1, 1), |epl| {
        let linear = |at: &Device| LinearConfig::new(2, 2).init(at);
        let net = |at: &Place| [linear(at.device()), linear(at.device()), linear(&Device::default())];
        let chain = |at: &Place| {
            epl_core::Chain::of(net(at))
                .first(&["0.weight"], |net: &[Linear; 3], x: &Tensor<2>| net[0].forward(x.clone()))
                .mean_loss(|_, x, _| x.mean())
        };
        epl.build(chain).map(drop)
    });
    let text = text.unwrap_err().to_string();
    assert!(text.contains("5 things are in the way"), "{text}");
    for expected in [
        "parameter `0.bias`: no segment uses it; name it in the one that does",
        "parameter `1.weight`: no segment uses it",
        "parameter `2.weight`: lies on Device<Flex(Cpu)>, and",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

/// Whichever rank comes first.
#[test]
fn what_all_ranks_refuse_is_told_by_the_first() {
    for _ in 0..10 {
        let text = step(&config(4, 1, 1), Net::with_a_parameter_twice, 1).unwrap_err().to_string();
        assert!(text.starts_with("rank 0: "), "{text}");
    }
}

/// A guess is given where it can be right.
#[test]
fn a_panic_of_a_later_stage() {
    let panicked = |second: fn(&[Linear; 2], Tensor<2>) -> Tensor<2>| {
        let two = config(1, 1, 1).with("dist.pipeline_parallel_size", 2).unwrap();
        let found = launch(&two, |epl| {
            let chain = |at: &Place| {
                epl_core::Chain::of([(); 2].map(|()| LinearConfig::new(3, 3).init(at)))
                    .first(&["0"], |net: &[Linear; 2], x: &Tensor<2>| net[0].forward(x.clone()))
                    .then(&["1"], move |net, x, _| second(net, x))
                    .mean_loss(|_, x, _| x.mean())
            };
            let mut engine = Engine::build(&epl, chain, &SgdConfig::new())?;
            let x = Tensor::ones([2, 3], epl.place().device());
            engine.step(vec![MicroBatch::new(x, [0, 1])], 0.1).map(drop)
        });
        found.unwrap_err().to_string()
    };
    let own = panicked(|_, _| panic!("no such class"));
    assert!(own.contains("stage 1, segment") && own.contains("panicked: no such class"), "{own}");
    assert!(!own.contains("is empty there"), "{own}");
    let empty = panicked(|net, x| net[1].forward(net[0].forward(x)));
    assert!(empty.contains("stage 1, segment") && empty.contains("is empty there, another stage holds it"), "{empty}");
}
