//! Batch norm over replicas against the formula in tensor operations, and against Burn's own.

use std::ops::Range;

use burn::module::{Module, Param};
use burn::nn::BatchNormConfig;
use burn::tensor::{Device, Tensor, TensorData};
use epl_comm::ReduceOp;
use epl_core::{Epl, Pass, testing};
use epl_modules::*;

use super::run::host;
use super::{Outcome, assert_close};
use epl_testing::tensor;

const CHANNELS: usize = 3;
const EPSILON: f64 = 1e-3;
const MOMENTUM: f64 = 0.3;

/// Rows a replica has in each of two passes; one without rows runs a stand-in. In some passes nobody has any.
///
/// Two values of a channel leave a gradient that rounding in f32 swallows, so some replica always has more.
const ROWS: [&[[usize; 2]]; 8] = [
    &[[6, 5]],
    &[[5, 2], [1, 4]],
    &[[4, 0], [0, 3]],
    &[[3, 0], [2, 0]],
    &[[0, 4], [0, 1]],
    &[[4, 1], [3, 2], [1, 5]],
    &[[2, 3], [0, 0], [3, 1]],
    &[[3, 1], [0, 0], [0, 3], [4, 1]],
];

fn config(statistics: BatchStatistics) -> SyncBatchNormConfig {
    SyncBatchNormConfig::new(CHANNELS).with_epsilon(EPSILON).with_momentum(MOMENTUM).with_statistics(statistics)
}

/// `[CHANNELS]` numbers around one, tracked.
fn parameter(seed: usize, device: &Device) -> Tensor<1> {
    (tensor(seed, [CHANNELS], device) + 1.0).detach().require_grad()
}

