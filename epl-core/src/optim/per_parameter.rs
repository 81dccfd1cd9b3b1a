//! A Burn optimizer with what it keeps of each parameter in the open. (Burn's `ModuleOptimizer` shows it as a record, which is
//! a copy of all of it at once, and drops without a word what it cannot rebuild.)
//!
//! On Flex an optimizer that has a rule for it updates in one pass over memory, by all threads, to the bit as Burn's, which
//! makes a pass and a new tensor of each operation.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use burn::backend::Flex;
use burn::module::ParamId;
use burn::optim::{DynState, StateSink, StateSource};
use burn::tensor::{DType, Device, Shape, Tensor, TensorData};

use super::variant::Variant;
use crate::checkpoint::Scalar;
use crate::error::{Error, Result};
use crate::offload::{HostOptimizer, HostState, Ledger, Storage, Update, scaled};
use crate::params::ParamRecord;

/// One value of what an optimizer keeps of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum StateField {
    /// Such as a moment.
    Tensor(TensorData),
    /// Such as the number of steps.
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

/// What an optimizer keeps of a parameter, by the names that Burn gives it.
pub type StateFields = BTreeMap<String, StateField>;

/// What an optimizer keeps of all parameters, by their paths; tensors are whole.
pub type WholeStates = BTreeMap<String, StateFields>;

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
    variants: Vec<Variant>,
    /// Of those that a group names.
    updates: HashMap<ParamId, UpdateBy>,
    /// The learning rates that parameters have in the place of the one that a step is given.
    rates: HashMap<ParamId, f64>,
    states: HashMap<ParamId, ParamState>,
}

/// What an optimizer keeps of a parameter.
enum ParamState {
    /// With the bytes of its tensors, where they are known.
    Burn(DynState, Option<u64>),
    /// Of one that updates in one pass; the shape is the parameter's.
    OnePass(Box<HostState>, Shape),
}

/// State is read and rebuilt one parameter at a time, so its names need no more before them.
const PREFIX: &str = "";

impl PerParameter {
    /// One that has updated nothing yet. The first variant updates what no group names.
    pub fn new(variants: &[Variant], updates: HashMap<ParamId, UpdateBy>) -> Self {
        Self { variants: variants.to_vec(), updates, rates: HashMap::new(), states: HashMap::new() }
    }

    /// Gives parameters learning rates of their own, by the numbers of their records; or none.
    pub fn set_rates(&mut self, records: &[ParamRecord], rates: Option<&[f64]>) {
        self.rates.clear();
        let rates = rates.unwrap_or_default();
        self.rates.extend(records.iter().zip(rates).map(|(record, rate)| (record.id, *rate)));
    }

    /// What updates a parameter.
    fn update(&self, id: ParamId) -> (&Variant, f64) {
        let UpdateBy { variant, rate_factor } = self.updates.get(&id).copied().unwrap_or(UpdateBy::ALIKE);
        (&self.variants[variant], rate_factor)
    }

    /// The parameter after a step, on its device; none of the tensors tracks gradients. Gradient and state go to that device.
    pub fn step<const D: usize>(
        &mut self,
        id: ParamId,
        update: Update,
        value: Tensor<D>,
        gradient: Tensor<D>,
    ) -> Tensor<D> {
        let device = value.device();
        let gradient = gradient.to_device(&device);
        let (variant, factor) = self.update(id);
        let rate = self.rates.get(&id).copied().unwrap_or(update.rate) * factor;
        let update = Update { rate, ..update };
        if let Some(optimizer) = variant.one_pass_on(&value).filter(|_| value.dtype() == gradient.dtype()) {
            let stepped = self.step_in_one_pass(id, optimizer, update, value, gradient);
            return stepped.unwrap_or_else(|error| epl_comm::unwind(epl_comm::Error::invalid(error.to_string())));
        }
        let gradient = scaled(gradient, update.factor);
        let state = self.take_burn_state(id, D, &device);
        let variant = self.update(id).0;
        // State is of the gradient's type.
        let size = gradient.dtype().size() as u64;
        let bytes = variant.state.map(|state| state.numel(&gradient.dims()) * size);
        let (value, state) = variant.optimizer.step_dyn(D, rate, value.into_bridge(), gradient.into_bridge(), state);
        self.states.extend(state.map(|state| (id, ParamState::Burn(state, bytes))));
        Tensor::from_bridge(value)
    }

