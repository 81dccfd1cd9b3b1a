//! Optimizers that update flat arrays in one pass over memory.

use core::ops::Range;

use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Tensor};

use super::array::FlatArray;
use super::lane::{Lane, folder_of, window_elements};
use super::number::Number;
use super::pass::{self, Arrays, GradientSource, ParamUpdate};
use super::rules::{Adam, AdamW, BertAdam, HostRule, Lion, OfKind, RmsProp, Rule, Sgd};
use super::state::HostState;
use super::storage::Storage;
use super::values::FlatValues;
use crate::error::{Error, Result};

/// An optimizer that updates flat arrays, with the bits that Burn's own computes on Flex.
///
/// ```
/// use burn::{optim::SgdConfig, tensor::{DType, Device, Tensor}};
/// use epl_core::offload::{Gradients, HostOptimizer, Ledger, OnePass, Storage, Update};
///
/// let settings = serde_json::to_value(SgdConfig::new()).expect("settings are written");
/// let OnePass::Yes(sgd) = HostOptimizer::from_settings("SGD", &settings)? else { panic!("SGD can") };
/// let host = Storage::host(&Ledger::new());
/// let [mut parameters, mut gradients] = [host.zeros(4, DType::F32)?, host.zeros(4, DType::F32)?];
/// gradients.write(0, &Tensor::ones([4], &Device::flex()))?;
/// // Two parameters of two elements; of the second, the learning rate is halved.
/// let mut state = sgd.state_of_groups(&host, DType::F32, vec![0..2, 2..4], vec![(sgd, 1.0), (sgd, 0.5)])?;
/// sgd.step(&mut parameters, Gradients::Array(&gradients, &[0, 1]), &mut state, Update { rate: 0.5, factor: 1.0 })?;
/// assert_eq!(parameters.data(0..4)?.to_vec::<f32>().unwrap(), [-0.5, -0.5, -0.25, -0.25]);
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct HostOptimizer {
    pub(super) kind: HostRule,
}

/// The gradients of those parameters that have one, by their numbers in [`HostState::pieces`], in order.
#[derive(Clone, Copy, Debug)]
pub enum Gradients<'a> {
    /// Each at the place of its parameter.
    Array(&'a FlatArray, &'a [usize]),
    /// A flat tensor each; of Flex they are read in place.
    Tensors(&'a [(usize, Tensor<1>)]),
}

/// How far a step goes.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    /// The learning rate.
    pub rate: f64,
    /// What gradients are multiplied by first, to clip or to unscale them; one changes no bit.
    pub factor: f64,
}

impl HostOptimizer {
    /// State for parameters that lie in these ranges of an array, in order.
    ///
    /// # Errors
    ///
    /// When ranges overlap, the element type is not f32 or f64, or the storage has no room.
    pub fn state(&self, storage: &Storage, dtype: DType, pieces: Vec<Range<usize>>) -> Result<HostState> {
        HostState::new(self.kind, storage, dtype, pieces)
    }

    /// [`state`](Self::state) of parameters in groups: of each, the settings with which it is updated, and what the learning
    /// rate is multiplied by.
    ///
    /// # Errors
    ///
    /// As [`state`](Self::state); and when the groups are not one for each parameter, or one is another optimizer or would keep
    /// other state.
    pub fn state_of_groups(
        &self,
        storage: &Storage,
        dtype: DType,
        pieces: Vec<Range<usize>>,
        groups: Vec<(Self, f64)>,
    ) -> Result<HostState> {
        let rules = groups.into_iter().map(|(optimizer, factor)| (optimizer.kind, factor)).collect();
        HostState::new(self.kind, storage, dtype, pieces)?.with_groups(rules)
    }

    /// Updates the parameters that have a gradient. Loops run in the rayon pool of the caller.
    ///
    /// # Errors
    ///
    /// When arrays do not fit together; nothing is changed then. When a file fails: some parameters are updated then,
    /// and the run cannot go on.
    pub fn step(
        &self,
        parameters: &mut FlatArray,
        gradients: Gradients<'_>,
        state: &mut HostState,
        update: Update,
    ) -> Result<()> {
        if self.kind != state.kind {
            return Err(Error::invalid(format!(
                "the state was made for {:?}, and this is {:?}",
                state.kind, self.kind
            )));
        }
        match state.dtype {
            DType::F64 => self.step_of::<f64>(Updated::Array(parameters), gradients, state, update),
            _ => self.step_of::<f32>(Updated::Array(parameters), gradients, state, update),
        }
    }

    /// Updates one parameter, a tensor of Flex, in place where nothing else holds its values. The state is of it alone.
    ///
    /// # Errors
    ///
    /// When tensors and state do not fit together.
    pub(crate) fn step_tensor(
        &self,
        value: FlexTensor,
        gradient: Tensor<1>,
        state: &mut HostState,
        update: Update,
    ) -> Result<FlexTensor> {
        match state.dtype {
            DType::F64 => self.step_tensor_of::<f64>(value, gradient, state, update),
            _ => self.step_tensor_of::<f32>(value, gradient, state, update),
        }
    }

    fn step_tensor_of<E: Number>(
        &self,
        value: FlexTensor,
        gradient: Tensor<1>,
        state: &mut HostState,
        update: Update,
    ) -> Result<FlexTensor> {
        let mut value = whole_buffer(value);
        let parameters = Updated::Slice(value.storage_mut::<E>());
        self.step_of::<E>(parameters, Gradients::Tensors(&[(0, gradient)]), state, update)?;
        Ok(value)
    }

