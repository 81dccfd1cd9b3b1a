//! What else a run needs, over stages of different widths as on one rank: a trainer, measures; what the plan says; what
//! stages send each other; what is refused.

use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::Tensor;
use epl::comm::{EventKind, Operation, Trace};
use epl::data::{BatchShard, ShuffledSampler, TrainData, ValidData, micro_batches};
use epl::evaluate::{Accuracy, Classified, Evaluator};
use epl::prelude::*;
use epl::testing::largest_error;
use epl::{launch_dry, launch_traced};

use crate::widths::{Batch, Case, Net, Numbered, Tied, rows};

fn replicate(devices: usize) -> Strategy {
    Strategy::replicate(devices)
}

fn split(devices: usize) -> Strategy {
    Strategy::split(devices)
}

/// Trains for five steps, stops, and goes on for four; the losses at both ends, and the last measures.
fn trained(case: &Case) -> Vec<Vec<f64>> {
    let mut config = case.config().with("train.global_batch_size", 7).expect("an option");
    config.schedule.rate = 0.01;
    let folder = tempfile::tempdir().expect("a folder for a moment");
    let fit = |epl: &Epl, steps: u64, resume: bool| {
        let data = |samples: usize| InMemDataset::new((0..samples).collect::<Vec<usize>>());
        let train = TrainData::new(data(23), Numbered, ShuffledSampler::new(23, 7, 5)?)?;
        let valid = ValidData::new(data(11), Numbered, 2)?;
        let logits = |model: &Chain<Net, Batch, Tensor<2>>, hidden: Tensor<2>, batch: &Batch| {
            Classified::from_logits(model.model.logits(hidden), batch.1.clone(), None)
        };
        let engine = Engine::build(epl, |at| case.net(at), &AdamWConfig::new().with_epsilon(1e-4))?;
        let mut settings = TrainerConfig::new(steps).with_micro_batches(case.micro_batches);
        settings = settings.with_out(Some(folder.path().into())).with_check_replicas_every(Some(2)).with_resume(resume);
        let trainer = Trainer::new(engine, settings, LrSchedule::from_config(&epl.config().schedule)?).quiet();
        trainer
            .with_valid(valid.clone())
            .with_evaluator(Evaluator::with_head(valid, logits).with(Accuracy::top(2)))
            .fit(&train)
    };
    let all = epl::launch(&config, |epl| {
        let first = fit(&epl, 5, false)?.summary;
        let second = fit(&epl, 9, true)?.summary;
        let mut found = Vec::new();
        for summary in [first, second] {
            found.extend(summary.last.map(|last| last.report.loss));
            found.extend(summary.evaluation.iter().flat_map(|found| &found.values).map(|(_, value)| *value));
        }
        Ok(found)
    });
    all.unwrap_or_else(|error| panic!("{:?}: {error}", case.scopes))
}

#[test]
fn a_trainer_and_its_measures() {
    let expected = trained(&Case::new(1, &[], 7, 1)).remove(0);
    assert_eq!(expected.len(), 6, "a loss, that of other data, an accuracy; twice");
    for (scopes, ranks) in
        [([replicate(2), replicate(1)], 6), ([replicate(2), split(2)], 4), ([split(2), replicate(3)], 5)]
    {
        for found in trained(&Case::new(ranks, &scopes, 7, 3)) {
            let close = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-4 * b.abs());
            assert!(close && found.len() == 6, "{scopes:?} on {ranks}: {found:?}, not {expected:?}");
        }
    }
}

#[test]
fn frozen_parts() {
    let train = |case: &Case| {
        let all = epl::launch(&case.config(), |epl| {
            let built = epl.build(|at| case.net(at))?.try_map(|mut chain, _| {
                chain.model = chain.model.with_frozen_body();
                Ok(chain)
            })?;
            let mut engine = Engine::new(built, &SgdConfig::new(), EngineSettings::from_config(epl.config()))?;
            let batch = rows(0..5, &engine.device().clone());
            let gradients = engine.gradients(micro_batches(&batch, BatchShard::of(engine.context(), 2)?, 0)?)?.1;
            assert!(gradients.keys().all(|name| name.starts_with("rest.")), "{:?}", gradients.keys());
            engine.train_batch(&batch, 0.1)?;
            Ok((gradients, engine.parameters()?))
        });
        all.unwrap_or_else(|error| panic!("{:?}: {error}", case.scopes))
    };
    let (gradients, parameters) = train(&Case::new(1, &[], 5, 1)).remove(0);
    for (scopes, ranks) in [([replicate(2), replicate(1)], 6), ([split(2), replicate(3)], 5)] {
        for found in train(&Case::new(ranks, &scopes, 5, 2)) {
            assert!(largest_error(&found.0, &gradients).1 <= 1e-5, "{scopes:?}");
            assert!(largest_error(&found.1, &parameters).1 <= 1e-5, "{scopes:?}");
        }
    }
}

