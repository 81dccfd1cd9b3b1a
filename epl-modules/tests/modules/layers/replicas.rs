//! A model with batch norms through the engine: the same on any number of replicas.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor, TensorData, activation};
use epl_comm::shard_range;
use epl_core::config::HalfDtype;
use epl_core::{Engine, EngineSettings, Epl, Loss, LossWeights, MicroBatch, Model, Place, StepReport, launch, testing};
use epl_modules::*;

use super::assert_close;
use epl_testing::numbers;

const CHANNELS: usize = 3;
const WIDTH: usize = 4;

/// A norm, and after it two branches of the same depth, each with one: their backward collectives have an order too.
#[derive(Module, Debug)]
pub(crate) struct Net {
    first: ReplicatedLinear,
    entry: SyncBatchNorm,
    branch: ReplicatedLinear,
    left: SyncBatchNorm,
    right: SyncBatchNorm,
}

impl Net {
    fn new(place: &Place, statistics: BatchStatistics) -> Self {
        let linear = ReplicatedLinearConfig::new(WIDTH, WIDTH);
        let norm = SyncBatchNormConfig::new(CHANNELS).with_statistics(statistics);
        Self {
            first: linear.init(place),
            entry: norm.init(place),
            branch: linear.init(place),
            left: norm.init(place),
            right: norm.init(place),
        }
    }
}

impl Model for Net {
    type Batch = Tensor<3>;
    type Carry = ();

    fn segments(&self) -> usize {
        1
    }

    fn weights(&self, batch: &Tensor<3>) -> LossWeights {
        LossWeights::new().with("squares", batch.dims()[0] as f64)
    }

    fn forward_segment(&self, _: usize, _: Option<()>, _: &Self::Batch) {}

    fn loss(&self, (): (), batch: &Tensor<3>) -> Loss {
        let x = activation::tanh(self.entry.forward(self.first.forward(batch.clone())));
        let (left, right) = (self.branch.forward(x.clone()), activation::tanh(x));
        let y = activation::tanh(self.left.forward(left)) + self.right.forward(right);
        Loss::new().with("squares", (y.cast(batch.dtype()) - batch.clone()).powi_scalar(2).sum(), 1.0)
    }
}

fn batch(rows: std::ops::Range<usize>, device: &Device) -> Tensor<3> {
    let each = CHANNELS * WIDTH;
    let values = numbers(3, 40 * each)[rows.start * each..rows.end * each].to_vec();
    Tensor::from_data(TensorData::new(values, [rows.len(), CHANNELS, WIDTH]), device)
}

/// The micro-batches are the same whatever the number of replicas; each is cut over these.
fn micro_batches(epl: &Epl, samples: usize, count: usize) -> Vec<MicroBatch<Tensor<3>>> {
    let (data, device) = (epl.context().data(), epl.place().device());
    let cut = |number: usize| {
        let all = shard_range(samples, count, number);
        let mine = shard_range(all.len(), data.size(), data.rank());
        let mine = all.start + mine.start..all.start + mine.end;
        match mine.is_empty() {
            true => MicroBatch::stand_in(batch(30..32, device), [0, 0]),
            false => MicroBatch::new(batch(mine.clone(), device), mine.map(|s| s as u64).collect::<Vec<_>>()),
        }
    };
    (0..count).map(cut).collect()
}

/// Gradients, and loss, norm and parameters after three steps.
fn trained(data: usize, samples: usize, count: usize) -> (Vec<StepReport>, BTreeMap<String, TensorData>) {
    let found = testing::run((data, 1, 1), |epl| {
        let built = epl.build(|place| Net::new(place, BatchStatistics::Global))?;
        let mut engine = Engine::new(built, &AdamWConfig::new().with_epsilon(1e-4), EngineSettings::default())?;
        let (report, gradients) = engine.gradients(micro_batches(&epl, samples, count))?;
        let mut tensors: BTreeMap<_, _> = gradients.into_iter().map(|(name, g)| (format!("∂ {name}"), g)).collect();
        let mut reports = vec![report];
        for _ in 0..3 {
            reports.push(engine.step(micro_batches(&epl, samples, count), 0.02)?);
        }
        engine.check_replicas()?;
        tensors.extend(engine.parameters()?);
        let evaluated = engine.evaluate([Ok(MicroBatch::new(batch(0..2, epl.place().device()), [0, 1]))])?;
        tensors.insert("evaluated".into(), TensorData::new(vec![evaluated.loss], [1]));
        Ok((reports, tensors))
    });
    assert!(found.iter().all(|other| *other == found[0]), "ranks differ");
    found.into_iter().next().expect("there is a first rank")
}

