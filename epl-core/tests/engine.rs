//! The engine against one tape of Burn's own, on one rank and on several.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use burn::grad_clipping::GradientClippingConfig;
use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::optim::{AdafactorConfig, AdamWConfig, GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData, activation};
use epl_comm::{EventKind, Partial, Trace, copied};
use epl_core::cluster::Axis;
use epl_core::testing::{config, largest_error, relative_error, run};
use epl_core::{Engine, EngineSettings, Epl, Loss, MicroBatch, Place, Result, Segmented, StepReport, Weights};

/// Four segments: a layer, a layer divided over the tensor axis, a tied layer, a head with its loss.
#[derive(Module, Debug)]
struct Chain {
    first: Linear,
    up: Param<Tensor<2>>,
    down: Param<Tensor<2>>,
    tied: Linear,
    head: Linear,
    #[module(skip)]
    place: Place,
}

#[derive(Clone, Debug)]
struct Rows {
    input: Tensor<2>,
    target: Tensor<2>,
    valid: Vec<bool>,
}

const WIDTH: usize = 6;

impl Chain {
    fn new(place: &Place) -> Self {
        let linear = LinearConfig::new(WIDTH, WIDTH);
        Self {
            first: linear.init(place),
            up: place.split_param([WIDTH, 10], &[(Axis::Tensor, 1)], Initializer::XavierNormal { gain: 1.0 }),
            down: place.split_param([10, WIDTH], &[(Axis::Tensor, 0)], Initializer::XavierNormal { gain: 1.0 }),
            tied: linear.init(place),
            head: LinearConfig::new(WIDTH, 3).init(place),
            place: place.clone(),
        }
    }

    fn split(&self, x: Tensor<2>) -> Tensor<2> {
        let group = self.place.context().tensor();
        let hidden = activation::tanh(copied(x, group).local().matmul(self.up.val()));
        Partial::from_local(hidden.matmul(self.down.val()), group).all_reduce()
    }
}

impl Segmented for Chain {
    type Batch = Rows;
    type Carry = (Tensor<2>, Option<Tensor<2>>);

    fn segments(&self) -> usize {
        4
    }

    fn segments_of(&self, path: &str) -> Vec<usize> {
        match path.split('.').next() {
            Some("first") => vec![0],
            Some("up" | "down") => vec![1],
            Some("tied") => vec![0, 2],
            _ => vec![3],
        }
    }

    fn forward_segment(&self, index: usize, carry: Option<Self::Carry>, batch: &Rows) -> Self::Carry {
        let carry = carry.unwrap_or_else(|| (batch.input.clone(), None));
        match (index, carry) {
            (0, (x, _)) => (self.tied.forward(activation::tanh(self.first.forward(x.clone()))), Some(x)),
            // The second tensor passes the segment by unchanged.
            (1, (x, kept)) => (self.split(x), kept),
            (2, (x, kept)) => (activation::tanh(self.tied.forward(x)) + kept.unwrap(), None),
            (_, (x, _)) => (self.head.forward(x), None),
        }
    }

    fn weights(&self, batch: &Rows) -> Weights {
        Weights::new().with("error", batch.valid.iter().filter(|valid| **valid).count() as f64)
    }

    fn loss(&self, (x, _): Self::Carry, batch: &Rows) -> Loss {
        let mask: Vec<f64> = batch.valid.iter().map(|valid| f64::from(u8::from(*valid))).collect();
        let rows = mask.len();
        let mask = Tensor::<2>::from_data(TensorData::new(mask, [rows, 1]), &x.device());
        let error = (x - batch.target.clone()).powi_scalar(2) * mask;
        Loss::new().with("error", error.sum(), 0.5)
    }
}

/// The samples `range` of an endless list; every fifth does not count.
fn rows(range: std::ops::Range<usize>, device: &Device) -> Rows {
    let value = |sample: usize, column: usize| ((sample * 31 + column * 17) % 23) as f64 / 11.0 - 1.0;
    let table = |columns: usize, shift: usize| {
        let values: Vec<f64> = range.clone().flat_map(|s| (0..columns).map(move |c| value(s + shift, c))).collect();
        Tensor::from_data(TensorData::new(values, [range.len(), columns]), device)
    };
    Rows { input: table(WIDTH, 0), target: table(3, 7), valid: range.map(|sample| sample % 5 != 0).collect() }
}

/// Cuts a global batch of 13 samples over replicas and micro-batches, unevenly where they do not divide.
fn micro_batches(epl: &Epl, count: usize) -> Vec<MicroBatch<Rows>> {
    let (data, device) = (epl.context().data(), epl.place().device());
    let parts = data.size() * count;
    (0..count)
        .map(|number| {
            let range = epl_comm::shard_range(13, parts, data.rank() * count + number);
            match range.is_empty() {
                true => MicroBatch::stand_in(rows(0..1, device), [0]),
                false => MicroBatch::new(rows(range.clone(), device), range.map(|s| s as u64).collect::<Vec<_>>()),
            }
        })
        .collect()
}

