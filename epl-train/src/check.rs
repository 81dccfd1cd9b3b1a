//! Whether the learner's optimizer is the one that the strategy was given: it does not show its settings, so both are tried.

use std::collections::HashMap;

use burn::module::{ModuleVisitor, Param, ParamId};
use burn::nn::LinearConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Shape, Tensor, TensorData};
use burn_train::{Learner, LearnerModel};
use epl_core::optim::OptimizerConfig;
use epl_core::{Error, Result};

use crate::records::{self, Named, named};

/// So many elements of parameters are tried at a time, if a parameter has no more by itself.
const AT_A_TIME: usize = 1 << 22;

/// Of so many first rates of the learner's schedule the largest is tried with.
const RATES: usize = 1000;

/// How far two updates of an element may be apart, as a part of the largest one; and of the largest value, for what is rounded.
const TOLERANCE: f64 = 1e-3;
const ROUNDING: f64 = 1e-6;

/// Makes two steps with each parameter by either optimizer, with gradients that tell clipping, momenta and decay; the learner stays
/// as it is. Where an optimizer has groups of EPL's, the learner's cannot have them, and nothing is compared.
///
/// # Errors
///
/// The first parameter that the two update differently.
pub(crate) fn same_optimizer<M: LearnerModel, O: OptimizerConfig>(learner: &Learner<M>, optimizer: &O) -> Result<()> {
    if !optimizer.groups()?.is_empty() {
        return Ok(());
    }
    let Some(learner) = at_largest_rate(learner) else { return Ok(()) };
    let (mut chunk, mut elements) = (Vec::new(), 0);
    for parameter in named(&learner.model()).into_iter().filter(|parameter| parameter.is_trained) {
        if !chunk.is_empty() && elements + parameter.elements > AT_A_TIME {
            compare(&learner, optimizer, &core::mem::take(&mut chunk))?;
            elements = 0;
        }
        elements += parameter.elements;
        chunk.push(parameter);
    }
    compare(&learner, optimizer, &chunk)
}

/// Whether all that an optimizer keeps of a parameter has the parameter's shape, or is a number, as the checkpoints of a learner
/// that runs on ranks have it.
///
/// # Errors
///
/// What has another shape.
pub(crate) fn is_saved_whole<O: OptimizerConfig>(optimizer: &O) -> Result<()> {
    let device = Device::flex().autodiff();
    // Large enough for what is kept by rows and columns.
    let layer = LinearConfig::new(256, 256).init(&device);
    let mut gradients = GradientsParams::new();
    gradients.register(layer.weight.id, gradient(&layer.weight.val().without_autodiff(), 0));
    let mut tried = ModuleOptimizer::from(optimizer.build());
    let layer = tried.step(1e-3, layer, gradients);
    let states = records::read(tried.to_record(), &named(&layer))?;
    let shape = layer.weight.dims();
    for (field, value) in states.into_values().flatten() {
        let other = value.tensor().map(|data| data.shape().to_vec()).filter(|found| *found != shape);
        if let Some(other) = other {
            return Err(Error::invalid(format!(
                "{} keeps `{field}` of shape {other:?} of a parameter of {shape:?}, and a learner on ranks saves tensors of the \
                 parameter's shape only; leave the checkpointers out, or train by `Engine`, whose `save` has it",
                O::NAME
            )));
        }
    }
    Ok(())
}

/// The learner with the largest of its first rates; none, if all are zero.
fn at_largest_rate<M: LearnerModel>(learner: &Learner<M>) -> Option<Learner<M>> {
    let (mut stepped, mut largest) = (learner.clone(), (0.0, 0));
    for step in 1..=RATES {
        stepped.lr_step();
        let rate = stepped.lr_current().base();
        if rate > largest.0 {
            largest = (rate, step);
        }
    }
    let mut at = learner.clone();
    (0..largest.1).for_each(|_| at.lr_step());
    (largest.0 > 0.0).then_some(at)
}

