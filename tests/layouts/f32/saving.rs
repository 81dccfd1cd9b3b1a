//! Evaluation, saving and the check of replicas under every level of ZeRO and with every tier.

use burn::optim::AdamWConfig;
use burn::tensor::TensorData;
use epl::config::HalfDtype::{Bf16, F16};
use epl::config::StateTier::{Device, File, Host};
use epl::config::ZeroLevel::{V0, V1, V2, V3};
use epl::{Engine, Epl, Result};

use crate::parity::{Layout, layout, micro_batches, moe};

const STEPS: u64 = 3;
const RATE: f64 = 0.02;

/// Every way in which a rank may hold its state.
fn layouts() -> Vec<Layout> {
    let two = layout(2, 1, 1, 2);
    let mut all = vec![two, two.zero(V0), two.zero(V1), two.zero(V2), two.zero(V3), layout(2, 2, 1, 1).zero(V3)];
    all.extend([two.offload(Host), two.zero(V3).offload(Host), two.zero(V1).offload(File), two.zero(V3).offload(File)]);
    all.extend([two.tiers(Device, Device, Host), two.zero(V2).tiers(Host, Device, Device), two.half(F16).zero(V3)]);
    all
}

fn engine(epl: &Epl) -> Result<Engine<epl::models::t5::T5>> {
    Engine::build(epl, |place| moe().model.init(place), &AdamWConfig::new().with_epsilon(1e-4))
}

/// One run of three steps leaves the same bits as two steps, a folder, and a third one in another engine.
#[test]
fn a_run_goes_on_where_it_was_saved() {
    for layout in layouts() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let ran = epl::launch(&layout.config(), |epl| {
            let step = |engine: &mut Engine<_>, step| {
                engine.step(micro_batches(&epl, &moe(), step, layout.accumulation), RATE)
            };
            let saved = folder.path().join("checkpoint");
            let mut whole = engine(&epl)?;
            for number in 0..STEPS {
                step(&mut whole, number)?;
                if number + 2 == STEPS {
                    whole.save(&saved)?;
                }
            }
            let mut resumed = engine(&epl)?;
            resumed.load(&saved)?;
            step(&mut resumed, STEPS - 1)?;
            assert_eq!(whole.steps(), resumed.steps());
            assert_eq!(whole.parameters()?, resumed.parameters()?, "parameters");
            assert_eq!(whole.optimizer_state()?, resumed.optimizer_state()?, "optimizer state");
            resumed.check_replicas()
        });
        ran.unwrap_or_else(|error| panic!("{layout:?}: {error}"));
    }
}

/// What a run in 16 bits saved, another layout loads: the same bits, and the same loss scale.
#[test]
fn the_loss_scale_goes_along() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let saved = folder.path().join("checkpoint");
    let (two, three) = (layout(2, 1, 1, 1).half(F16), layout(3, 1, 1, 1).half(F16).zero(V3));
    let mut config = two.config();
    // So large at first that a step is skipped.
    config.communication.gradients_reduce_method = epl::config::ReduceMethod::Sum;
    let before = epl::launch(&config, |epl| {
        let mut engine = engine(&epl)?;
        for number in 0..4 {
            engine.step(micro_batches(&epl, &moe(), number, 1), RATE)?;
        }
        engine.save(&saved)?;
        Ok((engine.loss_scaler().cloned(), engine.steps(), engine.parameters()?))
    });
    let after = epl::launch(&three.config(), |epl| {
        let mut engine = engine(&epl)?;
        engine.load(&saved)?;
        Ok((engine.loss_scaler().cloned(), engine.steps(), engine.parameters()?))
    });
    let (before, after) =
        (before.unwrap_or_else(|error| panic!("{error}")), after.unwrap_or_else(|error| panic!("{error}")));
    assert!(before[0].0.as_ref().is_some_and(|scaler| scaler.state().skipped > 0 && scaler.scale() < 32_768.0));
    assert!(after.iter().all(|after| *after == before[0]));
}

/// What was saved in full precision goes on in 16 bits, with a scale of its own; so does what was saved in another type.
#[test]
fn a_loss_scale_begins_anew_in_another_type() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    for from in [layout(1, 1, 1, 1), layout(1, 1, 1, 1).half(Bf16)] {
        let saved = folder.path().join("checkpoint");
        let ran = epl::launch(&from.config(), |epl| engine(&epl)?.save(&saved));
        ran.unwrap_or_else(|error| panic!("{error}"));
        let scale = epl::launch(&layout(2, 1, 1, 1).half(F16).config(), |epl| {
            let mut engine = engine(&epl)?;
            engine.load(&saved)?;
            Ok(engine.loss_scaler().map(|scaler| scaler.scale()))
        });
        assert_eq!(scale.unwrap_or_else(|error| panic!("{error}")), [Some(32_768.0); 2]);
    }
}

/// The loss without gradients, and the whole model, are those of one rank that shards nothing.
#[test]
fn an_evaluation_sees_the_whole_model() {
    let evaluated = |layout: Layout| {
        let ran = epl::launch(&layout.config(), |epl| {
            let mut engine = engine(&epl)?;
            engine.step(micro_batches(&epl, &moe(), 0, layout.accumulation), RATE)?;
            let batches = micro_batches(&epl, &moe(), 1, layout.accumulation);
            let report = engine.evaluate(batches.into_iter().map(Ok))?;
            let whole = engine.inference()?;
            let params = burn::module::Module::num_params(&whole);
            Ok((report.loss, params))
        });
        ran.unwrap_or_else(|error| panic!("{layout:?}: {error}")).swap_remove(0)
    };
    let (expected, params) = evaluated(layout(1, 1, 1, 1));
    for layout in layouts().into_iter().filter(|layout| layout.half.is_none()) {
        let (loss, held) = evaluated(layout);
        assert!((loss - expected).abs() <= 1e-5 * expected, "{layout:?}: {loss} instead of {expected}");
        assert!(held == params || layout.tensor > 1, "{layout:?}: {held} parameters instead of {params}");
    }
}

/// A step in two halves is a step; what is accumulated and dropped leaves nothing behind.
#[test]
fn a_step_may_be_made_in_two_halves() {
    for layout in layouts() {
        let ran = epl::launch(&layout.config(), |epl| {
            let batches = |step| micro_batches(&epl, &moe(), step, layout.accumulation);
            let (mut whole, mut halves) = (engine(&epl)?, engine(&epl)?);
            let report = whole.step(batches(0), RATE)?;
            let dropped = halves.accumulate(batches(1))?;
            let accumulated = halves.accumulate(batches(0))?;
            assert_eq!((accumulated.report().loss, accumulated.report().grad_norm), (report.loss, report.grad_norm));
            if layout.tiers[1] != Device {
                let error = halves.apply(dropped, RATE).expect_err("there is room for one").to_string();
                assert!(error.contains("room for one step's"), "{error}");
            }
            assert_eq!(halves.apply(accumulated, RATE)?, report);
            assert_eq!(whole.parameters()?, halves.parameters()?);
            let (_, gradients) = halves.gradients(batches(1))?;
            let same = |(name, data): (&String, &TensorData)| {
                gradients.get(name).is_some_and(|found| found.shape() == data.shape())
            };
            assert!(whole.parameters()?.iter().all(same), "one gradient a parameter, whole");
            Ok(())
        });
        ran.unwrap_or_else(|error| panic!("{layout:?}: {error}"));
    }
}