type Outcome = (StepReport, BTreeMap<String, TensorData>, BTreeMap<String, TensorData>);

fn outcome(sizes: (usize, usize, usize), count: usize, clip_norm: Option<f64>) -> Outcome {
    let all = run(sizes, |epl| {
        let settings = EngineSettings { clip_norm, ..Default::default() };
        let optimizer = AdamWConfig::new().with_epsilon(1e-4);
        let mut engine = Engine::new(epl.build(Chain::new)?, &optimizer, settings)?;
        let (_, gradients) = engine.gradients(micro_batches(&epl, count))?;
        let mut report = None;
        for _ in 0..3 {
            report = Some(engine.step(micro_batches(&epl, count), 0.01)?);
        }
        Ok((report.unwrap(), gradients, engine.parameters()?))
    });
    for other in &all[1..] {
        assert_eq!(all[0].0, other.0, "the report is the same on every rank");
    }
    all.into_iter().next().unwrap()
}

fn assert_equal(sizes: (usize, usize, usize), count: usize, clip_norm: Option<f64>) {
    let (expected, got) = (outcome((1, 1, 1), 1, clip_norm), outcome(sizes, count, clip_norm));
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-5 * b.abs();
    assert!(close(got.0.loss, expected.0.loss), "loss {} {}", got.0.loss, expected.0.loss);
    assert!(close(got.0.grad_norm, expected.0.grad_norm), "norm {} {}", got.0.grad_norm, expected.0.grad_norm);
    for (what, got, expected) in [("gradient", &got.1, &expected.1), ("parameter", &got.2, &expected.2)] {
        let (name, error) = largest_error(got, expected);
        assert!(error <= 1e-5, "{what} of {name}: {error}");
    }
}

#[test]
fn segments_equal_one_tape_bitwise() {
    let device = Device::flex().autodiff();
    let errors = run((1, 1, 1), |epl| {
        let engine = Engine::new(epl.build(Chain::new)?, &SgdConfig::new(), EngineSettings::default())?;
        let batch = rows(0..13, &device);
        let model = engine.model();
        let mut carry = None;
        for index in 0..4 {
            carry = Some(model.forward_segment(index, carry, &batch));
        }
        let weight = model.weights(&batch).get("error").unwrap();
        let term = model.loss(carry.unwrap(), &batch).terms.remove(0);
        let tape = GradientsParams::from_grads((term.sum * (term.coefficient / weight)).backward(), model);
        let (_, gradients) = engine.gradients(micro_batches(&epl, 1))?;
        let plain = [
            ("first.weight", tape.get::<2>(model.first.weight.id).unwrap().into_data()),
            ("up", tape.get::<2>(model.up.id).unwrap().into_data()),
            ("tied.weight", tape.get::<2>(model.tied.weight.id).unwrap().into_data()),
            ("head.weight", tape.get::<2>(model.head.weight.id).unwrap().into_data()),
        ];
        Ok(plain.map(|(name, data)| (name, relative_error(&gradients[name], &data))))
    });
    for (name, error) in errors[0] {
        assert_eq!(error, 0.0, "{name}");
    }
}

#[test]
fn data_2_equals_one_rank() {
    assert_equal((2, 1, 1), 1, None);
}

#[test]
fn data_3_with_accumulation_equals_one_rank() {
    assert_equal((3, 1, 1), 4, None);
}

#[test]
fn tensor_2_equals_one_rank() {
    assert_equal((1, 2, 1), 1, None);
}

#[test]
fn data_2_tensor_2_clipped_equals_one_rank() {
    assert_equal((2, 2, 1), 2, Some(0.05));
}

#[test]
fn replicas_without_samples_take_part() {
    // 4 replicas × 4 micro-batches for 13 samples: three micro-batches are stand-ins.
    assert_equal((4, 1, 1), 4, None);
}