/// The first lines of the plan of a case, as a rank prints it.
fn plan(case: &Case, rank: usize) -> String {
    let (plan, _) = launch_dry(&case.config(), rank, |epl| {
        Ok(Engine::build(&epl, |at| case.net(at), &SgdConfig::new())?.plan().to_string())
    })
    .unwrap_or_else(|error| panic!("{error}"));
    plan
}

#[test]
fn the_plan_tells_the_widths() {
    let case = Case::new(8, &[replicate(2).named("body"), split(2).named("head")], 8, 2);
    let expected = "8 ranks = 2 replicas × 2 stages\n  `body` replicate(2)  [0 1] [4 5]\n  `head` split(2)      [2 3] [6 7]\n\
                    8 ranks = 2 replicas × 2 stages of data 4 × tensor 1, data 2 × tensor 2, order data,pipeline,tensor\n  \
                    replica 0  [0 1]  [2 3]\n  replica 1  [4 5]  [6 7]\n";
    let (first, second) = (plan(&case, 0), plan(&case, 3));
    assert!(first.starts_with(expected) && second.starts_with(expected), "{first}");
    // Who does not hold a layer does not say how it is divided.
    let line = |plan: &str, name: &str| plan.lines().find(|line| line.contains(name)).map(str::to_string);
    let (here, there) = (line(&second, "rest.1.linear.weight"), line(&first, "rest.1.linear.weight"));
    assert!(here.is_some_and(|line| line.contains("dim 1 over tensor [4..7]")), "{second}");
    assert!(there.is_some_and(|line| !line.contains("replicated") && line.contains("on stage 1")), "{first}");
}

/// How often something is sent in a step of two micro-batches, and how often stages tell each other what they have.
fn sent(scopes: &[Strategy], ranks: usize) -> (usize, usize) {
    let (case, trace) = (Case::new(ranks, scopes, 8, 2), Trace::new());
    let step = launch_traced(&case.config(), Some(trace.clone()), |epl| {
        let mut engine = Engine::build(&epl, |at| case.net(at), &SgdConfig::new())?;
        engine.train_batch(&rows(0..8, &engine.device().clone()), 0.1).map(|_| ())
    });
    step.unwrap_or_else(|error| panic!("{error}"));
    let events = trace.events();
    let count = |is: &dyn Fn(&EventKind) -> bool| events.iter().filter(|event| is(&event.kind)).count();
    let is_sent = |kind: &EventKind| matches!(kind, EventKind::Collective { operation: Operation::Send, .. });
    let over_stages = |kind: &EventKind| {
        matches!(kind, EventKind::Collective { group, operation, .. }
        if group == "stages" && *operation == Operation::AllGather)
    };
    (count(&is_sent), count(&over_stages))
}

#[test]
fn stages_of_one_width_send_what_one_pipeline_sends() {
    let (one, gathers) = sent(&[replicate(1), replicate(1)], 2);
    // A header and a tensor, forward and backward, of two micro-batches.
    assert_eq!((one, gathers), (8, 2));
    assert_eq!(sent(&[replicate(2), replicate(2)], 4), (2 * one, 2 * gathers));
    assert_eq!(sent(&[split(2), split(2)], 4), (2 * one, 2 * gathers));
    // Each of two devices exchanges its rows with one, and rows are told first.
    assert_eq!(sent(&[replicate(2), replicate(1)], 3), (2 * one, 3 * 2 * gathers / 2));
}

/// The time that stages wait, and what their segments cost, are those of stages, whatever their widths.
#[test]
fn what_is_measured_is_of_stages() {
    let case = Case::new(7, &[replicate(2), split(2), replicate(3)], 7, 2);
    let measured = epl::launch(&case.config(), |epl| {
        let mut engine = Engine::build(&epl, |at| case.net(at), &SgdConfig::new())?;
        let batch = rows(0..7, &engine.device().clone());
        engine.train_batch(&batch, 0.1)?;
        let first = micro_batches(&batch, BatchShard::of(engine.context(), 1)?, 0)?.remove(0);
        let profile = engine.profile(&first)?;
        Ok((engine.bubble(), profile.0.iter().map(|segment| (segment.stage, segment.parameters)).collect::<Vec<_>>()))
    });
    for (bubble, segments) in measured.unwrap_or_else(|error| panic!("{error}")) {
        assert!(bubble.is_some_and(|bubble| (0.0..1.0).contains(&bubble)), "{bubble:?}");
        assert_eq!(segments.iter().map(|(stage, _)| *stage).collect::<Vec<_>>(), [0, 0, 1, 2]);
        assert!(segments.iter().all(|(_, parameters)| *parameters > 0));
    }
}

