//! `ReduceMethod::Sum`: the gradient of the sum of all terms, undivided.

use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::Device;
use epl_core::config::Config;
use epl_core::config::ReduceMethod;
use epl_core::testing::{relative_error, run};
use epl_core::{Engine, EngineSettings, Epl, Model, Result};

use crate::engine::chain::{Chain, micro_batches, rows};

#[test]
fn the_option_becomes_the_setting() {
    let config = Config::new().with("communication.gradients_reduce_method", "sum").unwrap();
    assert_eq!(EngineSettings::from_config(&config).reduce, ReduceMethod::Sum);
    assert_eq!(EngineSettings::from_config(&Config::new()).reduce, ReduceMethod::Mean);
}

/// The errors of loss, norm and two gradients against the definition, on all 13 samples at once.
fn errors(epl: &Epl, count: usize) -> Result<[f64; 4]> {
    let settings = EngineSettings { reduce: ReduceMethod::Sum, ..Default::default() };
    let engine = Engine::new(epl.build(Chain::new)?, &SgdConfig::new(), settings)?;
    let (report, gradients) = engine.gradients(micro_batches(epl, count))?;
    let (model, batch) = (engine.model(), rows(0..13, &Device::flex().autodiff()));
    let carry = (0..4).fold(None, |carry, index| Some(model.forward_segment(index, carry, &batch)));
    let term = model.loss(carry.unwrap(), &batch).terms.remove(0);
    let sum = term.value.clone().into_data().iter::<f64>().sum::<f64>() * term.coefficient;
    let tape = GradientsParams::from_grads((term.value * term.coefficient).backward(), model);
    let error = |a: f64, b: f64| (a - b).abs() / b.abs();
    // The loss that is reported is still the mean: 10 of the 13 samples count.
    let loss = error(report.loss, sum / 10.0);
    let squares: f64 = gradients.values().map(|data| data.iter::<f64>().map(|x| x * x).sum::<f64>()).sum();
    let weights = [("first.weight", &model.first.weight), ("tied.weight", &model.tied.weight)];
    let [first, tied] =
        weights.map(|(name, weight)| relative_error(&gradients[name], &tape.get::<2>(weight.id).unwrap().into_data()));
    Ok([loss, error(report.grad_norm, squares.sqrt()), first, tied])
}

#[test]
fn the_gradient_is_that_of_the_undivided_sum() {
    for (sizes, count) in [((1, 1, 1), 1), ((1, 1, 1), 4), ((2, 1, 1), 1), ((3, 1, 1), 2)] {
        let errors = run(sizes, |epl| errors(&epl, count));
        assert!(errors.iter().flatten().all(|error| *error <= 1e-5), "{sizes:?} {count}: {errors:?}");
    }
}
