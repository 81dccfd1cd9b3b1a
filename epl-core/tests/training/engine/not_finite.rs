//! A norm that is no number ends the step before anything is updated.

use burn::optim::AdamWConfig;
use epl_core::testing::run;
use epl_core::{Engine, EngineSettings, MicroBatch};

use crate::engine::chain::{Chain, micro_batches};

#[test]
fn a_bad_sample_on_one_rank_is_an_error_on_all_and_changes_nothing() {
    for bad in [f64::NAN, f64::INFINITY] {
        run((2, 1, 1), |epl| {
            let mut engine = Engine::new(epl.build(Chain::new)?, &AdamWConfig::new(), EngineSettings::default())?;
            engine.step(micro_batches(&epl, 1), 0.01)?;
            let (parameters, state) = (engine.parameters()?, engine.optimizer_state()?);
            let mut batches = micro_batches(&epl, 1);
            if epl.context().world().rank() == 1 {
                let target = &mut batches[0].batch.target;
                *target = target.clone() * bad;
            }
            let text = engine.step(batches, 0.01).unwrap_err().to_string();
            assert!(text.starts_with("the norm of the gradients is NaN at step 2 (loss "), "{text}");
            assert!(text.contains("look for such a number in the batch, or lower the learning rate"), "{text}");
            // Every rank is told where it comes from: of the 13 rows that one has the last six.
            assert!(
                text.contains("on rank 1 the loss of samples 7, 8, 9, 10, 11, 12 of those drawn is not finite"),
                "{text}"
            );
            assert!(text.contains("as backward goes, the gradient of `head.bias` is the first that is not"), "{text}");
            assert_eq!((engine.parameters()?, engine.optimizer_state()?, engine.steps()), (parameters, state, 1));
            // It was the data: the engine goes on.
            assert!(engine.step(micro_batches(&epl, 1), 0.01)?.loss.is_finite());
            Ok(())
        });
    }
}

/// Of several micro-batches, whose losses are read together, and of which the first is a stand-in.
#[test]
fn the_samples_are_those_of_the_micro_batch_that_is_bad() {
    for (bad, samples) in [(1, "samples 0, 1, 2, 3, 4, 5, 6 of"), (2, "samples 7, 8, 9, 10, 11, 12 of")] {
        run((1, 1, 1), |epl| {
            let mut engine = Engine::new(epl.build(Chain::new)?, &AdamWConfig::new(), EngineSettings::default())?;
            let mut batches = micro_batches(&epl, 2);
            batches.insert(0, MicroBatch::stand_in(batches[0].batch.clone(), [0]));
            let target = &mut batches[bad].batch.target;
            *target = target.clone() * f64::NAN;
            let text = engine.step(batches, 0.01).unwrap_err().to_string();
            assert!(text.contains(&format!("on rank 0 the loss of {samples} those drawn is not finite")), "{text}");
            Ok(())
        });
    }
}