/// The error of a step of which each rank changes its own micro-batches.
fn fails(case: &Case, change: impl Fn(usize, &mut Vec<MicroBatch<Batch>>) + Sync) -> String {
    let run = epl::launch(&case.config(), |epl| {
        let mut engine = Engine::build(&epl, |at| case.net(at), &SgdConfig::new())?;
        let batch = rows(0..case.rows, &engine.device().clone());
        let mut step = micro_batches(&batch, BatchShard::of(engine.context(), case.micro_batches)?, 0)?;
        change(epl.context().world().rank(), &mut step);
        engine.step(step, 0.1).map(|_| ())
    });
    run.expect_err("it does not fit").to_string()
}

#[test]
fn micro_batches_that_do_not_fit_are_told_before_the_step() {
    let case = Case::new(3, &[replicate(2), replicate(1)], 6, 3);
    let error = fails(&case, |rank, step| step.truncate(3 - rank / 2));
    assert!(error.contains("a rank of stage 0 has 3 micro-batches, and one of stage 1 2: give all stages"), "{error}");
    let error = fails(&case, |rank, step| step[1].empty = rank == 1);
    assert!(
        error.contains("micro-batch 1 has 1 samples on the devices of stage 0 and 2 on those of stage 1"),
        "{error}"
    );
    let error = fails(&case, |_, step| step[2].samples = vec![7; step[2].samples.len()].into());
    assert!(error.contains("micro-batch 2 has sample 7 twice in stage 0"), "{error}");
}

#[test]
fn what_does_not_fit_is_refused_before_the_first_step() {
    let two_to_one = Case::new(3, &[replicate(2), replicate(1)], 6, 1);
    let refused = |case: &Case, change: &dyn Fn(&mut Config)| {
        let mut config = case.config();
        change(&mut config);
        let built = epl::launch(&config, |epl| epl.build(|at| case.net(at)).map(|_| ()));
        built.expect_err("it does not fit").to_string()
    };
    let tied = Case { tied: Some(Tied::Mlp), ..Case::new(3, &[split(2), replicate(1)], 4, 1) };
    let error = refused(&tied, &|_| ());
    let said =
        "is used on the stages [0, 1], whose scopes are of different widths, and one of them divides it over 2 ranks";
    assert!(error.contains("body.mlp") && error.contains(said), "{error}");
    let error = refused(&two_to_one, &|config| config.pipeline.num_chunks = 2);
    assert!(error.contains("num_chunks = 2 needs 4 parts on 2 stages, and 2 are given"), "{error}");
    let error = refused(&two_to_one, &|config| config.dist.data_parallel_size = Some(3));
    assert!(error.contains("the scopes make data 2, but dist.data_parallel_size = 3"), "{error}");
    let error = refused(&two_to_one, &|config| config.dist.expert_parallel_size = 3);
    assert!(error.contains("the scopes make expert 1, but dist.expert_parallel_size = 3"), "{error}");
}

/// Two layers, each in a scope.
#[derive(Module, Debug)]
struct Two {
    first: Linear,
    second: Linear,
}

/// The losses of a step of two stages, between which this crosses beside the rows.
fn carries(ranks: usize, scopes: [Strategy; 2], beside: fn(Tensor<2>, &Context) -> Tensor<2>) -> epl::Result<Vec<f64>> {
    let config = Config::new().with("cluster.ranks", ranks)?;
    epl::launch(&config, |epl| {
        let built = epl.build(|at| {
            let linear = |at: &Place| LinearConfig::new(6, 6).init(at);
            let net = Two { first: at.scope(scopes[0].clone(), linear), second: at.scope(scopes[1].clone(), linear) };
            let context = at.context().clone();
            Chain::of(net)
                .first(&["first"], move |net: &Two, (inputs, _): &Batch| {
                    let hidden = net.first.forward(inputs.clone());
                    (hidden.clone(), beside(hidden, &context))
                })
                .then(&["second"], |net, (hidden, beside): (Tensor<2>, Tensor<2>), _| {
                    net.second.forward(hidden) + beside.sum_dim(1)
                })
                .mean_loss(|_, hidden, _| hidden.powi_scalar(2).mean())
        })?;
        let mut engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;
        engine.train_batch(&rows(0..5, &engine.device().clone()), 0.1).map(|report| report.loss)
    })
}

#[test]
fn every_tensor_that_crosses_has_the_rows_as_its_first_dim() {
    let sum = |hidden: Tensor<2>, _: &Context| hidden.sum().reshape([1, 1]);
    for scopes in [[replicate(2), replicate(1)], [replicate(1), replicate(2)]] {
        let error = carries(3, scopes, sum).expect_err("a sum has no rows").to_string();
        assert!(
            error.contains("has a tensor of shape [1, 1], and the micro-batch has")
                && error.contains("as many devices"),
            "{error}"
        );
    }
    // Rows that each device pads to its own longest.
    let padded = |hidden: Tensor<2>, context: &Context| hidden.slice_dim(1, 0..2 + context.data().rank());
    let error = carries(3, [replicate(2), replicate(1)], padded).expect_err("two lengths").to_string();
    assert!(error.contains("of shapes [3, 2] and [2, 3] to one of another width"), "{error}");
    assert!(error.contains("pad all rows of a step to one length"), "{error}");
}