/// Compares the two for some parameters.
fn compare<M: LearnerModel, O: OptimizerConfig>(
    learner: &Learner<M>,
    optimizer: &O,
    parameters: &[Named],
) -> Result<()> {
    let names: HashMap<ParamId, &String> = parameters.iter().map(|named| (named.id, &named.path)).collect();
    let mut theirs = learner.clone();
    for step in 0..2 {
        let mut gradients = Gradients { names: &names, step, gradients: GradientsParams::new() };
        learner.model().visit(&mut gradients);
        theirs.optimizer_step(gradients.gradients);
    }
    let rates = learner.lr_current();
    let rate = |id: ParamId| rates.lr_from_param(id, names.get(&id).map(|path| path.as_str()));
    let mut ours = Ours { names: &names, rate: &rate, optimizer: optimizer.build(), after: HashMap::new() };
    learner.model().visit(&mut ours);
    let mut other = Other { names: &names, ours: ours.after, differs: None };
    theirs.model().visit(&mut other);
    match other.differs {
        None => Ok(()),
        Some((name, theirs, ours)) => Err(Error::Parameter {
            name,
            reason: format!(
                "is moved by {theirs:e} in two steps of the learner's optimizer, and by {ours:e} in those of the {} that the \
                 strategy was given; give both the same settings. Groups and clipping of the learner's optimizer are not known \
                 here: give `ParamGroups`, and train.clip_norm. `TrainStep::optimize` of the model's own is not called on ranks",
                O::NAME
            ),
        }),
    }
}

/// The gradient of a step: large in the first, small and of either sign in the second.
fn gradient<const D: usize>(values: &Tensor<D>, step: usize) -> Tensor<D> {
    let shape = values.shape();
    let number = |at: usize| ((at * 7919 + step * 104_729 + 17) as f64 * 0.618_034).fract();
    let of = |at: usize| if step == 0 { 2.0 + number(at) } else { 0.1 * (number(at) - 0.5) };
    let numbers: Vec<f64> = (0..shape.num_elements()).map(of).collect();
    let data = TensorData::new(numbers, Shape::from(shape.to_vec())).convert_dtype(values.dtype());
    Tensor::from_data(data, (&values.device(), values.dtype()))
}

struct Gradients<'a> {
    names: &'a HashMap<ParamId, &'a String>,
    step: usize,
    gradients: GradientsParams,
}

impl ModuleVisitor for Gradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.names.contains_key(&param.id) {
            self.gradients.register(param.id, gradient(&param.val().without_autodiff(), self.step));
        }
    }
}

/// Parameters after two steps of the strategy's optimizer, and what they were.
struct Ours<'a, F, O> {
    names: &'a HashMap<ParamId, &'a String>,
    rate: &'a F,
    optimizer: O,
    after: HashMap<ParamId, [TensorData; 2]>,
}

impl<F: Fn(ParamId) -> f64, O: Optimizer> ModuleVisitor for Ours<'_, F, O> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.names.contains_key(&param.id) {
            return;
        }
        let (before, rate) = (param.val().without_autodiff(), (self.rate)(param.id));
        let (mut value, mut state) = (before.clone(), None);
        for step in 0..2 {
            (value, state) = self.optimizer.step(rate, value, gradient(&before, step), state);
        }
        self.after.insert(param.id, [value.into_data(), before.into_data()]);
    }
}

struct Other<'a> {
    names: &'a HashMap<ParamId, &'a String>,
    ours: HashMap<ParamId, [TensorData; 2]>,
    /// The name, and how far either has moved where they differ most.
    differs: Option<(String, f64, f64)>,
}

impl ModuleVisitor for Other<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let (Some(name), Some([ours, before])) = (self.names.get(&param.id), self.ours.remove(&param.id)) else {
            return;
        };
        let theirs = param.val().without_autodiff().into_data();
        let moved: Vec<(f64, f64)> = theirs
            .iter::<f64>()
            .zip(ours.iter::<f64>())
            .zip(before.iter::<f64>())
            .map(|((theirs, ours), before)| (theirs - before, ours - before))
            .collect();
        let finite = |largest: f64, x: f64| if x.is_finite() { largest.max(x.abs()) } else { largest };
        let largest = moved.iter().map(|(_, ours)| *ours).fold(0.0, finite);
        let value = before.iter::<f64>().fold(0.0, finite);
        let apart = |(theirs, ours): &(f64, f64)| match (theirs - ours).abs() {
            // Of numbers that are none neither has moved.
            _ if theirs.is_nan() && ours.is_nan() => 0.0,
            apart if apart.is_nan() => f64::INFINITY,
            apart => apart,
        };
        let worst = moved.iter().copied().max_by(|a, b| apart(a).total_cmp(&apart(b)));
        if let Some((theirs, ours)) = worst.filter(|worst| apart(worst) > TOLERANCE * largest + ROUNDING * value) {
            self.differs.get_or_insert(((*name).clone(), theirs, ours));
        }
    }
}
