//! The optimizer's state, from a checkpoint or from memory.

use std::collections::{BTreeMap, BTreeSet};

use burn::tensor::{DType, Device, TensorData};

use super::away::OnePassUpdate;
use super::state::{ModelState, Setup};
use super::state_source::StateSource;
use super::update::update_device;
use crate::checkpoint::{Region, Scalar, names};
use crate::error::{Error, Result};
use crate::model::segment::Model;
use crate::optim::{PerParameter, StateField, StateFields};
use crate::params::{ParamRecord, ParamTable};
use crate::plan::Plan;

/// Where the state of the parameters lies that a rank updates.
pub(super) struct StatesOf<'a> {
    stored: &'a dyn StateSource,
    /// By the numbers of their records.
    fields: BTreeMap<usize, StoredState>,
    /// The trained ones that no step had a gradient of, and that have none.
    untouched: BTreeSet<usize>,
}

/// The state of a parameter: by field, the names of tensors, and numbers.
#[derive(Clone, Default)]
struct StoredState {
    tensors: BTreeMap<String, String>,
    scalars: BTreeMap<String, Scalar>,
}

impl StoredState {
    /// The names of its fields.
    fn names(&self) -> impl Iterator<Item = &String> {
        self.tensors.keys().chain(self.scalars.keys())
    }

    /// Its numbers, as fields.
    fn numbers(&self) -> StateFields {
        self.scalars.iter().map(|(name, value)| (name.clone(), StateField::Scalar(*value))).collect()
    }
}

impl<'a> StatesOf<'a> {
    /// Finds the state of this rank's parameters.
    ///
    /// # Errors
    ///
    /// When some is of a parameter that is not trained here, one that is trained has none, had a gradient and others have some, or
    /// a field is there for some parameters only.
    pub fn find(plan: &Plan, source: &'a dyn StateSource) -> Result<Self> {
        let mut by_name: BTreeMap<&str, StoredState> = BTreeMap::new();
        for name in source.tensors() {
            if let Some((path, field)) = names::state(name) {
                by_name.entry(path).or_default().tensors.insert(field.to_string(), name.to_string());
            }
        }
        let (mut without, mut untouched) = (BTreeSet::new(), BTreeSet::new());
        for (name, value) in source.scalars() {
            if let Some((path, field)) = names::state(name) {
                if field == names::NO_GRADIENT {
                    without.insert(path);
                    continue;
                }
                by_name.entry(path).or_default().scalars.insert(field.to_string(), *value);
            }
        }
        check_fields(source, &by_name)?;
        let other = by_name.keys().next().map(|name| name.to_string());
        let mut fields = BTreeMap::new();
        for (number, record) in plan.records().iter().enumerate() {
            let Some(stored) = by_name.remove(record.name.as_str()) else {
                let is_without = without.contains(record.name.as_str());
                match &other {
                    _ if !record.trainable || record.global_numel() == 0 => {}
                    _ if is_without => drop(untouched.insert(number)),
                    Some(other) => return Err(without_state(record, other, source)),
                    None => {}
                }
                continue;
            };
            if !record.trainable {
                return Err(Error::Parameter {
                    name: record.name.clone(),
                    reason: format!(
                        "is frozen, and {} has optimizer state of it; train the same parameters",
                        source.place().display()
                    ),
                });
            }
            if record.held && !(record.numel() > 0 && record.own_range().is_empty()) {
                fields.insert(number, stored);
            }
        }
        match by_name.keys().next() {
            None => Ok(Self { stored: source, fields, untouched }),
            Some(name) => Err(Error::file(
                source.place(),
                format!("it has optimizer state of `{name}`, which is no parameter of this model"),
            )),
        }
    }

    /// Gives it to the engine's optimizer.
    pub fn load<M: Model>(self, setup: Setup<'_>, state: &mut ModelState<M>) -> Result<()> {
        let table = &setup.plan.params;
        state.untouched = self.untouched.iter().copied().filter(|number| table.records[*number].held).collect();
        if let Some(one_pass) = &mut state.one_pass {
            return self.load_one_pass(table, one_pass);
        }
        self.check_names(table, &state.optimizer)?;
        state.optimizer.clear();
        let (device, flat) = (update_device(setup.device, setup.plan.tiers.state), table.updated_in_shards());
        for (number, stored) in &self.fields {
            let record = &table.records[*number];
            let range = record.own_range();
            let own = if flat.contains(number) { vec![range.len()] } else { record.shape() };
            let mut fields = stored.numbers();
            for (field, name) in &stored.tensors {
                let shape = self.stored.shape(name)?;
                let shape = if shape == record.global_shape { own.clone() } else { shape };
                let (bytes, _, dtype) = read(self.stored, name, record, range.clone())?.into_parts();
                check_type(record, dtype, &device)?;
                fields.insert(field.clone(), StateField::Tensor(TensorData::from_bytes(bytes, shape, dtype)));
            }
            if !state.optimizer.set_state(record.id, own.len(), fields, &device) {
                return Err(self.unknown(record, &stored.names().cloned().collect(), "cannot rebuild it".into()));
            }
        }
        Ok(())
    }

