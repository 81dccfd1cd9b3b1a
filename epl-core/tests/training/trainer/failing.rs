//! A run that fails on one rank ends on all, with the cause.

use burn::data::{dataloader::batcher::Batcher, dataset::Dataset};
use burn::tensor::Device;
use epl_core::data::{Sampler, ShuffledSampler, TrainData, ValidData};
use epl_core::trainer::learning_rate::{Decay, LrSchedule};
use epl_core::{Trainer, TrainerConfig, launch, testing};

use crate::trainer::net::{Numbers, Pairs, Points, SAMPLES, data, message, trainer};

#[test]
fn a_sample_that_one_rank_cannot_read_ends_the_run_everywhere() {
    let sampler = ShuffledSampler::new(SAMPLES, 4, 9).unwrap();
    let broken = sampler.batch(8).unwrap().indices[3];
    let failed = launch(&testing::config(2, 1, 1), |epl| {
        let dataset = Numbers { samples: SAMPLES, broken: Some(broken) };
        let sampler = ShuffledSampler::new(SAMPLES, 4, 9)?;
        let trainer = trainer(&epl, TrainerConfig::new(9))?;
        trainer.fit(&TrainData::new(dataset, Pairs, sampler)?).map(|_| ())
    });
    let text = message(failed);
    assert!(text.contains("rank 1") && text.contains("unreadable"), "{text}");
}

/// A batcher that panics at one sample.
struct Picky(f64);

impl Batcher<[f64; 3], Points> for Picky {
    fn batch(&self, items: Vec<[f64; 3]>, device: &Device) -> Points {
        assert!(items.iter().all(|item| item[0] != self.0), "a bad image file");
        Pairs.batch(items, device)
    }
}

#[test]
fn a_batcher_that_panics_tells_of_which_samples() {
    let sampler = ShuffledSampler::new(SAMPLES, 4, 9).unwrap();
    let indices = sampler.batch(0).unwrap().indices;
    let bad = Numbers { samples: SAMPLES, broken: None }.get(indices[3]).unwrap()[0];
    let failed = launch(&testing::config(2, 1, 1), |epl| {
        let dataset = Numbers { samples: SAMPLES, broken: None };
        let sampler = ShuffledSampler::new(SAMPLES, 4, 9)?;
        trainer(&epl, TrainerConfig::new(9))?.fit(&TrainData::new(dataset, Picky(bad), sampler)?).map(|_| ())
    });
    let (text, second_half) = (message(failed), &indices[2..]);
    assert!(
        text.contains(&format!("rank 1: the batcher failed on the samples with indices {second_half:?}")),
        "{text}"
    );
    assert!(text.contains("a bad image file"), "{text}");
}

#[test]
fn a_validation_sample_that_one_rank_cannot_read_ends_the_run_everywhere() {
    let failed = launch(&testing::config(2, 1, 1), |epl| {
        let valid = ValidData::new(Numbers { samples: SAMPLES, broken: Some(14) }, Pairs, 4)?;
        trainer(&epl, TrainerConfig::new(2))?.with_valid(valid).fit(&data()).map(|_| ())
    });
    let text = message(failed);
    assert!(text.contains("rank 1") && text.contains("unreadable"), "{text}");
}

#[test]
fn an_engine_that_has_made_steps_is_refused() {
    let failed = launch(&testing::config(1, 1, 1), |epl| {
        let engine = trainer(&epl, TrainerConfig::new(1))?.fit(&data())?.engine;
        let schedule = LrSchedule::new(0.05, Decay::Constant);
        Trainer::new(engine, TrainerConfig::new(2), schedule).quiet().fit(&data()).map(|_| ())
    });
    assert!(message(failed).contains("already made 1 steps"));
}