    fn step_in_one_pass<const D: usize>(
        &mut self,
        id: ParamId,
        optimizer: HostOptimizer,
        update: Update,
        value: Tensor<D>,
        gradient: Tensor<D>,
    ) -> Result<Tensor<D>> {
        let (shape, dtype) = (value.shape(), value.dtype());
        let elements = shape.num_elements();
        if !matches!(self.states.get(&id), Some(ParamState::OnePass(..))) {
            let before = self.state(id);
            self.states.insert(id, ParamState::one_pass(optimizer, shape, dtype, before)?);
        }
        let value = value.try_into_primitive::<Flex>().map_err(|error| Error::invalid(format!("{error:?}")))?;
        let Some(ParamState::OnePass(state, _)) = self.states.get_mut(&id) else { unreachable!("it was put there") };
        let value = optimizer.step_tensor(value, gradient.reshape([elements]), state, update)?;
        Ok(Tensor::from_primitive::<Flex>(value))
    }

    /// The state as Burn's optimizer of a parameter of so many dims takes it.
    fn take_burn_state(&mut self, id: ParamId, dims: usize, device: &Device) -> Option<DynState> {
        let fields = match self.states.get(&id)? {
            ParamState::Burn(..) => None,
            ParamState::OnePass(..) => Some(self.state(id)),
        };
        match (fields, self.states.remove(&id)?) {
            (None, ParamState::Burn(state, _)) => Some(self.update(id).0.optimizer.to_device_dyn(state, device)),
            // The names and shapes are those that Burn's own has in its record.
            (fields, _) => self.rebuilt(id, dims, fields?, device).or_else(|| {
                epl_comm::unwind(epl_comm::Error::invalid(
                    "the optimizer does not know its own state any more; this is a fault of EPL",
                ))
            }),
        }
    }

    /// A copy of the state of a parameter, on the host; nothing before its first step.
    pub fn state(&self, id: ParamId) -> StateFields {
        match self.states.get(&id) {
            None => StateFields::new(),
            Some(ParamState::OnePass(state, shape)) => fields_of(state, shape),
            Some(ParamState::Burn(state, _)) => {
                let mut sink = StateSink::default();
                self.update(id).0.optimizer.state_flatten(PREFIX, state, &mut sink);
                let tensors = sink.tensors.into_iter().map(|(name, data)| (name, StateField::Tensor(data)));
                let scalars = sink.scalars.into_iter().map(|(name, value)| (name, StateField::Scalar(value.into())));
                tensors.chain(scalars).collect()
            }
        }
    }

    /// How many bytes of tensors it keeps. Burn shows an optimizer's tensors only as copies on the host, so what Burn's optimizers
    /// keep is counted by what their configuration [declares](super::OptimizerConfig::state): all of it, though some have a part
    /// of it behind the second step alone, and a tensor of two names once. That of an optimizer that declares none is copied, and
    /// counted so.
    pub fn bytes(&self) -> u64 {
        let of = |(id, state): (&ParamId, &ParamState)| match state {
            ParamState::OnePass(state, _) => state.bytes(),
            ParamState::Burn(_, Some(bytes)) => *bytes,
            ParamState::Burn(_, None) => bytes_of(&self.state(*id)),
        };
        self.states.iter().map(of).sum()
    }

    /// Forgets the state of all parameters.
    pub fn clear(&mut self) {
        self.states.clear();
    }

    /// Replaces the state of a parameter of so many dims; it lies on `device` until the next step. Whether the optimizer
    /// knows it.
    pub fn set_state(&mut self, id: ParamId, dims: usize, fields: StateFields, device: &Device) -> bool {
        let bytes = bytes_of(&fields);
        let state = self.rebuilt(id, dims, fields, device);
        let is_known = state.is_some();
        self.states.extend(state.map(|state| (id, ParamState::Burn(state, Some(bytes)))));
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
        self.step(id, Update { rate: 0.0, factor: 1.0 }, zeros(), zeros());
    }