#[test]
fn clipping_brings_the_update_down() {
    let update = |clip_norm| {
        let all = run((1, 1, 1), |epl| {
            let settings = EngineSettings { clip_norm, ..Default::default() };
            let mut engine = Engine::new(epl.build(Chain::new)?, &SgdConfig::new(), settings)?;
            let before = engine.parameters()?;
            let report = engine.step(micro_batches(&epl, 1), 1.0)?;
            let after = engine.parameters()?;
            let squares = before.iter().flat_map(|(name, data)| {
                let pairs: Vec<_> = data.iter::<f64>().zip(after[name].iter::<f64>()).collect();
                pairs.into_iter().map(|(a, b)| (a - b) * (a - b))
            });
            Ok((squares.sum::<f64>().sqrt(), report.grad_norm))
        });
        all[0]
    };
    let (free, norm) = update(None);
    assert!((free - norm).abs() < 1e-4 * norm, "SGD with rate 1 moves by the gradient: {free} {norm}");
    let (clipped, same_norm) = update(Some(norm / 4.0));
    assert_eq!(norm, same_norm, "the norm is reported before clipping");
    assert!((clipped - norm / 4.0).abs() < 1e-4 * norm, "{clipped} {norm}");
}

#[test]
fn initial_values_do_not_depend_on_the_layout() {
    let drawn = |sizes| {
        run(sizes, |epl| {
            Engine::new(epl.build(Chain::new)?, &SgdConfig::new(), EngineSettings::default())?.parameters()
        })
    };
    let expected = drawn((1, 1, 1)).remove(0);
    for sizes in [(2, 1, 1), (1, 2, 1), (2, 2, 1), (1, 3, 1)] {
        for parameters in drawn(sizes) {
            assert_eq!(parameters, expected, "{sizes:?}");
        }
    }
}

fn mark(kind: &EventKind) -> Option<String> {
    match kind {
        EventKind::Mark(mark) => Some(mark.clone()),
        _ => None,
    }
}

#[test]
fn buckets_start_while_backward_goes_on_and_in_one_order() {
    let trace = Trace::new();
    let mut config = config(2, 1, 1);
    config.communication.max_splits = 4;
    epl_core::launch_traced(&config, Some(trace.clone()), |epl| {
        let mut engine = Engine::new(epl.build(Chain::new)?, &SgdConfig::new(), EngineSettings::default())?;
        engine.step(micro_batches(&epl, 1), 0.1).map(|_| ())
    })
    .unwrap();
    let events = trace.events();
    for rank in 0..2 {
        let mine: Vec<String> =
            events.iter().filter(|event| event.rank.0 == rank).filter_map(|event| mark(&event.kind)).collect();
        let at = |what: &str| mine.iter().position(|mark| mark == what).unwrap_or_else(|| panic!("{what}: {mine:?}"));
        assert!(at("start bucket 0") < at("backward 0 segment 0"), "{mine:?}");
        assert!(at("start bucket 0") < at("start bucket 1"), "{mine:?}");
    }
}

#[test]
fn optimizers_that_look_at_whole_tensors_are_refused_on_slices() {
    let error = epl_core::launch(&config(1, 2, 1), |epl| {
        Engine::new(epl.build(Chain::new)?, &AdafactorConfig::new(), EngineSettings::default()).map(|_| ())
    })
    .unwrap_err()
    .to_string();
    assert!(error.contains("`up`") && error.contains("Adafactor") && error.contains("[6, 5] of [6, 10]"), "{error}");
}

#[test]
fn clipping_of_each_parameter_is_refused() {
    let error = epl_core::launch(&config(1, 1, 1), |epl| {
        let optimizer = AdamWConfig::new().with_grad_clipping(Some(GradientClippingConfig::Norm(1.0)));
        Engine::new(epl.build(Chain::new)?, &optimizer, EngineSettings::default()).map(|_| ())
    })
    .unwrap_err()
    .to_string();
    assert!(error.contains("train.clip_norm"), "{error}");
}

#[test]
fn replicas_with_different_numbers_of_micro_batches_are_an_error() {
    let error = epl_core::launch(&config(2, 1, 1), |epl| {
        let mut engine = Engine::new(epl.build(Chain::new)?, &SgdConfig::new(), EngineSettings::default())?;
        let count = 1 + epl.context().data().rank();
        engine.step(micro_batches(&epl, count), 0.1).map(|_| ())
    })
    .unwrap_err()
    .to_string();
    assert!(error.contains("micro-batches"), "{error}");
}

#[test]
fn a_frozen_parameter_stays_as_it_is() -> Result<()> {
    let moved = run((2, 1, 1), |epl| {
        let built = epl.build(|place| {
            let chain = Chain::new(place);
            Chain { head: chain.head.no_grad(), ..chain }
        })?;
        let mut engine = Engine::new(built, &AdamWConfig::new(), EngineSettings::default())?;
        let before = engine.parameters()?;
        engine.step(micro_batches(&epl, 1), 0.1)?;
        let after = engine.parameters()?;
        let moved = |name: &str| before[name] != after[name];
        Ok((moved("head.weight"), moved("first.weight")))
    });
    assert_eq!(moved, [(false, true), (false, true)]);
    Ok(())
}
