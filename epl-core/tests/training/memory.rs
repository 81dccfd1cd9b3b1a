//! Memory is flat: ten thousand steps leave as much as a thousand.

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use epl_core::data::{ShuffledSampler, TrainData};
use epl_core::testing::run;
use epl_core::trainer::learning_rate::{Decay, LrSchedule};
use epl_core::trainer::{Hook, Run, StepRecord};
use epl_core::{Engine, EngineSettings, Loss, LossWeights, Model, Result, Trainer, TrainerConfig};

use crate::ALLOCATOR;

/// A leak of eight bytes a step, the size of a pointer, would leave 72,000 bytes over 9,000 steps. What may differ without
/// a leak is what threads hold in their step, how many batches lie ready, and garbage that was not swept yet: some 16,000
/// bytes on a busy machine, which do not grow with the steps.
const ALLOWED: i64 = 32 << 10;

#[derive(Module, Debug)]
struct Net {
    up: Linear,
    down: Linear,
}

impl Model for Net {
    type Batch = Tensor<2>;
    type Carry = ();

    fn segments(&self) -> usize {
        1
    }

    fn weights(&self, batch: &Tensor<2>) -> LossWeights {
        LossWeights::new().with("error", batch.dims()[0] as f64)
    }

    fn forward_segment(&self, _: usize, _: Option<()>, _: &Self::Batch) {}

    fn loss(&self, (): (), batch: &Tensor<2>) -> Loss {
        let error = self.down.forward(self.up.forward(batch.clone()).tanh()) - batch.clone();
        Loss::new().with("error", error.powi_scalar(2).sum(), 1.0)
    }
}

#[derive(Clone)]
struct Rows;

impl Batcher<[f32; 3], Tensor<2>> for Rows {
    fn batch(&self, rows: Vec<[f32; 3]>, device: &Device) -> Tensor<2> {
        let count = rows.len();
        Tensor::<1>::from_floats(rows.concat().as_slice(), device).reshape([count, 3])
    }
}

/// Reads the live bytes after the twenty steps that end with the thousandth, and with the ten thousandth.
struct Readings<'a>(&'a mut Vec<(u64, i64)>);

impl<M: Model> Hook<M> for Readings<'_> {
    fn after_step(&mut self, _run: &mut Run<M>, record: &StepRecord) -> Result<()> {
        if matches!(record.step, 981..=1000 | 9981..=10_000) {
            self.0.push((record.step, ALLOCATOR.live()));
        }
        Ok(())
    }
}

#[test]
fn ten_thousand_steps_leave_as_much_as_a_thousand() {
    epl_testing::alone(|| {
        let folder = tempfile::tempdir().unwrap();
        let items: Vec<[f32; 3]> = (0..10).map(|n| [n as f32 / 10.0, 0.5, 1.0]).collect();
        let readings = run((2, 1, 1), |epl| {
            let built = epl.build(|place| Net {
                up: LinearConfig::new(3, 4).init(place),
                down: LinearConfig::new(4, 3).init(place),
            })?;
            let settings = EngineSettings { clip_norm: Some(1.0), ..Default::default() };
            let engine = Engine::new(built, &AdamWConfig::new(), settings)?;
            let data = TrainData::new(InMemDataset::new(items.clone()), Rows, ShuffledSampler::new(10, 4, 1)?)?;
            let config = TrainerConfig::new(10_000)
                .with_micro_batches(2)
                .with_check_replicas_every(Some(50))
                .with_save_every(Some(60))
                // A checkpoint that is still being written is memory that some readings would have.
                .with_async_save(false)
                .with_out(Some(folder.path().into()));
            let mut readings = Vec::with_capacity(40);
            let schedule = LrSchedule::new(0.01, Decay::Constant);
            Trainer::new(engine, config, schedule).quiet().with_hook(Readings(&mut readings)).fit(&data)?;
            Ok(readings)
        });
        // The other rank and the loaders are somewhere in their step and hold what they work on: what is left when they
        // hold least is what stays.
        let least = |steps: std::ops::RangeInclusive<u64>| {
            readings[0].iter().filter(|(step, _)| steps.contains(step)).map(|(_, live)| *live).min().unwrap()
        };
        let (early, late) = (least(981..=1000), least(9981..=10_000));
        assert!((late - early).abs() <= ALLOWED, "{early} bytes after 1,000 steps, {late} after 10,000: {readings:?}");
    });
}
