//! The optimizer's state of each parameter, wherever it lies.

use std::collections::{BTreeMap, HashMap};

use burn::module::ParamId;

use super::gather::GatherSource;
use super::rank::Engine;
use super::restore_states::StatesOf;
use super::state::ModelState;
use super::state_source::GivenStates;
use crate::checkpoint::{Away, Scalar, TensorValues};
use crate::error::{Error, Result};
use crate::json::json;
use crate::model::segment::Model;
use crate::optim::{StateField, StateFields, WholeStates};
use crate::params::ParamRecord;
use crate::plan::Plan;
use crate::texts::faults;

impl<M: Model> Engine<M> {
    /// What the optimizer keeps of every parameter, whole: [`load_optimizer_states`](Self::load_optimizer_states) takes it under
    /// any layout. Collective.
    ///
    /// # Errors
    ///
    /// When a peer fails, or the optimizer keeps tensors of another shape than the parameter's, such as Adafactor's.
    pub fn optimizer_states(&self) -> Result<WholeStates> {
        self.states_kept(true)
    }

    /// The same on the first rank, for what it alone writes; nothing on others, which have one whole tensor of sharded state at a
    /// time. Collective.
    ///
    /// # Errors
    ///
    /// As [`optimizer_states`](Self::optimizer_states).
    pub fn optimizer_states_on_first(&self) -> Result<WholeStates> {
        self.states_kept(self.context.world().rank() == 0)
    }

    fn states_kept(&self, keeps: bool) -> Result<WholeStates> {
        let own = self.state.states(&self.plan)?;
        let mut whole = self.numbers(&own)?;
        let mut tensors = self.gather(&GatherSource::Optimizer(own), keeps)?;
        if !keeps {
            return Ok(WholeStates::new());
        }
        for record in self.plan.records() {
            let begin = format!("{}.", record.name);
            let names: Vec<String> = tensors.range(begin.clone()..).map(|(name, _)| name.clone()).collect();
            for name in names.into_iter().take_while(|name| name.starts_with(&begin)) {
                let (field, data) = (name[begin.len()..].to_string(), tensors.remove(&name));
                let fields = whole.entry(record.name.clone()).or_default();
                fields.extend(data.map(|data| (field, StateField::Tensor(data))));
            }
        }
        Ok(whole)
    }

    /// The numbers in the state of all parameters. Collective.
    fn numbers(&self, own: &HashMap<ParamId, StateFields>) -> Result<WholeStates> {
        let (mut numbers, mut other) = (BTreeMap::<&str, BTreeMap<&str, Scalar>>::new(), Ok(()));
        for record in self.plan.records() {
            for (field, value) in own.get(&record.id).into_iter().flatten() {
                match value {
                    StateField::Scalar(value) => drop(numbers.entry(&record.name).or_default().insert(field, *value)),
                    StateField::Tensor(data) if !record.updates(&data.shape().to_vec()) => {
                        let (shape, own) = (data.shape().to_vec(), &record.global_shape);
                        other = Err(format!(
                            "`{field}` of `{}` has the shape {shape:?}, and the parameter {own:?}",
                            record.name
                        ));
                    }
                    StateField::Tensor(_) => {}
                }
            }
        }
        for number in &self.state.untouched {
            numbers.entry(&self.plan.records()[*number].name).or_default();
        }
        let world = self.context.world();
        if let Some(reason) = faults(world, &other)? {
            return Err(Error::invalid(format!(
                "the optimizer's state is no tensor of its parameter's shape: {reason}; save it by `Engine::save`"
            )));
        }
        let mut whole = WholeStates::new();
        for text in world.all_gather_texts(&json("numbers of the optimizer", &numbers)?.to_string())? {
            let told: BTreeMap<String, BTreeMap<String, Scalar>> = serde_json::from_str(&text)
                .map_err(|error| Error::invalid(format!("numbers of another rank: {error}")))?;
            for (path, fields) in told {
                let scalars = fields.into_iter().map(|(field, value)| (field, StateField::Scalar(value)));
                whole.entry(path).or_default().extend(scalars);
            }
        }
        Ok(whole)
    }

    /// Gives the optimizer the state that it goes on with, of which this rank keeps its part: of a parameter that had no
    /// gradient yet no fields, and it begins anew. No communication; every rank must do it.
    ///
    /// # Errors
    ///
    /// When it is not what this optimizer keeps of this model's parameters.
    pub fn load_optimizer_states(&mut self, states: &WholeStates) -> Result<()> {
        let (setup, state) = self.parts();
        let given = GivenStates::new(states, setup.plan)?;
        StatesOf::find(setup.plan, &given)?.load(setup, state)
    }
}

/// The state of a parameter: tensors where they lie, or copies of them, and numbers, by name.
#[derive(Default)]
pub(super) struct StateOf<'a> {
    pub tensors: BTreeMap<String, TensorValues<'a>>,
    pub scalars: BTreeMap<String, Scalar>,
}

impl<M: Model> ModelState<M> {
    /// The state of a parameter that this rank updates. What Burn keeps is copied.
    pub fn state_of(&self, number: usize, record: &ParamRecord) -> StateOf<'_> {
        let mut state = StateOf::default();
        for (name, field) in self.optimizer.state(record.id) {
            match field {
                StateField::Tensor(data) => drop(state.tensors.insert(name, TensorValues::Data(data))),
                StateField::Scalar(value) => drop(state.scalars.insert(name, value)),
            }
        }
        let kept = self.one_pass.as_ref().and_then(|one_pass| one_pass.state(number));
        let Some((kept, piece)) = kept else { return state };
        for name in kept.names(piece) {
            let away = Away {
                len: kept.pieces()[piece].len(),
                dtype: kept.dtype(),
                tier: kept.tier(),
                read: Box::new(move |range| kept.part(piece, name, range)),
            };
            state.tensors.insert(name.to_string(), TensorValues::Away(away));
        }
        if let Some((name, steps)) = kept.time(piece) {
            state.scalars.insert(name.to_string(), Scalar::Uint(steps as u64));
        }
        state
    }

    /// A copy of the state of all parameters that this rank updates.
    pub fn states(&self, plan: &Plan) -> Result<HashMap<ParamId, StateFields>> {
        let records = plan.records().iter().enumerate();
        let state = |(number, record): (usize, &ParamRecord)| {
            let StateOf { tensors, scalars } = self.state_of(number, record);
            let mut fields = StateFields::new();
            for (name, values) in tensors {
                fields.insert(name, StateField::Tensor(values.into_data()?));
            }
            fields.extend(scalars.into_iter().map(|(name, value)| (name, StateField::Scalar(value))));
            Ok((record.id, fields))
        };
        records.map(state).collect()
    }
}