/// Ragged rows, replicas without a row, micro-batches, and micro-batches of which no replica has a row.
pub(crate) fn engine(limit: f64) {
    for (samples, count, real) in [(13, 1, 1), (3, 1, 1), (13, 2, 2), (3, 5, 3), (1, 1, 1)] {
        let (reports, tensors) = trained(1, samples, real);
        assert!(tensors["entry.running_mean"].iter::<f64>().any(|x| x != 0.0));
        for data in [2, 3, 4] {
            let what = format!("{samples} samples, {count} micro-batches, data {data}");
            let found = trained(data, samples, count);
            assert_close(&what, &found.1, &tensors, limit);
            for (a, b) in found.0.iter().zip(&reports) {
                for (a, b) in [(a.loss, b.loss), (a.grad_norm, b.grad_norm)] {
                    assert!(((a - b) / b).abs() <= limit, "{what}: {a} instead of {b}");
                }
            }
        }
    }
}

/// Running statistics are in the plan and in a record, and are not trained.
pub(crate) fn running_statistics() {
    for statistics in [BatchStatistics::Global, BatchStatistics::PerReplica] {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("running-{statistics:?}"));
        testing::run((2, 1, 1), |epl| {
            let engine = || -> epl_core::Result<_> {
                let built = epl.build(|place| Net::new(place, statistics))?;
                Engine::new(built, &AdamWConfig::new().with_weight_decay(0.5), EngineSettings::default())
            };
            let mut first = engine()?;
            let record = first.plan().record("left.running_var").expect("it is in the plan");
            assert!(!record.trainable && record.cuts.is_empty());
            assert!(first.plan().record("left.gamma").expect("it is in the plan").trainable);
            let bucketed: usize = first.plan().params.buckets.iter().map(|bucket| bucket.members.len()).sum();
            let trainable = first.plan().records().iter().filter(|record| record.trainable).count();
            assert_eq!(bucketed, trainable);

            let (report, gradients) = first.gradients(micro_batches(&epl, 5, 1))?;
            assert!(gradients.keys().all(|name| !name.contains("running")), "{:?}", gradients.keys());
            let squared: f64 = gradients.values().flat_map(|g| g.iter::<f64>()).map(|g| g * g).sum();
            assert!((report.grad_norm - squared.sqrt()).abs() < 1e-5 * report.grad_norm);

            first.step(micro_batches(&epl, 5, 1), 0.1)?;
            first.check_replicas()?;
            first.save(&folder)?;
            let saved = first.parameters()?;
            let mut second = engine()?;
            second.load(&folder)?;
            assert!(second.parameters()? == saved, "what is loaded is what was saved");
            assert!(saved["left.running_var"].iter::<f64>().all(|x| x != 1.0), "it was updated");
            // Both go on in the same way; a rate of zero moves the running statistics alone.
            for engine in [&mut first, &mut second] {
                engine.step(micro_batches(&epl, 4, 1), 0.0)?;
            }
            let (a, b) = (first.parameters()?, second.parameters()?);
            assert!(a == b, "the loaded one goes on");
            for (name, value) in &a {
                assert_eq!(name.contains("running"), *value != saved[name], "{name}");
            }
            Ok(())
        });
        std::fs::remove_dir_all(&folder).expect("the folder is ours");
    }
}

