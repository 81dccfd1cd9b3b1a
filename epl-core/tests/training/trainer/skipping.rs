//! Steps that are skipped under mixed precision.

use std::fs;

use burn::data::dataset::{Dataset, DatasetError};
use epl_core::config::HalfDtype;
use epl_core::data::{Sampler, ShuffledSampler, TrainData};
use epl_core::testing::in_half;
use epl_core::trainer::learning_rate::Decay;
use epl_core::{Engine, EngineSettings, LrSchedule, Trainer, launch, testing};
use tempfile::tempdir;

use crate::trainer::net::{Net, Numbers, Pairs, SAMPLES, config, lines, numbers, optimizer, valid};

/// Numbers of which one is so large that its gradient is none in 16 bits.
struct OneLarge(Numbers, usize);

impl Dataset<[f64; 3]> for OneLarge {
    fn get(&self, index: usize) -> Result<[f64; 3], DatasetError> {
        if index == self.1 { Ok([1e4; 3]) } else { self.0.get(index) }
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

#[test]
fn a_run_whose_last_samples_are_skipped_is_saved_all_the_same() {
    let folder = tempdir().unwrap();
    let half = in_half(testing::config(2, 1, 1), HalfDtype::F16).with("amp.loss_scale", 1.0).unwrap();
    let fit = |resume: bool| {
        launch(&half, |epl| {
            let engine = Engine::new(epl.build(Net::new)?, &optimizer(), EngineSettings::from_config(epl.config()))?;
            let config = config(folder.path(), 100).with_resume(resume);
            let sampler = ShuffledSampler::new(SAMPLES, 5, 9)?.with_epochs(1)?;
            let last = sampler.batch(20)?.indices[1];
            let data = TrainData::new(OneLarge(numbers(), last), Pairs, sampler)?;
            let trainer =
                Trainer::new(engine, config, LrSchedule::new(0.01, Decay::Constant)).quiet().with_valid(valid());
            Ok(trainer.fit(&data)?.summary)
        })
        .unwrap()
    };
    for resume in [false, true] {
        for summary in fit(resume) {
            assert_eq!((summary.steps, summary.position, summary.stopped), (4, SAMPLES as u64, false), "{resume}");
        }
        assert_eq!(lines(folder.path()).len(), 4);
        assert_eq!(fs::read_to_string(folder.path().join("checkpoints/latest")).unwrap(), "step-4\n");
    }
}
