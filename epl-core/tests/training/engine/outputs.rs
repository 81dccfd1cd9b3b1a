//! Outputs of a model are those of one rank and one micro-batch, however the samples are divided.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use epl_comm::shard_range;
use epl_core::data::BatchShard;
use epl_core::model::output::{Combine, Merge};
use epl_core::testing::{relative_error, run};
use epl_core::{Context, Engine, EngineSettings, Epl, Loss, LossWeights, MicroBatch, Model, Place, Result};

/// A model that hands out every kind of output of its batch of numbers.
#[derive(Module, Debug)]
struct Talker {
    linear: Linear,
    #[module(skip)]
    context: Context,
}

const COMBINES: [(&str, Combine); 3] = [("mean", Combine::Mean), ("sum", Combine::Sum), ("concat", Combine::Concat)];

impl Talker {
    fn new(place: &Place) -> Self {
        let context = place.context().clone();
        for (name, combine) in COMBINES {
            context.declare_output(&format!("global {name}"), Merge::Global(combine));
            context.declare_output(&format!("local {name}"), Merge::Local(combine));
        }
        context.declare_output("words", Merge::Global(Combine::Concat));
        Self { linear: LinearConfig::new(1, 1).init(place), context }
    }
}

/// What is handed out of these rows: a table of a mean and of a sum, and two numbers a row.
fn tables(rows: Tensor<2>) -> [(&'static str, Tensor<2>); 3] {
    let doubled = Tensor::cat(vec![rows.clone(), rows.clone() * 2.0], 1);
    let table = Tensor::cat(vec![doubled.clone(), doubled.clone() + 1.0], 1);
    [("mean", table.clone().mean_dim(0)), ("sum", table.sum_dim(0)), ("concat", doubled)]
}

impl Model for Talker {
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
        for (name, value) in tables(batch.clone()) {
            self.context.output(&format!("global {name}"), value.clone());
            self.context.output(&format!("local {name}"), value);
        }
        // A row of number n has n / 8 words: not as many as there are samples.
        let numbers: Vec<i64> = batch.clone().inner().into_data().iter::<f64>().map(|x| (8.0 * x) as i64).collect();
        let words: Vec<i64> = numbers.iter().flat_map(|n| vec![*n; 1 + *n as usize % 3]).collect();
        self.context.output("words", Tensor::<1, Int>::from_data(words.as_slice(), &batch.device()));
        Loss::new().with("error", self.linear.forward(batch.clone()).powi_scalar(2).sum(), 1.0)
    }
}

/// Sample `number`: an eighth, so that sums are the same in any order.
fn rows(numbers: std::ops::Range<usize>, device: &Device) -> Tensor<2> {
    let values: Vec<f32> = numbers.map(|number| (number * 5 % 11) as f32 / 8.0).collect();
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count, 1]), device)
}

fn micro_batches(epl: &Epl, samples: usize, micro_batches: usize) -> Vec<MicroBatch<Tensor<2>>> {
    let share = BatchShard::of(epl.context(), micro_batches).unwrap();
    let device = Device::default().autodiff();
    let batch = |range: std::ops::Range<usize>| {
        let numbers: Vec<u64> = range.clone().map(|number| number as u64).collect();
        if range.is_empty() {
            return MicroBatch::stand_in(rows(0..1, &device), vec![0]);
        }
        MicroBatch::new(rows(range, &device), numbers)
    };
    share.rows(samples).into_iter().map(batch).collect()
}

fn engine(epl: &Epl) -> Result<Engine<Talker>> {
    Engine::new(epl.build(Talker::new)?, &SgdConfig::new(), EngineSettings::default())
}

fn close(got: &TensorData, expected: &TensorData) -> bool {
    got.dtype() == expected.dtype() && relative_error(got, expected) <= 1e-6
}

#[test]
fn every_combination_is_that_of_one_rank() {
    for samples in [7, 2] {
        let expected: BTreeMap<String, TensorData> =
            run((1, 1, 1), |epl| Ok(engine(&epl)?.step(micro_batches(&epl, samples, 1), 0.0)?.outputs)).remove(0);
        assert_eq!(expected.len(), 7);
        assert_eq!(expected["global concat"].shape().to_vec(), [samples, 2]);
        assert_eq!(expected["global sum"].shape().to_vec(), [1, 4]);
        for (data, micro, tensor) in [(1, 3, 1), (2, 1, 1), (2, 3, 1), (3, 1, 1), (3, 3, 1), (2, 3, 2)] {
            let all = run((data, tensor, 1), |epl| {
                let mut engine = engine(&epl)?;
                let outputs = engine.step(micro_batches(&epl, samples, micro), 0.0)?.outputs;
                // A second step has its own.
                assert_eq!(engine.step(micro_batches(&epl, samples, micro), 0.0)?.outputs, outputs);
                Ok((epl.context().data().rank(), outputs))
            });
            for (replica, got) in all {
                for name in ["global mean", "global sum", "global concat", "words"] {
                    assert!(close(&got[name], &expected[name]), "{samples} on {data} × {micro}: {name} {got:?}");
                }
                let mine = shard_range(samples, data, replica);
                if mine.is_empty() {
                    // A replica without a sample has nothing of its own.
                    assert!(got.keys().all(|name| !name.starts_with("local")), "{replica}: {got:?}");
                    continue;
                }
                for (name, table) in tables(rows(mine, &Device::default())) {
                    assert!(close(&got[&format!("local {name}")], &table.into_data()), "{name} of {replica}: {got:?}");
                }
            }
        }
    }
}

#[test]
fn an_evaluation_merges_over_all_its_batches_in_the_order_of_the_samples() {
    let all = run((2, 1, 1), |epl| {
        let engine = engine(&epl)?;
        let (first, device) = (epl.context().data().rank() == 0, Device::default());
        // Replica 0 has samples 0 and 1, then 3 and 4; replica 1 has sample 2, then none.
        let batches = match first {
            true => {
                vec![MicroBatch::new(rows(0..2, &device), vec![0, 1]), MicroBatch::new(rows(3..5, &device), vec![3, 4])]
            }
            false => {
                vec![MicroBatch::new(rows(2..3, &device), vec![2]), MicroBatch::stand_in(rows(0..1, &device), vec![0])]
            }
        };
        // What is handed out elsewhere is in no report.
        engine.forward(batches.clone().into_iter().map(Ok), |model, (), batch| {
            model.loss((), &batch.batch);
            Ok(())
        })?;
        Ok(engine.evaluate(batches.into_iter().map(Ok))?.outputs)
    });
    let [(_, mean), (_, sum), (_, concat)] = tables(rows(0..5, &Device::default()));
    for outputs in all {
        assert!(close(&outputs["global mean"], &mean.clone().into_data()));
        assert_eq!(outputs["global sum"], sum.clone().into_data());
        assert_eq!(outputs["global concat"], concat.clone().into_data());
    }
}