/// Steps in f16, of which one has a number on one rank that f16 has not: it is skipped, moves no statistics, and the run
/// goes on.
pub(crate) fn an_overflow() {
    for (statistics, data) in
        [(BatchStatistics::Global, 1), (BatchStatistics::Global, 3), (BatchStatistics::PerReplica, 3)]
    {
        for bad in 0..data {
            let what = format!("{statistics:?}, replica {bad} of {data}");
            let config = testing::in_half(testing::config(data, 1, 1), HalfDtype::F16);
            let ran = launch(&config, |epl| {
                let mut engine = Engine::build(&epl, |place| Net::new(place, statistics), &AdamWConfig::new())?;
                let rank = epl.context().data().rank();
                let step = |engine: &mut Engine<_>, factor: f64| {
                    let rows = batch(4 * rank..4 * rank + 4, epl.place().device()) * factor;
                    let samples: Vec<u64> = (4 * rank as u64..4 * rank as u64 + 4).collect();
                    engine.step(vec![MicroBatch::new(rows, samples)], 0.02)
                };
                // Until the scale is one that these gradients fit in.
                while step(&mut engine, 1.0)?.skipped {}
                let (before, scale) = (engine.parameters()?, engine.loss_scaler().map(|scaler| scaler.scale()));
                assert!(step(&mut engine, if rank == bad { 1e6 } else { 1.0 })?.skipped, "{what}");
                assert!(engine.parameters()? == before, "{what}: a skipped step updates nothing");
                assert_eq!(engine.loss_scaler().map(|scaler| 2.0 * scaler.scale()), scale, "{what}");
                for number in 0..3 {
                    assert!(!step(&mut engine, 1.0)?.skipped, "{what}: step {number} after it");
                }
                let parameters = engine.parameters()?;
                assert!(parameters.values().all(|values| values.iter::<f64>().all(f64::is_finite)), "{what}");
                engine.check_replicas()?;
                let rows = MicroBatch::new(batch(0..2, epl.place().device()), [0, 1]);
                assert!(engine.evaluate([Ok(rows)])?.loss.is_finite(), "{what}");
                Ok(())
            });
            ran.unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }
}

/// A step that fails on its batch, and is caught, leaves the statistics and the next step as they are.
pub(crate) fn a_batch_that_fails() {
    for statistics in [BatchStatistics::Global, BatchStatistics::PerReplica] {
        let found = testing::run((2, 1, 1), |epl| {
            let trained = |fails: bool| -> epl_core::Result<_> {
                let built = epl.build(|place| Net::new(place, statistics))?;
                let mut engine = Engine::new(built, &AdamWConfig::new(), EngineSettings::default())?;
                engine.step(micro_batches(&epl, 5, 1), 0.02)?;
                if fails {
                    let before = engine.parameters()?;
                    let broken = |m: MicroBatch<Tensor<3>>| MicroBatch { batch: m.batch.full_like(f32::NAN), ..m };
                    let failed = engine.step(micro_batches(&epl, 5, 1).into_iter().map(broken).collect(), 0.02);
                    assert!(failed.is_err_and(|error| error.to_string().contains("NaN")));
                    assert!(engine.parameters()? == before, "{statistics:?}");
                    // Refused once the micro-batch before it has moved the statistics.
                    let refused = Tensor::ones([2, CHANNELS + 1, WIDTH], epl.place().device());
                    let mut batches = micro_batches(&epl, 5, 1);
                    batches.push(MicroBatch::new(refused, [7, 8]));
                    let failed = engine.step(batches, 0.02);
                    assert!(failed.is_err_and(|error| error.to_string().contains("got an input of [2, 4, 4]")));
                    assert!(engine.parameters()? == before, "{statistics:?}");
                }
                let report = engine.step(micro_batches(&epl, 4, 1), 0.02)?;
                Ok((report, engine.parameters()?))
            };
            Ok((trained(false)?, trained(true)?))
        });
        assert!(found.iter().all(|(without, with)| without == with), "{statistics:?}");
    }
}