    fn rebuilt(&self, id: ParamId, dims: usize, fields: StateFields, device: &Device) -> Option<DynState> {
        let (mut tensors, mut scalars) = (Vec::new(), BTreeMap::new());
        for (name, field) in fields {
            match field {
                StateField::Tensor(data) => tensors.push((name, data)),
                StateField::Scalar(value) => drop(scalars.insert(name, value.into())),
            }
        }
        let mut source = StateSource::new(scalars);
        tensors.into_iter().for_each(|(name, data)| source.insert_tensor(name, data));
        self.update(id).0.optimizer.state_unflatten(dims, PREFIX, &mut source, device)
    }
}

impl ParamState {
    /// Of an optimizer that updates in one pass; what Burn's kept before goes on.
    fn one_pass(optimizer: HostOptimizer, shape: Shape, dtype: DType, before: StateFields) -> Result<Self> {
        let elements = shape.num_elements();
        let storage = Storage::host(&Ledger::new());
        let mut state = optimizer.state(&storage, dtype, std::iter::once(0..elements).collect())?;
        let (mut tensors, mut time) = (BTreeMap::new(), None);
        for (name, field) in before {
            match field {
                StateField::Tensor(data) => drop(tensors.insert(name, data)),
                StateField::Scalar(Scalar::Uint(steps)) => time = usize::try_from(steps).ok(),
                StateField::Scalar(_) => {}
            }
        }
        state.set(0, time, tensors)?;
        Ok(Self::OnePass(Box::new(state), shape))
    }
}

/// Those of all tensors.
fn bytes_of(fields: &StateFields) -> u64 {
    fields.values().filter_map(StateField::tensor).map(|data| data.as_bytes().len() as u64).sum()
}

/// What Burn's optimizer would have in its record.
fn fields_of(state: &HostState, shape: &Shape) -> StateFields {
    let tensor = |name: &'static str| {
        // In host memory, under a name that it gave.
        let data = state.field(0, name).ok()?;
        let dtype = data.dtype();
        Some((name.to_string(), StateField::Tensor(TensorData::from_bytes(data.into_bytes(), shape.clone(), dtype))))
    };
    let tensors = state.names(0).into_iter().filter_map(tensor);
    let time = state.time(0).map(|(name, steps)| (name.to_string(), StateField::Scalar(Scalar::Uint(steps as u64))));
    tensors.chain(time).collect()
}

#[cfg(test)]
mod tests {
    use burn::optim::decay::WeightDecayConfig;
    use burn::optim::momentum::MomentumConfig;
    use burn::optim::{
        AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, LambConfig, LionConfig, RmsPropConfig, SgdConfig,
    };

    use super::*;
    use crate::offload::OnePass;
    use crate::optim::{BertAdamConfig, OptimizerConfig};

    const DIMS: [usize; 2] = [150, 131];

    fn tensor(dims: [usize; 2], seed: usize, dtype: DType) -> Tensor<2> {
        let number = |at: usize| ((at * 7919 + seed * 104_729 + 17) as f64 * 0.618_034).fract() - 0.5;
        let values: Vec<f64> = (0..dims.iter().product()).map(number).collect();
        Tensor::from_data(TensorData::new(values, dims).convert_dtype(dtype), (&Device::flex(), dtype))
    }

    fn update(step: usize) -> Update {
        Update { rate: 0.01 / (1.0 + step as f64), factor: 0.3 }
    }

    fn shown(state: StateFields) -> Vec<(String, String)> {
        let shown = |field: &StateField| match field {
            StateField::Tensor(data) => format!("{:?} {:?} {:?}", data.shape(), data.dtype(), data.as_bytes()),
            StateField::Scalar(value) => format!("{value:?}"),
        };
        state.iter().map(|(name, field)| (name.clone(), shown(field))).collect()
    }

    /// Three steps; in f32, the type that Burn reads state in here, the last one is behind a state that was read and set again.
    fn run(variant: &Variant, dtype: DType, given: fn(Tensor<2>) -> (Tensor<2>, Option<Tensor<2>>)) -> Vec<String> {
        let new = || PerParameter::new(std::slice::from_ref(variant), HashMap::new());
        let (id, mut optimizer) = (ParamId::from(3), new());
        let (mut value, kept) = given(tensor([DIMS[0] + 2, DIMS[1]], 1, dtype));
        let before = kept.clone().map(Tensor::into_data);
        let mut found = Vec::new();
        for step in 0..3 {
            if step == 2 && dtype == DType::F32 {
                let state = optimizer.state(id);
                optimizer = new();
                assert!(optimizer.set_state(id, 2, state, &Device::flex()));
            }
            value = optimizer.step(id, update(step), value, tensor(DIMS, 2 + step, dtype));
            found.push(format!("{:?} {:?}", value.to_data().as_bytes(), shown(optimizer.state(id))));
        }
        assert_eq!(kept.map(Tensor::into_data), before, "who else holds the values sees no step");
        found
    }

