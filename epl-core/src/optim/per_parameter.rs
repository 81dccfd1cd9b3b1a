//! A Burn optimizer with what it keeps of each parameter in the open. (Burn's `ModuleOptimizer` shows it as a record, which is
//! a copy of all of it at once, and drops without a word what it cannot rebuild.)

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use burn::module::ParamId;
use burn::optim::{DynOptimizer, DynState, StateSink, StateSource};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};

use super::variant::Variant;
use crate::checkpoint::Scalar;
use crate::params::ParamRecord;

/// One value of a parameter's state.
#[derive(Clone, Debug)]
pub(crate) enum StateField {
    Tensor(TensorData),
    Scalar(Scalar),
}

impl StateField {
    /// The tensor, if it is one.
    pub fn tensor(&self) -> Option<&TensorData> {
        match self {
            Self::Tensor(data) => Some(data),
            Self::Scalar(_) => None,
        }
    }
}

/// By name, in a parameter's state.
pub(crate) type StateFields = BTreeMap<String, StateField>;

/// What updates a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct UpdateBy {
    /// The number of the variant.
    pub variant: usize,
    /// What the learning rate is multiplied by.
    pub rate_factor: f64,
}

impl UpdateBy {
    /// As what no group names.
    pub const ALIKE: Self = Self { variant: 0, rate_factor: 1.0 };
}

/// An optimizer of any kind, and its state of the parameters that it has updated.
pub(crate) struct PerParameter {
    /// The first one is of what no group names.
    variants: Vec<Arc<dyn DynOptimizer>>,
    /// Of those that a group names.
    updates: HashMap<ParamId, UpdateBy>,
    /// The learning rates that parameters have in the place of the one that a step is given.
    rates: HashMap<ParamId, f64>,
    states: HashMap<ParamId, DynState>,
}

/// State is read and rebuilt one parameter at a time, so its names need no more before them.
const PREFIX: &str = "";

impl PerParameter {
    /// One that has updated nothing yet. The first variant updates what no group names.
    pub fn new(variants: &[Variant], updates: HashMap<ParamId, UpdateBy>) -> Self {
        let variants = variants.iter().map(|variant| variant.optimizer.clone()).collect();
        Self { variants, updates, rates: HashMap::new(), states: HashMap::new() }
    }

    /// Gives parameters learning rates of their own, by the numbers of their records; or none.
    pub fn set_rates(&mut self, records: &[ParamRecord], rates: Option<&[f64]>) {
        self.rates.clear();
        let rates = rates.unwrap_or_default();
        self.rates.extend(records.iter().zip(rates).map(|(record, rate)| (record.id, *rate)));
    }

    /// What updates a parameter.
    fn update(&self, id: ParamId) -> (&Arc<dyn DynOptimizer>, f64) {
        let UpdateBy { variant, rate_factor } = self.updates.get(&id).copied().unwrap_or(UpdateBy::ALIKE);
        (&self.variants[variant], rate_factor)
    }

    /// The parameter after a step, on its device; none of the tensors tracks gradients. Gradient and state go to that device.
    pub fn step<const D: usize>(&mut self, id: ParamId, rate: f64, value: Tensor<D>, gradient: Tensor<D>) -> Tensor<D> {
        let device = value.device();
        let gradient = gradient.to_device(&device);
        let state = self.states.remove(&id);
        let (optimizer, factor) = self.update(id);
        let rate = self.rates.get(&id).copied().unwrap_or(rate) * factor;
        let state = state.map(|state| optimizer.to_device_dyn(state, &device));
        let (value, state) = optimizer.step_dyn(D, rate, value.into_bridge(), gradient.into_bridge(), state);
        self.states.extend(state.map(|state| (id, state)));
        Tensor::from_bridge(value)
    }