/// Rows `range` of the images of one pass, which grow from row to row and from channel to channel.
fn images<const D: usize>(pass: usize, range: Range<usize>, inner: [usize; D], device: &Device) -> Tensor<D> {
    let mut shape = inner;
    shape[0] = range.len();
    let each: usize = inner[1..].iter().product();
    let numbers = epl_testing::numbers(pass, 40 * each);
    let run = each / CHANNELS;
    let value = |i: usize| numbers[i] * (1.0 + (i / each) as f64) + (i / run % CHANNELS) as f64;
    let values: Vec<f64> = (range.start * each..range.end * each).map(value).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// What every replica has of the rows of a pass.
fn ranges(rows: &[[usize; 2]], pass: usize) -> Vec<Range<usize>> {
    let starts = rows.iter().scan(0, |end, rows| {
        *end += rows[pass];
        Some(*end - rows[pass])
    });
    starts.zip(rows).map(|(start, rows)| start..start + rows[pass]).collect()
}

/// What one replica made of its rows: output and gradient.
type Part = (TensorData, TensorData);

/// Two passes and an evaluation on as many replicas as there are `rows`.
fn replicas<const D: usize>(rows: &[[usize; 2]], inner: [usize; D], statistics: BatchStatistics) -> Outcome {
    let found = testing::run((rows.len(), 1, 1), |epl| {
        let (group, device) = (epl.context().data().clone(), epl.place().device().clone());
        let mut layer = config(statistics).init(epl.place());
        let (gamma, beta) = (parameter(1, &device), parameter(2, &device));
        layer.gamma = Param::from_tensor(gamma.clone());
        layer.beta = Param::from_tensor(beta.clone());
        let (mut values, mut parts) = (Outcome::new(), Vec::new());
        for pass in 0..2 {
            let mine = ranges(rows, pass)[group.rank()].clone();
            let empty = mine.is_empty();
            let stand_in = if empty { 0..2 } else { mine.clone() };
            epl.context().begin(Pass { step: 0, training: true, samples: [].into(), empty });
            // A stand-in is made of numbers that nobody else has.
            let x = images(if empty { 9 } else { pass }, stand_in.clone(), inner, &device).require_grad();
            let weight = if empty { 0.0 } else { 1.0 };
            let y = layer.forward(x.clone());
            let probe = images(5 + pass, stand_in, inner, &device) * weight;
            let grads = (y.clone() * probe).sum().backward();
            let gradient = x.grad(&grads).expect("x is tracked");
            if !empty {
                parts.push((host(y.inner()), host(gradient)));
            }
            for (name, parameter) in [("gamma", &gamma), ("beta", &beta)] {
                let gradient = parameter.grad(&grads).expect("parameters are tracked");
                let sum = group.all_reduce(gradient, ReduceOp::Sum).expect("no peer fails");
                values.insert(format!("{name} {pass}"), host(sum));
            }
            values.insert(format!("running mean {pass}"), host(layer.running_mean.value()));
            values.insert(format!("running var {pass}"), host(layer.running_var.value()));
        }
        values.insert("evaluated".into(), evaluated(&epl, &layer, inner));
        Ok((values, parts))
    });
    for (values, _) in &found {
        assert!(*values == found[0].0, "replicas differ");
    }
    let parts: Vec<&[Part]> = found.iter().map(|(_, parts)| parts.as_slice()).collect();
    let mut whole = found[0].0.clone();
    whole.extend(joined(&parts, rows));
    whole
}

fn evaluated<const D: usize>(epl: &Epl, layer: &SyncBatchNorm, inner: [usize; D]) -> TensorData {
    epl.context().begin(Pass { step: 0, training: false, samples: [].into(), empty: false });
    let plain = epl.place().device().clone().without_autodiff();
    // A collective would have failed: the replicas have different numbers of rows.
    let rows = 2 + epl.context().data().rank();
    host(layer.valid().forward(images(7, 0..rows, inner, &plain)).slice([0..2]))
}

/// Outputs and gradients of all replicas behind each other, by pass.
fn joined(parts: &[&[Part]], rows: &[[usize; 2]]) -> Outcome {
    let mut outcome = Outcome::new();
    for pass in 0..2 {
        let mut all = [Vec::new(), Vec::new()];
        for (parts, rows) in parts.iter().zip(rows).filter(|(_, rows)| rows[pass] > 0) {
            // Only passes with rows left a part.
            let part = &parts[if pass == 1 && rows[0] == 0 { 0 } else { pass }];
            all[0].extend(part.0.iter::<f64>());
            all[1].extend(part.1.iter::<f64>());
        }
        for (name, values) in ["output", "input"].into_iter().zip(all) {
            let count = values.len();
            outcome.insert(format!("{name} {pass}"), TensorData::new(values, [count]));
        }
    }
    outcome
}

/// The formula in Burn's tensor operations, on one rank.
fn formula<const D: usize>(rows: &[[usize; 2]], inner: [usize; D], statistics: BatchStatistics) -> Outcome {
    let found = testing::run((1, 1, 1), |epl| {
        let device = epl.place().device();
        let (gamma, beta) = (parameter(1, device), parameter(2, device));
        let mut running = [vec![0.0; CHANNELS], vec![1.0; CHANNELS]];
        let mut outcome = Outcome::new();
        for pass in 0..2 {
            let own = ranges(rows, pass);
            let count = own.last().map_or(0, |last| last.end);
            let cuts = match statistics {
                BatchStatistics::Global => vec![0..count],
                BatchStatistics::PerReplica => own,
            };
            let x = images(pass, 0..count, inner, device).require_grad();
            let mut outputs = Vec::new();
            let mut batch = [vec![0.0; CHANNELS], vec![0.0; CHANNELS]];
            for cut in cuts.into_iter().filter(|cut| !cut.is_empty()) {
                let share = cut.len() as f64 / count as f64;
                let (y, [mean, variance]) = normalised(x.clone().slice([cut]), &gamma, &beta);
                outputs.push(y);
                for channel in 0..CHANNELS {
                    batch[0][channel] += mean[channel] * share;
                    batch[1][channel] += variance[channel] * share;
                }
            }
            let zeros = TensorData::new(vec![0.0; CHANNELS], [CHANNELS]);
            let (mut gradients, mut of_x) = ([zeros.clone(), zeros], Vec::new());
            let mut output = Vec::new();
            if count > 0 {
                let y = Tensor::cat(outputs, 0);
                let grads = (y.clone() * images(5 + pass, 0..count, inner, device)).sum().backward();
                of_x = host(x.grad(&grads).expect("x is tracked")).iter::<f64>().collect();
                output = host(y.inner()).iter::<f64>().collect();
                gradients = [&gamma, &beta].map(|p| host(p.grad(&grads).expect("parameters are tracked")));
                for (running, batch) in running.iter_mut().zip(&batch) {
                    running.iter_mut().zip(batch).for_each(|(r, b)| *r = *r * (1.0 - MOMENTUM) + b * MOMENTUM);
                }
            }
            let [of_gamma, of_beta] = gradients;
            outcome.extend([(format!("gamma {pass}"), of_gamma), (format!("beta {pass}"), of_beta)]);
            for (name, values) in [("output", output), ("input", of_x)] {
                outcome.insert(format!("{name} {pass}"), TensorData::new(values.clone(), [values.len()]));
            }
            for (name, values) in [("running mean", &running[0]), ("running var", &running[1])] {
                outcome.insert(format!("{name} {pass}"), TensorData::new(values.clone(), [CHANNELS]));
            }
        }
        let [mean, variance] = running.map(|values| {
            let mut shape = [1; D];
            shape[1] = CHANNELS;
            Tensor::<1>::from_data(TensorData::new(values, [CHANNELS]), device).reshape(shape)
        });
        let [gamma, beta] = [gamma, beta].map(|p| p.reshape(mean.dims()));
        let y = (images(7, 0..2, inner, device) - mean) / (variance + EPSILON).sqrt() * gamma + beta;
        outcome.insert("evaluated".into(), host(y.inner()));
        Ok(outcome)
    });
    found.into_iter().next().expect("one rank")
}

/// A batch normalised by itself, with its mean and unbiased variance.
fn normalised<const D: usize>(x: Tensor<D>, gamma: &Tensor<1>, beta: &Tensor<1>) -> (Tensor<D>, [Vec<f64>; 2]) {
    let mut shape = [1; D];
    shape[1] = CHANNELS;
    let values = x.shape().num_elements() / CHANNELS;
    let mean_of = |x: Tensor<D>| (0..D).filter(|dim| *dim != 1).fold(x, |x, dim| x.mean_dim(dim));
    let mean = mean_of(x.clone());
    let variance = mean_of((x.clone() - mean.clone()).powi_scalar(2));
    let y = (x - mean.clone()) / (variance.clone() + EPSILON).sqrt() * gamma.clone().reshape(shape)
        + beta.clone().reshape(shape);
    let list = |x: Tensor<D>| host(x.inner()).iter::<f64>().collect::<Vec<_>>();
    let unbiased = values as f64 / (values as f64 - 1.0).max(1.0);
    (y, [list(mean), list(variance * unbiased)])
}

/// Inputs of two to four dims; the last ones long enough for the loops over host memory.
pub(crate) fn replicas_against_the_formula(limit: f64) {
    against_the_formula(&ROWS, limit);
}

/// Replicas of two rows: in f64 enough digits are left.
#[allow(dead_code)] // Not of the binary in f32.
pub(crate) fn few_rows_against_the_formula(limit: f64) {
    against_the_formula(&[&[[2, 2], [0, 0], [3, 1]], &[[3, 1], [0, 0], [0, 2], [4, 1]]], limit);
}

fn against_the_formula(cases: &[&[[usize; 2]]], limit: f64) {
    for statistics in [BatchStatistics::Global, BatchStatistics::PerReplica] {
        for rows in cases {
            let check = |what: String, found: Outcome, expected: Outcome| {
                assert_close(&format!("{statistics:?} {rows:?} {what}"), &found, &expected, limit);
            };
            let flat = [0, CHANNELS];
            check("flat".into(), replicas(rows, flat, statistics), formula(rows, flat, statistics));
            for inner in [[0, CHANNELS, 2, 3], [0, CHANNELS, 5, 7]] {
                check(format!("{inner:?}"), replicas(rows, inner, statistics), formula(rows, inner, statistics));
            }
        }
    }
}

/// Global statistics do not depend on the number of replicas.
pub(crate) fn replicas_against_one(limit: f64) {
    let inner = [0, CHANNELS, 4, 5];
    for rows in &ROWS[1..] {
        let total = [0, 1].map(|pass| rows.iter().map(|rows| rows[pass]).sum());
        let found = replicas(rows, inner, BatchStatistics::Global);
        let expected = replicas(&[total], inner, BatchStatistics::Global);
        assert_close(&format!("{rows:?}"), &found, &expected, limit);
    }
}

/// On one replica it is Burn's layer, which keeps the biased variance.
pub(crate) fn burns(limit: f64) {
    for inner in [[0, CHANNELS, 2, 3], [0, CHANNELS, 5, 7]] {
        testing::run((1, 1, 1), |epl| {
            let device = epl.place().device();
            let (gamma, beta) = (parameter(1, device), parameter(2, device));
            let mut theirs = BatchNormConfig::new(CHANNELS).with_epsilon(EPSILON).with_momentum(MOMENTUM).init(device);
            let mut ours = config(BatchStatistics::Global).with_unbiased(false).init(epl.place());
            theirs.gamma = Param::from_tensor(gamma.clone());
            theirs.beta = Param::from_tensor(beta.clone());
            (ours.gamma, ours.beta) = (theirs.gamma.clone(), theirs.beta.clone());
            let x = images(1, 0..6, inner, device).require_grad();
            let outcome = |pass: &str, y: Tensor<4>| {
                let grads = (y.clone() * images(2, 0..6, inner, device)).sum().backward();
                let tracked = [("gamma", gamma.grad(&grads)), ("beta", beta.grad(&grads))];
                let mut outcome = Outcome::from([
                    (format!("{pass} output"), host(y.inner())),
                    (format!("{pass} input"), host(x.grad(&grads).expect("x is tracked"))),
                ]);
                outcome.extend(tracked.map(|(name, g)| (name.to_string(), host(g.expect("tracked")))));
                outcome
            };
            for pass in 0..2 {
                let pass = format!("pass {pass}");
                epl.context().begin(Pass { step: 0, training: true, samples: [].into(), empty: false });
                let found = outcome(&pass, ours.forward(x.clone()));
                assert_close("training", &found, &outcome(&pass, theirs.forward(x.clone())), limit);
            }
            let running = |mean: Tensor<1>, variance: Tensor<1>| {
                Outcome::from([("mean".to_string(), host(mean)), ("var".to_string(), host(variance))])
            };
            let expected = running(theirs.running_mean.value_sync(), theirs.running_var.value_sync());
            let found = running(ours.running_mean.value(), ours.running_var.value());
            assert_close("running", &found, &expected, limit);

            // Frozen, both use the running statistics, with gradients.
            let (ours_frozen, theirs_frozen) = (ours.clone().freeze(), theirs.clone().freeze());
            let found = |y: Tensor<4>| Outcome::from([("frozen".to_string(), host(y.inner()))]);
            let expected = found(theirs_frozen.forward(x.clone()));
            assert_close("frozen", &found(ours_frozen.forward(x.clone())), &expected, limit);
            let plain = x.clone().inner();
            let expected = Outcome::from([("valid".to_string(), host(theirs.valid().forward(plain.clone())))]);
            let found = Outcome::from([("valid".to_string(), host(ours.valid().forward(plain)))]);
            assert_close("valid", &found, &expected, limit);
            Ok(())
        });
    }
}

/// A mean of thousands of deviations: where the variance is E[x²] − E[x]² nothing is left of it in f32.
pub(crate) fn a_large_mean() {
    // Runs of many elements and of few, and long sums of few.
    for (data, rows, inner) in [(1, 4, 4), (3, 4, 4), (1, 4, 100), (3, 4, 100), (1, 16384, 1), (1, 4096, 4)] {
        let values = |rank: usize| (0..rows * inner).map(move |i| 4096.0 + ((i * 37 + rank * 11) % 129) as f64 / 64.0);
        let all: Vec<f64> = (0..data).flat_map(values).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let variance = all.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / all.len() as f64;
        testing::run((data, 1, 1), |epl| {
            epl.context().begin(Pass { step: 0, training: true, samples: [].into(), empty: false });
            let layer = SyncBatchNormConfig::new(1).init(epl.place());
            let own: Vec<f64> = values(epl.context().data().rank()).collect();
            let x = Tensor::<3>::from_data(TensorData::new(own.clone(), [rows, 1, inner]), epl.place().device());
            let found = host(layer.forward(x).inner());
            for (found, x) in found.iter::<f64>().zip(own) {
                let expected = (x - mean) / (variance + 1e-5).sqrt();
                // The mean itself has seven digits.
                assert!((found - expected).abs() < 1e-3, "{found} instead of {expected}");
            }
            Ok(())
        });
    }
}