/// Where all stages have one width, nothing is divided anew, and anything may cross.
#[test]
fn between_stages_of_one_width_anything_crosses() {
    let sum = |hidden: Tensor<2>, _: &Context| hidden.sum().reshape([1, 1]);
    let losses = carries(4, [replicate(2), replicate(2)], sum).unwrap_or_else(|error| panic!("{error}"));
    assert!(losses.iter().all(|loss| *loss == losses[0] && loss.is_finite()), "{losses:?}");
    // So it is between two stages that are alike, where a third one is not.
    let built = epl::launch(&Config::new().with("cluster.ranks", 5).expect("an option"), |epl| {
        let linear = |at: &Place| LinearConfig::new(6, 6).init(at);
        let net = epl.build(|at| {
            let two = Two { first: at.replicate(2, linear), second: at.replicate(2, linear) };
            Chain::of((two, at.replicate(1, linear)))
                .first(&["0.first"], |net: &(Two, Linear), (inputs, _): &Batch| {
                    let hidden = net.0.first.forward(inputs.clone());
                    (hidden.clone(), Some(hidden.sum().reshape([1, 1])))
                })
                .then(&["0.second"], |net, (hidden, sum): (Tensor<2>, Option<Tensor<2>>), _| {
                    net.0.second.forward(hidden) + sum.expect("the first stage sends one")
                })
                .then(&["1"], |net, hidden, _| net.1.forward(hidden))
                .mean_loss(|_, hidden, _| hidden.powi_scalar(2).mean())
        })?;
        let mut engine = Engine::new(net, &SgdConfig::new(), EngineSettings::default())?;
        engine.train_batch(&rows(0..5, &engine.device().clone()), 0.1).map(|report| report.loss)
    });
    let losses = built.unwrap_or_else(|error| panic!("{error}"));
    assert!(losses.iter().all(|loss| *loss == losses[0] && loss.is_finite()), "{losses:?}");
}

/// A layer, and a norm of Burn's.
#[derive(Module, Debug)]
struct Normed {
    layer: Linear,
    norm: BatchNorm,
}

/// A norm that is not synchronised takes its statistics over the rows of one device; the devices share the running ones.
#[test]
fn a_batch_norm_of_burn() {
    let run = |layer: Strategy, norm: Strategy| {
        epl::launch(&Case::new(3, &[], 5, 1).config(), |epl| {
            let net = |at: &Place| Normed {
                layer: at.scope(layer.clone(), |at| LinearConfig::new(6, 6).init(at)),
                norm: at.scope(norm.clone(), |at| BatchNormConfig::new(6).init(at)),
            };
            let build = |at: &Place| {
                Chain::of(net(at))
                    .first(&["layer"], |net: &Normed, (inputs, _): &Batch| net.layer.forward(inputs.clone()))
                    .then(&["norm"], |net, hidden: Tensor<2>, _| net.norm.forward(hidden))
                    .mean_loss(|_, hidden, _| hidden.powi_scalar(2).mean())
            };
            let mut engine = Engine::build(&epl, build, &SgdConfig::new())?;
            engine.train_batch(&rows(0..5, &engine.device().clone()), 0.1)?;
            engine.check_replicas()?;
            Ok(engine.parameters()?["norm.running_mean"].iter::<f32>().sum::<f32>())
        })
    };
    for (layer, norm) in [(2, 1), (1, 2)] {
        let means = run(replicate(layer), replicate(norm)).unwrap_or_else(|error| panic!("{error}"));
        assert!(means.iter().all(|mean| *mean == means[0] && *mean != 0.0), "{means:?}");
    }
}

/// What was a scalar on each of several devices of one row each would arrive as a vector.
#[test]
fn a_loss_term_is_one_number() {
    let run = epl::launch(&Case::new(1, &[], 5, 1).config(), |epl| {
        let squares = |net: &Linear, (inputs, _): &Batch| net.forward(inputs.clone()).powi_scalar(2).reshape([-1]);
        let net = |at: &Place| WithLoss::new(LinearConfig::new(6, 1).init(at), squares);
        let mut engine = Engine::build(&epl, net, &SgdConfig::new())?;
        engine.train_batch(&rows(0..5, &engine.device().clone()), 0.1).map(|_| ())
    });
    let error = run.expect_err("five numbers").to_string();
    assert!(error.contains("the loss term `loss` has 5 elements, and a term is 1 number; return their sum"), "{error}");
}