    /// Whether this is what the optimizer keeps: of state that is not there Burn begins anew without a word, and what it does
    /// not use it keeps. Tried for each set of names and dims, with the smallest parameter that has it.
    fn check_names(&self, table: &ParamTable, optimizer: &PerParameter) -> Result<()> {
        let (mut tried, flat) = (BTreeSet::new(), table.updated_in_shards());
        let mut fields: Vec<(&usize, &ParamRecord, &StoredState)> =
            self.fields.iter().map(|(number, stored)| (number, &table.records[*number], stored)).collect();
        fields.sort_by_key(|(_, record, _)| record.numel());
        for (number, record, stored) in fields {
            let shape = if flat.contains(number) { vec![record.numel()] } else { record.shape() };
            let names: BTreeSet<String> = stored.names().map(|name| unnumbered(name)).collect();
            if !tried.insert((shape.len(), names.clone())) {
                continue;
            }
            let known = optimizer.names(&shape, record.dtype);
            let known = known.map(|names| names.iter().map(|name| unnumbered(name)).collect::<BTreeSet<_>>());
            if !known.contains(&names) {
                return Err(self.unknown(record, &names, format!("keeps {:?} of it", known[1])));
            }
        }
        Ok(())
    }

    fn unknown(&self, record: &ParamRecord, names: &BTreeSet<String>, known: String) -> Error {
        Error::Parameter {
            name: record.name.clone(),
            reason: format!(
                "has the optimizer state {names:?} in {}, and this optimizer {known}; go on with the settings that saved it",
                self.stored.place().display()
            ),
        }
    }

    /// State that is updated in one pass, away from the device.
    fn load_one_pass(&self, table: &ParamTable, one_pass: &mut OnePassUpdate) -> Result<()> {
        for (unit, state) in table.trained().zip(&mut one_pass.states) {
            for (piece, member) in unit.members.iter().enumerate() {
                // Where nothing has any, as before the first step.
                let stored = self.fields.get(member).cloned().unwrap_or_default();
                let record = &table.records[*member];
                let wrong = |reason: String| Error::Parameter { name: record.name.clone(), reason };
                let mut fields = BTreeMap::new();
                for (field, name) in &stored.tensors {
                    fields.insert(field.clone(), read(self.stored, name, record, record.own_range())?);
                }
                let steps = stored.scalars.values().find_map(|value| match value {
                    Scalar::Uint(steps) => usize::try_from(*steps).ok(),
                    _ => None,
                });
                state.set(piece, steps, fields).map_err(|error| wrong(error.to_string()))?;
            }
        }
        Ok(())
    }
}

/// The name of a field without the numbers of a list, which may be longer after some steps: `history.2` is of `history`.
fn unnumbered(name: &str) -> String {
    let parts = name.split('.').filter(|part| part.parse::<usize>().is_err());
    parts.collect::<Vec<_>>().join(".")
}

/// Burn rebuilds state in the type that the device has for floats, whatever was stored.
fn check_type(record: &ParamRecord, stored: DType, device: &Device) -> Result<()> {
    let own = DType::from(device.settings().float_dtype);
    if stored == own || !stored.is_float() {
        return Ok(());
    }
    Err(Error::Parameter {
        name: record.name.clone(),
        reason: format!(
            "has optimizer state of {}, and this device makes floats of {}, which would change its values; configure the device \
             as in the run that saved it",
            stored.name(),
            own.name()
        ),
    })
}

/// A trained parameter whose state would begin anew, beside others that go on.
fn without_state(record: &ParamRecord, other: &str, source: &dyn StateSource) -> Error {
    Error::Parameter {
        name: record.name.clone(),
        reason: format!(
            "is trained, and has no optimizer state in {}, where `{other}` has some; train the same parameters, or load the \
             parameters alone, so that all state begins anew",
            source.place().display()
        ),
    }
}

/// Whether all parameters that have state have the same fields: what is missing would begin anew without a word.
fn check_fields(source: &dyn StateSource, stored: &BTreeMap<&str, StoredState>) -> Result<()> {
    // Some optimizers keep other state of a vector than of a matrix.
    let mut first: BTreeMap<usize, (&str, BTreeSet<String>)> = BTreeMap::new();
    for (name, stored) in stored {
        let dims = source.shape(&names::of_parameter(name))?.len();
        let own: BTreeSet<String> = stored.names().cloned().collect();
        let (other, expected) = first.entry(dims).or_insert_with(|| (name, own.clone()));
        if own != *expected {
            return Err(Error::file(
                source.place(),
                format!(
                    "the optimizer's state of `{name}` has the fields {own:?}, and that of `{other}` {expected:?}: it is \
                     damaged; take another checkpoint"
                ),
            ));
        }
    }
    Ok(())
}

/// Reads a tensor of a parameter's state: of one that has an element for each of the parameter's, this rank's.
fn read(
    source: &dyn StateSource,
    name: &str,
    record: &ParamRecord,
    range: core::ops::Range<usize>,
) -> Result<TensorData> {
    let shape = source.shape(name)?;
    match shape == record.global_shape {
        true => source.read(name, &Region::of(&record.global_shape, &record.ranges())?.part(range)),
        false => source.read(name, &Region::all(&shape)),
    }
}
