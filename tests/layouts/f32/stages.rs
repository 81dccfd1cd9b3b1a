//! What else a run needs, with pipeline stages as on one rank: evaluation, frozen parameters, saving, the whole model; and
//! what ends it.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::AdamWConfig;
use burn::tensor::{Tensor, TensorData};
use epl::config::Config;
use epl::models::t5::{T5, T5Batch};
use epl::testing::{config, largest_error};
use epl::{Engine, EngineSettings, Epl, MicroBatch, launch};

use crate::parity::{Case, dense, micro_batches, moe};

fn staged(stages: usize) -> Config {
    let mut config = config(1, 1, 1);
    config.dist.pipeline_parallel_size = stages;
    config
}

fn engine(epl: &Epl, case: &Case) -> epl::Result<Engine<T5>> {
    let settings = EngineSettings::from_config(epl.config());
    Engine::new(epl.build(|place| case.model.init(place))?, &AdamWConfig::new().with_epsilon(1e-4), settings)
}

/// What `f` finds on every rank of each number of stages is what it finds on one rank.
fn same_under_stages<T: Send + PartialEq + core::fmt::Debug>(
    case: &Case,
    f: impl Fn(&Epl, Engine<T5>) -> epl::Result<T> + Sync,
    same: impl Fn(&T, &T) -> bool,
) {
    let run = |stages| {
        let ranks = launch(&staged(stages), |epl| f(&epl, engine(&epl, case)?));
        ranks.unwrap_or_else(|error| panic!("{stages} stages: {error}"))
    };
    let expected = run(1).swap_remove(0);
    for stages in [2, 3] {
        for (rank, found) in run(stages).into_iter().enumerate() {
            assert!(same(&found, &expected), "rank {rank} of {stages} stages: {found:?} instead of {expected:?}");
        }
    }
}

fn close(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() <= 1e-5
}

#[test]
fn evaluation() {
    let case = moe();
    // Fewer than are read ahead, and more.
    for count in [3, 19] {
        let evaluate = |epl: &Epl, engine: Engine<T5>| {
            let batches = (0..count).map(|step| micro_batches(epl, &case, step, 1).swap_remove(0));
            let report = engine.evaluate(batches.map(Ok))?;
            Ok((report.loss, report.terms, report.weights))
        };
        same_under_stages(&case, evaluate, |(loss, terms, weights), (other_loss, other_terms, other_weights)| {
            let same = terms.iter().zip(other_terms).all(|(a, b)| a.0 == b.0 && close(a.1, b.1));
            close(*loss, *other_loss) && same && terms.len() == other_terms.len() && weights == other_weights
        });
    }
}

#[test]
fn every_rank_evaluates_as_many_batches() {
    let case = moe();
    let run = launch(&staged(2), |epl| {
        let count = 10 - epl.context().world().rank() as u64;
        let batches = (0..count).map(|step| micro_batches(&epl, &case, step, 1).swap_remove(0));
        engine(&epl, &case)?.evaluate(batches.map(Ok)).map(|_| ())
    });
    let error = run.expect_err("one batch is missing").to_string();
    assert!(error.contains("of the next 8 batches to evaluate") && error.contains("together 3"), "{error}");
}

/// The parameters of a model, in its own order.
fn values<M: Module>(model: &M) -> Vec<TensorData> {
    struct Values(Vec<TensorData>);
    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().into_data());
        }
    }
    let mut values = Values(Vec::new());
    model.visit(&mut values);
    values.0
}

#[test]
fn the_whole_model() {
    let whole = |_: &Epl, engine: Engine<T5>| Ok(values(&engine.inference()?));
    same_under_stages(&moe(), whole, |found, expected| found == expected);
}

type Trained = (BTreeMap<String, TensorData>, BTreeMap<String, TensorData>);

fn equal((gradients, parameters): &Trained, (other_gradients, other_parameters): &Trained) -> bool {
    largest_error(gradients, other_gradients).1 <= 1e-5 && largest_error(parameters, other_parameters).1 <= 1e-3
}

#[test]
fn frozen_parameters() {
    let case = dense();
    let train = |epl: &Epl, case: &Case| -> epl::Result<Trained> {
        let built = epl.build(|place| case.model.init(place))?;
        let built = built.try_map(|mut model, _| {
            // Of the first stage.
            model.encoder = model.encoder.no_grad();
            Ok(model)
        })?;
        assert!(built.plan().records().iter().any(|record| !record.trainable));
        let mut engine = Engine::new(built, &AdamWConfig::new().with_epsilon(1e-4), EngineSettings::default())?;
        let gradients = engine.gradients(micro_batches(epl, case, 0, 2))?.1;
        assert!(!gradients.keys().any(|name| name.starts_with("encoder.")), "{:?}", gradients.keys());
        engine.step(micro_batches(epl, case, 0, 2), 0.01)?;
        engine.check_replicas()?;
        Ok((gradients, engine.parameters()?))
    };
    same_under_stages(&case, |epl, _| train(epl, &case), equal);
}

