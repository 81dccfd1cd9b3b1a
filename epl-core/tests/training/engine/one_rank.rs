//! Every layout equals one rank, and one rank equals one tape.

use std::collections::BTreeMap;

use burn::optim::{AdafactorConfig, AdamWConfig, GradientsParams, SgdConfig};
use burn::tensor::{Device, TensorData};
use epl_core::optim::OptimizerConfig;
use epl_core::testing::{largest_error, relative_error, run};
use epl_core::{Engine, EngineSettings, Model, StepReport};

use crate::engine::chain::{Chain, micro_batches, rows};

type Sizes = (usize, usize, usize);
type Outcome = (StepReport, BTreeMap<String, TensorData>, BTreeMap<String, TensorData>);

fn outcome<O: OptimizerConfig + Sync>(sizes: Sizes, count: usize, clip_norm: Option<f64>, optimizer: &O) -> Outcome {
    let all = run(sizes, |epl| {
        let settings = EngineSettings { clip_norm, ..Default::default() };
        let mut engine = Engine::new(epl.build(Chain::new)?, optimizer, settings)?;
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

fn assert_equal(sizes: Sizes, count: usize, clip_norm: Option<f64>) {
    assert_equal_with(sizes, count, clip_norm, &AdamWConfig::new().with_epsilon(1e-4));
}

fn assert_equal_with<O: OptimizerConfig + Sync>(sizes: Sizes, count: usize, clip_norm: Option<f64>, optimizer: &O) {
    let expected = outcome((1, 1, 1), 1, clip_norm, optimizer);
    let got = outcome(sizes, count, clip_norm, optimizer);
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
        let weight = model.weights(&batch).get("error", 0).unwrap();
        let term = model.loss(carry.unwrap(), &batch).terms.remove(0);
        let tape = GradientsParams::from_grads((term.value * (term.coefficient / weight)).backward(), model);
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
fn adafactor_on_data_2_equals_one_rank() {
    // It looks at whole tensors, and every replica has the whole of them.
    assert_equal_with((2, 1, 1), 2, None, &AdafactorConfig::new());
}