    /// A copy of the state of a parameter, on the host; nothing before its first step.
    pub fn state(&self, id: ParamId) -> StateFields {
        let mut sink = StateSink::default();
        if let Some(state) = self.states.get(&id) {
            self.update(id).0.state_flatten(PREFIX, state, &mut sink);
        }
        let tensors = sink.tensors.into_iter().map(|(name, data)| (name, StateField::Tensor(data)));
        let scalars = sink.scalars.into_iter().map(|(name, value)| (name, StateField::Scalar(from_burn(value))));
        tensors.chain(scalars).collect()
    }

    /// How many bytes of tensors it keeps.
    pub fn bytes(&self) -> u64 {
        let fields = self.states.keys().flat_map(|id| self.state(*id).into_values());
        fields.filter_map(|field| Some(field.tensor()?.as_bytes().len() as u64)).sum()
    }

    /// Forgets the state of all parameters.
    pub fn clear(&mut self) {
        self.states.clear();
    }

    /// Replaces the state of a parameter of so many dims; it lies on `device` until the next step. Whether the optimizer
    /// knows it.
    pub fn set_state(&mut self, id: ParamId, dims: usize, fields: StateFields, device: &Device) -> bool {
        let state = self.rebuilt(id, dims, fields, device);
        let is_known = state.is_some();
        self.states.extend(state.map(|state| (id, state)));
        is_known
    }

    /// The names of what the optimizer keeps of a parameter of this shape and type, after its first step and after the
    /// second: tried, from zeros.
    pub fn names(&self, shape: &[usize], dtype: DType) -> [BTreeSet<String>; 2] {
        let mut trial = Self {
            variants: self.variants.clone(),
            updates: HashMap::new(),
            rates: HashMap::new(),
            states: HashMap::new(),
        };
        let id = ParamId::from(0);
        [1, 2].map(|_| {
            match shape.len() {
                0 | 1 => trial.step_from_zeros::<1>(id, shape, dtype),
                2 => trial.step_from_zeros::<2>(id, shape, dtype),
                3 => trial.step_from_zeros::<3>(id, shape, dtype),
                4 => trial.step_from_zeros::<4>(id, shape, dtype),
                5 => trial.step_from_zeros::<5>(id, shape, dtype),
                6 => trial.step_from_zeros::<6>(id, shape, dtype),
                7 => trial.step_from_zeros::<7>(id, shape, dtype),
                _ => trial.step_from_zeros::<8>(id, shape, dtype),
            }
            trial.state(id).into_keys().collect()
        })
    }

    fn step_from_zeros<const D: usize>(&mut self, id: ParamId, shape: &[usize], dtype: DType) {
        let zeros = || Tensor::<D>::zeros(Shape::from(shape.to_vec()), (&Device::flex(), dtype));
        self.step(id, 0.0, zeros(), zeros());
    }

    fn rebuilt(&self, id: ParamId, dims: usize, fields: StateFields, device: &Device) -> Option<DynState> {
        let (mut tensors, mut scalars) = (Vec::new(), BTreeMap::new());
        for (name, field) in fields {
            match field {
                StateField::Tensor(data) => tensors.push((name, data)),
                StateField::Scalar(value) => drop(scalars.insert(name, to_burn(value))),
            }
        }
        let mut source = StateSource::new(scalars);
        tensors.into_iter().for_each(|(name, data)| source.insert_tensor(name, data));
        self.update(id).0.state_unflatten(dims, PREFIX, &mut source, device)
    }
}

fn from_burn(value: burn_pack::Scalar) -> Scalar {
    match value {
        burn_pack::Scalar::UInt(value) => Scalar::Uint(value),
        burn_pack::Scalar::Int(value) => Scalar::Int(value),
        burn_pack::Scalar::Float(value) => Scalar::Float(value),
        burn_pack::Scalar::Bool(value) => Scalar::Bool(value),
    }
}

fn to_burn(value: Scalar) -> burn_pack::Scalar {
    match value {
        Scalar::Uint(value) => burn_pack::Scalar::UInt(value),
        Scalar::Int(value) => burn_pack::Scalar::Int(value),
        Scalar::Float(value) => burn_pack::Scalar::Float(value),
        Scalar::Bool(value) => burn_pack::Scalar::Bool(value),
    }
}
