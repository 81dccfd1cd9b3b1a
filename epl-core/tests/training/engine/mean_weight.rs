//! A mean loss over something else than rows is the mean of the whole batch, however the batch is divided.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Int, Tensor, TensorData};
use epl_core::testing::{config, largest_error};
use epl_core::{Chain, Engine, Epl, Model, Place, WithLoss, launch};

const PAD: usize = 0;
const CLASSES: usize = 4;
/// Of every two, three or four behind each other, another number counts, and at least one.
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
fn trained<M>(data: usize, micro_batches: usize, model: impl Fn(&Place) -> M + Sync) -> (Vec<f64>, Vec<TensorData>)
where
    M: Model<Batch = Batch> + 'static,
{
    let config = config(data, 1, 1).with("pipeline.num_micro_batch", micro_batches).unwrap();
    let ranks = launch(&config, |epl| {
        let mut engine = Engine::build(&epl, &model, &SgdConfig::new())?;
        let steps = (0..3).map(|_| Ok(engine.train_batch(&batch(&epl), 0.5)?.loss));
        let losses = steps.collect::<epl_core::Result<Vec<f64>>>()?;
        Ok((losses, engine.parameters()?.into_values().collect()))
    });
    ranks.unwrap().remove(0)
}

fn apart(found: &(Vec<f64>, Vec<TensorData>), expected: &(Vec<f64>, Vec<TensorData>)) -> f64 {
    let losses = found.0.iter().zip(&expected.0).map(|(a, b)| (a - b).abs() / b.abs());
    let named = |values: &[TensorData]| values.iter().cloned().enumerate().map(|(n, v)| (n.to_string(), v)).collect();
    losses.fold(largest_error(&named(&found.1), &named(&expected.1)).1, f64::max)
}

#[test]
fn a_mean_over_weighted_targets_that_are_no_padding_is_that_of_the_whole_batch() {
    let net = |at: &Place| {
        let mean = |layer: &Linear, (inputs, targets): &Batch| loss(layer.forward(inputs.clone()), targets);
        WithLoss::new(layer(at), mean).weighted_by(weight)
    };
    let chain = |at: &Place| {
        let links = Chain::of(layer(at)).whole(|layer: &Linear, (inputs, _): &Batch| layer.forward(inputs.clone()));
        links.mean_loss(|_, outputs, (_, targets)| loss(outputs, targets)).weighted_by(weight)
    };
    let expected = trained(1, 1, net);
    for (data, micro_batches) in [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2)] {
        for found in [trained(data, micro_batches, net), trained(data, micro_batches, chain)] {
            let error = apart(&found, &expected);
            assert!(error < 1e-6, "{data} × {micro_batches}: off by {error:e}");
        }
    }
    // By rows it would be another one.
    let by_rows = |at: &Place| {
        let mean = |layer: &Linear, (inputs, targets): &Batch| loss(layer.forward(inputs.clone()), targets);
        WithLoss::new(layer(at), mean)
    };
    assert!(apart(&trained(2, 2, by_rows), &expected) > 1e-2);
}