    fn step_of<E: Number>(
        &self,
        parameters: Updated<'_, E>,
        gradients: Gradients<'_>,
        state: &mut HostState,
        update: Update,
    ) -> Result<()> {
        let step = OptimizerStep { parameters, gradients, state, update };
        match (&self.kind, self.kind.fields().len()) {
            (HostRule::Adam(_), _) => step.run::<Adam, 2>(),
            (HostRule::AdamW(_), _) => step.run::<AdamW, 2>(),
            (HostRule::BertAdam(_), _) => step.run::<BertAdam, 2>(),
            (HostRule::Lion(_), _) => step.run::<Lion, 1>(),
            (HostRule::RmsProp(_), 1) => step.run::<RmsProp, 1>(),
            (HostRule::RmsProp(_), 2) => step.run::<RmsProp, 2>(),
            (HostRule::RmsProp(_), _) => step.run::<RmsProp, 3>(),
            (HostRule::Sgd(_), 1) => step.run::<Sgd, 1>(),
            (HostRule::Sgd(_), _) => step.run::<Sgd, 0>(),
        }
    }
}

/// A tensor whose values are all of its buffer, in order.
fn whole_buffer(value: FlexTensor) -> FlexTensor {
    let elements = value.bytes().len() / value.dtype().size();
    let fills = value.is_contiguous() && value.layout().num_elements() == elements;
    if fills { value } else { value.to_contiguous() }
}

/// What is updated.
enum Updated<'a, E> {
    Array(&'a mut FlatArray),
    /// The elements of one parameter.
    Slice(&'a mut [E]),
}

impl<E: Number> Updated<'_, E> {
    /// Refuses what does not fit to the state.
    fn check(&self, state: &HostState) -> Result<()> {
        match self {
            Self::Array(array) => state.expect_array("the parameters", array),
            Self::Slice(slice) => state.expect_elements("the values of a parameter", slice.len(), E::dtype()),
        }
    }

    fn array(&self) -> Option<&FlatArray> {
        match self {
            Self::Array(array) => Some(array),
            Self::Slice(_) => None,
        }
    }
}

struct OptimizerStep<'a, E> {
    parameters: Updated<'a, E>,
    gradients: Gradients<'a>,
    state: &'a mut HostState,
    update: Update,
}

impl<E: Number> OptimizerStep<'_, E> {
    fn run<R: Rule<E, N> + OfKind, const N: usize>(self) -> Result<()> {
        let Self { parameters, gradients, state, update } = self;
        let numbers: Vec<usize> = match gradients {
            Gradients::Array(_, numbers) => numbers.to_vec(),
            Gradients::Tensors(tensors) => tensors.iter().map(|(number, _)| *number).collect(),
        };
        state.expect_in_order(&numbers)?;
        parameters.check(state)?;
        let values = values_of(gradients, state)?;
        let piece = |number: &usize| -> Option<ParamUpdate<R::Constants>> {
            let (range, steps) = (state.pieces[*number].clone(), state.steps[*number]);
            let (rule, factor) = &state.groups[*number];
            let rate = state.rates.get(number).copied().unwrap_or(update.rate) * factor;
            let constants = R::of_kind(rule)?.constants(rate, steps + 1);
            Some(ParamUpdate { range, constants, first: steps == 0 })
        };
        let pieces: Option<Vec<ParamUpdate<R::Constants>>> = numbers.iter().map(piece).collect();
        let pieces = pieces.ok_or_else(|| Error::invalid("the groups of a state are of several optimizers"))?;
        let gradient_array = match gradients {
            Gradients::Array(array, _) => Some(array),
            Gradients::Tensors(_) => None,
        };
        let all: Vec<&FlatArray> = parameters.array().into_iter().chain(gradient_array).chain(&state.arrays).collect();
        let folder = folder_of(&all)?;
        let elements = window_elements(&all, folder.as_ref());
        let _turn = folder.as_ref().map(|folder| folder.turn());
        let mut arrays = Arrays {
            parameters: match parameters {
                Updated::Array(array) => Lane::change(array),
                Updated::Slice(slice) => Lane::Host(slice),
            },
            gradients: match gradient_array {
                Some(array) => GradientSource::Array(Lane::read(array)),
                None => GradientSource::Slices(values.iter().map(FlatValues::slice::<E>).collect()),
            },
            state: state.lanes::<E, N>()?,
        };
        pass::update::<E, R, N>(&mut arrays, &pieces, E::of(update.factor), elements)?;
        drop(arrays);
        numbers.iter().for_each(|number| state.steps[*number] += 1);
        Ok(())
    }
}

/// The gradients' values where they are tensors; an array is compared only.
fn values_of(gradients: Gradients<'_>, state: &HostState) -> Result<Vec<FlatValues>> {
    match gradients {
        Gradients::Array(array, _) => state.expect_array("the gradients", array).map(|()| Vec::new()),
        Gradients::Tensors(tensors) => tensors
            .iter()
            .map(|(number, tensor)| {
                let (values, len) = (FlatValues::of(tensor)?, state.pieces[*number].len());
                values.expect_dtype(&format!("the gradient of parameter {number}"), state.dtype)?;
                if values.len() != len {
                    return Err(Error::invalid(format!(
                        "the gradient of parameter {number} has {} elements, and the parameter has {len}",
                        values.len()
                    )));
                }
                Ok(values)
            })
            .collect(),
    }
}