#[test]
fn a_run_goes_on_from_what_was_saved() {
    let case = moe();
    let folder = tempfile::tempdir().expect("a folder for a moment");
    let saved = folder.path().join("checkpoint");
    let train = |epl: &Epl, mut engine: Engine<T5>| -> epl::Result<Trained> {
        engine.step(micro_batches(epl, &case, 0, 2), 0.01)?;
        engine.save(&saved)?;
        let mut again = self::engine(epl, &case)?;
        again.load(&saved)?;
        engine.step(micro_batches(epl, &case, 1, 2), 0.01)?;
        again.step(micro_batches(epl, &case, 1, 2), 0.01)?;
        assert_eq!(again.parameters()?, engine.parameters()?, "to the bit");
        assert_eq!(again.optimizer_state()?, engine.optimizer_state()?, "to the bit");
        Ok((again.gradients(micro_batches(epl, &case, 2, 2))?.1, again.parameters()?))
    };
    same_under_stages(&case, train, |found, expected| largest_error(&found.1, &expected.1).1 <= 1e-3);
}

/// A step of three micro-batches on two stages, of which each rank changes its own; the error of the run.
fn fails(change: impl Fn(usize, &mut Vec<MicroBatch<T5Batch>>) + Sync) -> String {
    let case = moe();
    let run = launch(&staged(2), |epl| {
        let mut engine = engine(&epl, &case)?;
        let mut step = micro_batches(&epl, &case, 0, 3);
        change(epl.context().world().rank(), &mut step);
        engine.step(step, 0.1).map(|_| ())
    });
    run.expect_err("the stages do not fit").to_string()
}

#[test]
fn stages_run_the_same_micro_batches() {
    let error = fails(|rank, step| step.truncate(3 - rank));
    assert!(error.contains("stage 0 has 3 micro-batches, and stage 1 2"), "{error}");
    let error =
        fails(|rank, step| step[1].samples = step[1].samples.iter().map(|sample| sample + rank as u64).collect());
    assert!(error.contains("3 micro-batches of other samples than stage 1"), "{error}");
    let error = fails(|rank, step| step[2].empty = rank == 1);
    assert!(error.contains("of other samples than stage 1"), "{error}");
}

#[test]
fn a_stage_that_fails_ends_the_run_with_its_name() {
    // Rows that are not those of the samples: the first stage's dropout refuses them in its second micro-batch.
    let error = fails(|_, step| step[1].samples = [7].into());
    assert!(error.contains("rank 0") && error.contains("samples"), "{error}");
    let case = moe();
    for culprit in [0, 1] {
        let run = launch(&staged(2), |epl| {
            let mut engine = engine(&epl, &case)?;
            engine.step(micro_batches(&epl, &case, 0, 3), 0.1)?;
            if epl.context().world().rank() == culprit {
                return Err(epl::Error::invalid("the disk is full"));
            }
            engine.step(micro_batches(&epl, &case, 1, 3), 0.1).map(|_| ())
        });
        let error = run.expect_err("a stage has left").to_string();
        assert!(error.contains(&format!("rank {culprit}")) && error.contains("the disk is full"), "{error}");
    }
}

#[test]
fn what_does_not_fit_is_refused_before_the_first_step() {
    let refused = |change: &dyn Fn(&mut Config)| {
        let mut config = staged(2);
        change(&mut config);
        let built = launch(&config, |epl| epl.build(|place| dense().model.init(place)).map(|_| ()));
        built.expect_err("it does not fit").to_string()
    };
    let error = refused(&|config| config.dist.pipeline_parallel_size = 6);
    assert!(error.contains("5 segments cannot fill 6 stages"), "{error}");
    let error = refused(&|config| config.pipeline.num_chunks = 3);
    assert!(error.contains("5 segments cannot fill 2 stages × 3 chunks"), "{error}");
    let error = refused(&|config| {
        config.pipeline.num_chunks = 2;
        config.pipeline.strategy = epl::config::PipelineStrategy::PreferForward;
    });
    assert!(error.contains("pipeline.num_chunks = 2") && error.contains("PreferForward"), "{error}");
    let error = refused(&|config| (config.dist.pipeline_parallel_size, config.pipeline.num_chunks) = (1, 2));
    assert!(error.contains("pipeline.num_chunks = 2") && error.contains("there is 1 stage"), "{error}");
    let error = refused(&|config| config.dist.custom_pipeline_stage_id = Some(vec![0, 0, 1]));
    assert!(error.contains("is for 3 layers") && error.contains("5 segments"), "{error}");
    let error = refused(&|config| config.dist.custom_pipeline_stage_id = Some(vec![0, 1, 0, 1, 1]));
    assert!(error.contains("2 pipeline stages"), "{error}");
    let error = refused(&|config| {
        config.dist.pipeline_parallel_size = 1;
        config.dist.custom_pipeline_stage_id = Some(vec![0; 5]);
    });
    assert!(error.contains("is for the stages of 5 layers") && error.contains("there is 1"), "{error}");
}

/// The stage of each layer, as LiBai's option says it.
#[test]
fn stages_are_those_that_are_told() {
    let mut config = staged(2);
    config.dist.custom_pipeline_stage_id = Some(vec![0, 1, 1, 1, 1]);
    let held = launch(&config, |epl| {
        let engine = engine(&epl, &dense())?;
        assert_eq!(engine.plan().stages.parts(), [0..1, 1..5]);
        let blocks = engine.plan().records().iter().filter(|record| record.held && record.name.contains("blocks."));
        Ok(blocks.filter(|record| record.name.starts_with("encoder.blocks.0.")).count())
    });
    let held = held.unwrap_or_else(|error| panic!("{error}"));
    assert!(held[0] > 0 && held[1] == 0, "{held:?}");
}