    fn same_as_burns<C: OptimizerConfig>(config: &C) {
        let variant = config.variant(None, None).expect("settings");
        assert!(matches!(variant.one_pass, OnePass::Yes(_)), "{}", C::NAME);
        let burns = variant.clone().with_one_pass(OnePass::unknown(C::NAME));
        for dtype in [DType::F32, DType::F64] {
            let alone: fn(Tensor<2>) -> _ = |x| (x.slice([0..DIMS[0]]).mul_scalar(1.0), None);
            let shared: fn(Tensor<2>) -> _ = |x| {
                let x = x.slice([0..DIMS[0]]).mul_scalar(1.0);
                (x.clone(), Some(x))
            };
            let view: fn(Tensor<2>) -> _ = |x| (x.clone().slice([1..DIMS[0] + 1]), Some(x));
            for (what, given) in [("alone", alone), ("shared", shared), ("a view", view)] {
                let run = |variant| {
                    let run = epl_comm::catch(|| run(variant, dtype, given));
                    run.unwrap_or_else(|error| panic!("{} in {dtype:?}, {what}: {error}", C::NAME))
                };
                assert!(run(&variant) == run(&burns), "{} in {dtype:?}, {what}", C::NAME);
            }
        }
    }

    /// As Burn's, in two steps; and where the same state is set, in f32, the type that Burn reads state in here.
    fn declares_what_it_keeps<C: OptimizerConfig>(config: &C, dtype: DType) {
        let variant = config.variant(None, None).expect("settings").with_one_pass(OnePass::unknown(C::NAME));
        let new = || PerParameter::new(std::slice::from_ref(&variant), HashMap::new());
        let (id, mut optimizer) = (ParamId::from(3), new());
        let mut value = tensor(DIMS, 1, dtype);
        for step in 0..2 {
            value = optimizer.step(id, update(step), value, tensor(DIMS, 2 + step, dtype));
        }
        let state = optimizer.state(id);
        let (mut again, expected) = (new(), bytes_of(&state));
        assert_eq!(optimizer.bytes(), expected, "{} in {dtype:?}", C::NAME);
        if dtype == DType::F32 {
            assert!(again.set_state(id, 2, state, &Device::flex()));
            assert_eq!(again.bytes(), expected, "{} in {dtype:?}, set", C::NAME);
        }
    }

    #[test]
    fn state_is_counted_without_being_read() {
        declares_what_it_keeps(&AdamWConfig::new(), DType::F32);
        declares_what_it_keeps(&AdamWConfig::new(), DType::F64);
        declares_what_it_keeps(&AdaGradConfig::new(), DType::F32);
        declares_what_it_keeps(&AdafactorConfig::new(), DType::F32);
        declares_what_it_keeps(&BertAdamConfig::new(), DType::F32);
        declares_what_it_keeps(&LambConfig::new(), DType::F32);
        declares_what_it_keeps(&LionConfig::new(), DType::F32);
        declares_what_it_keeps(&SgdConfig::new(), DType::F32);
        declares_what_it_keeps(&SgdConfig::new().with_momentum(Some(MomentumConfig::new())), DType::F32);
    }

    #[test]
    fn values_and_state_are_those_of_burns_optimizers() {
        same_as_burns(&AdamConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.1))));
        same_as_burns(&AdamWConfig::new());
        same_as_burns(&BertAdamConfig::new());
        same_as_burns(&LionConfig::new());
        same_as_burns(&RmsPropConfig::new());
        same_as_burns(&RmsPropConfig::new().with_centered(true).with_momentum(0.5));
        same_as_burns(&SgdConfig::new());
        same_as_burns(&SgdConfig::new().with_momentum(Some(MomentumConfig::new())));
    }
}
