//! A mean loss over something else than rows is the mean of the whole batch, however the batch is divided.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Int, Tensor, TensorData};
use epl_core::testing::{config, largest_error};
use epl_core::{Chain, Engine, Epl, MicroBatch, Model, Place, WithLoss, launch};

const PAD: usize = 0;
const CLASSES: usize = 4;
/// In each micro-batch of the layouts below at least one counts, and not in all of them as many.
const TARGETS: [i64; 12] = [0, 1, 2, 3, 0, 2, 1, 0, 0, 3, 3, 0];
const CLASS_WEIGHTS: [f32; CLASSES] = [1.0, 0.5, 2.0, 4.0];

type Batch = (Tensor<2>, Tensor<1, Int>);

fn loss(outputs: Tensor<2>, targets: &Tensor<1, Int>) -> Tensor<1> {
    let config = CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![PAD]));
    let config = config.with_weights(Some(CLASS_WEIGHTS.to_vec()));
    config.init(&outputs.device()).forward(outputs, targets.clone())
}

/// The weights of the classes of targets that are no padding.
fn weight((_, targets): &Batch) -> f64 {
    let targets = targets.to_data();
    let counted = targets.iter::<i64>().filter(|target| *target != PAD as i64);
    counted.map(|target| f64::from(CLASS_WEIGHTS[target as usize])).sum()
}

fn layer(at: &Place) -> Linear {
    LinearConfig::new(3, CLASSES).init(at)
}

fn batch(epl: &Epl) -> Batch {
    let device = epl.place().device();
    let values: Vec<f32> = (0..36).map(|value| (value * 7 % 19) as f32 / 9.0 - 1.0).collect();
    (Tensor::from_data(TensorData::new(values, [12, 3]), device), Tensor::from_data(TARGETS, device))
}

/// Losses and parameters of some steps of a model that is divided so.
fn trained<M>(
    (data, stages): (usize, usize),
    micro_batches: usize,
    model: impl Fn(&Place) -> M + Sync,
) -> (Vec<f64>, Vec<TensorData>)
where
    M: Model<Batch = Batch> + 'static,
{
    let config = config(data, 1, stages).with("pipeline.num_micro_batch", micro_batches).unwrap();
    let ranks = launch(&config, |epl| {
        let mut engine = Engine::build(&epl, &model, &SgdConfig::new())?;
        let mut losses = Vec::new();
        for _ in 0..3 {
            let report = engine.train_batch(&batch(&epl), 0.5)?;
            losses.extend([report.loss, report.grad_norm]);
        }
        let (device, own) = (epl.place().device().clone().without_autodiff(), epl.context().data().rank());
        let rows = epl_comm::shard_range(12, data, own);
        let (inputs, targets) = batch(&epl);
        let part = (inputs.inner().slice([rows.clone()]), targets.slice([rows.clone()]).to_device(&device));
        let samples: Vec<u64> = rows.map(|row| row as u64).collect();
        losses.push(engine.evaluate([Ok(MicroBatch::new(part, samples))])?.loss);
        Ok((losses, engine.parameters()?.into_values().collect()))
    });
    let mut ranks = ranks.unwrap();
    assert!(ranks.iter().all(|rank| *rank == ranks[0]), "ranks differ");
    ranks.swap_remove(0)
}

fn apart(found: &(Vec<f64>, Vec<TensorData>), expected: &(Vec<f64>, Vec<TensorData>)) -> f64 {
    let losses = found.0.iter().zip(&expected.0).map(|(a, b)| (a - b).abs() / b.abs());
    let named = |values: &[TensorData]| values.iter().cloned().enumerate().map(|(n, v)| (n.to_string(), v)).collect();
    let largest = largest_error(&named(&found.1), &named(&expected.1)).1;
    // A loss that is no number is infinitely far off.
    losses.fold(largest, |a, b| if b.is_nan() { f64::INFINITY } else { a.max(b) })
}

#[test]
fn a_mean_over_weighted_targets_that_are_no_padding_is_that_of_the_whole_batch() {
    let net = |at: &Place| {
        let mean = |layer: &Linear, (inputs, targets): &Batch| loss(layer.forward(inputs.clone()), targets);
        WithLoss::new(layer(at), mean).weighted_by(weight)
    };
    let expected = trained((1, 1), 1, net);
    for (data, micro_batches) in [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2)] {
        for found in [trained((data, 1), micro_batches, net), trained((data, 1), micro_batches, chain)] {
            let error = apart(&found, &expected);
            assert!(error < 1e-6, "{data} × {micro_batches}: off by {error:e}");
        }
    }
    let error = apart(&trained((2, 2), 2, chain), &expected);
    assert!(error < 1e-6, "two stages: off by {error:e}");
    // By rows it would be another one.
    let by_rows = |at: &Place| {
        let mean = |layer: &Linear, (inputs, targets): &Batch| loss(layer.forward(inputs.clone()), targets);
        WithLoss::new(layer(at), mean)
    };
    assert!(apart(&trained((2, 1), 2, by_rows), &expected) > 1e-2);
}

/// A chain of two segments, of which the second is without parameters.
fn chain(at: &Place) -> Chain<Linear, Batch, Tensor<2>> {
    Chain::of(layer(at))
        .first(&["weight", "bias"], |layer: &Linear, (inputs, _): &Batch| layer.forward(inputs.clone()))
        .then(&[], |_, outputs: Tensor<2>, _| outputs)
        .mean_loss(|_, outputs, (_, targets)| loss(outputs, targets))
        .weighted_by(weight)
}

/// The third of six micro-batches has padding alone, which one replica of two runs.
#[test]
fn a_micro_batch_that_weighs_nothing_or_no_number_is_refused_on_all_replicas() {
    let weights: [(fn(&Batch) -> f64, &str); 3] = [
        (
            |(_, targets)| targets.clone().slice([0..1]).into_scalar::<i64>() as f64,
            "a mean over 0 of what `weighted_by`",
        ),
        (|_| -1.0, "weighs -1 in a micro-batch of 2 rows"),
        (|_| f64::NAN, "weighs NaN in a micro-batch of 2 rows"),
    ];
    for (weight, text) in weights {
        let config = config(2, 1, 1).with("pipeline.num_micro_batch", 3).unwrap();
        let told = launch(&config, |epl| {
            let model = |at: &Place| chain(at).weighted_by(weight);
            let mut engine = Engine::build(&epl, model, &SgdConfig::new())?;
            let before = engine.parameters()?;
            let (inputs, targets) = batch(&epl);
            let targets = (targets.clone() + 1).slice_assign([4..5], targets.slice([0..1]));
            let error = engine.train_batch(&(inputs, targets), 0.5).unwrap_err().to_string();
            assert_eq!(engine.parameters()?, before);
            Ok(error)
        });
        let told = told.unwrap();
        assert!(told[0].contains(text), "{}", told[0]);
        assert!(told[1].contains(text) || told[1].contains("another replica"), "{}", told[1]);
    }
}
